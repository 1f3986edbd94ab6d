-- Remembers records that a batch drops. The gate rows of stale ones are locked by now and will not move again in this
-- batch, so where they stand is why.
INSERT INTO tidegate.history_dropped (projection, generation, topic, incarnation, partition, record_offset, entity, sequence,
                                      outcome, gate_sequence, keep_until)
SELECT $1, $2, d.topic, d.incarnation, d.partition, d.record_offset, d.entity, d.sequence, d.outcome,
       coalesce(g.sequence, d.gate_sequence),
       now() + $3 * interval '1 millisecond'
FROM unnest($4::text[], $5::integer[], $6::integer[], $7::bigint[], $8::text[], $9::bigint[], $10::text[],
            $11::bigint[])
    AS d (topic, incarnation, partition, record_offset, entity, sequence, outcome, gate_sequence)
LEFT JOIN _gate g ON d.outcome = 'stale' AND g.entity = d.entity
