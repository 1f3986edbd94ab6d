-- Writes the positions of a new generation, with epochs above those of the one before.
INSERT INTO tidegate.position (projection, generation, topic, partition, next_offset, first_offset, incarnation, first_incarnation,
                               topic_id, epoch)
SELECT $1, $2, p.topic, p.partition, p.next_offset, p.next_offset, p.incarnation, p.incarnation, p.topic_id, p.epoch
FROM unnest($3::text[], $4::integer[], $5::bigint[], $6::integer[], $7::uuid[], $8::bigint[])
    AS p (topic, partition, next_offset, incarnation, topic_id, epoch)
ORDER BY p.topic, p.partition
