-- Remembers how far a live generation came. Never lowered, so that no later pass sends its messages again (I5).
INSERT INTO tidegate.emission AS e (projection, topic, incarnation, partition, emitted_through)
SELECT $1, p.topic, p.incarnation, p.partition, p.next_offset
FROM unnest($2::text[], $3::integer[], $4::integer[], $5::bigint[]) AS p (topic, incarnation, partition, next_offset)
ON CONFLICT (projection, topic, incarnation, partition)
DO UPDATE SET emitted_through = greatest(e.emitted_through, excluded.emitted_through)
