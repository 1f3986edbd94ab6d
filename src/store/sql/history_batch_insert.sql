-- Remembers what a batch takes from each of its partitions, for as long as what it drops: now() is the same for both.
INSERT INTO tidegate.history_batch (projection, generation, topic, incarnation, partition, from_offset, to_offset, records,
                                    batch_id, keep_until)
SELECT $1, $2, b.topic, b.incarnation, b.partition, b.from_offset, b.to_offset, b.records, $3,
       now() + $4 * interval '1 millisecond'
FROM unnest($5::text[], $6::integer[], $7::integer[], $8::bigint[], $9::bigint[], $10::bigint[])
    AS b (topic, incarnation, partition, from_offset, to_offset, records)
