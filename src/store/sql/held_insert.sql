-- Keeps messages back until the generation becomes the live one, each with the record whose right to emit it needs then.
INSERT INTO _held (topic, incarnation, partition, record_offset, stream, id, message_topic, key, payload, type, source,
                   occurred_at, header_names, header_values, message_partition)
SELECT m.topic, m.incarnation, m.partition, m.record_offset, m.stream, m.id, m.message_topic, m.key, m.payload, m.type,
       m.source, m.occurred_at,
       ARRAY(SELECT h ->> 0 FROM jsonb_array_elements(m.headers) WITH ORDINALITY AS t (h, n) ORDER BY n),
       ARRAY(SELECT decode(h ->> 1, 'hex') FROM jsonb_array_elements(m.headers) WITH ORDINALITY AS t (h, n) ORDER BY n),
       m.message_partition
FROM unnest($1::text[], $2::integer[], $3::integer[], $4::bigint[], $5::text[], $6::uuid[], $7::text[], $8::bytea[], $9::bytea[],
            $10::text[], $11::text[], $12::timestamptz[], $13::jsonb[], $14::integer[])
    WITH ORDINALITY AS m (topic, incarnation, partition, record_offset, stream, id, message_topic, key, payload, type, source,
                          occurred_at, headers, message_partition, place)
ORDER BY m.place
