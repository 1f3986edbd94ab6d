-- Parks records: one row for ever for each. Returns how many were stored.
INSERT INTO tidegate.dead_letter (projection, generation, topic, incarnation, partition, record_offset, entity, sequence,
                                  key, value, header_names, header_values, timestamp_ms, reason, sqlstate, detail)
SELECT $1, $2, d.topic, d.incarnation, d.partition, d.record_offset, d.entity, d.sequence, d.key, d.value,
       ARRAY(SELECT decode(h ->> 0, 'hex') FROM jsonb_array_elements(d.headers) WITH ORDINALITY AS t (h, n) ORDER BY n),
       ARRAY(SELECT decode(h ->> 1, 'hex') FROM jsonb_array_elements(d.headers) WITH ORDINALITY AS t (h, n) ORDER BY n),
       d.timestamp_ms, d.reason, d.sqlstate, d.detail
FROM unnest($3::text[], $4::integer[], $5::integer[], $6::bigint[], $7::text[], $8::bigint[], $9::bytea[], $10::bytea[],
            $11::jsonb[], $12::bigint[], $13::text[], $14::text[], $15::text[])
    WITH ORDINALITY AS d (topic, incarnation, partition, record_offset, entity, sequence, key, value, headers,
                          timestamp_ms, reason, sqlstate, detail, place)
ORDER BY d.place
