-- Writes the first row of a partition. A row that exists stays: whoever came first has decided where to begin. A
-- partition that appears later belongs to the same topic as the others.
INSERT INTO tidegate.position (projection, generation, topic, partition, next_offset, first_offset, incarnation, first_incarnation,
                               topic_id)
SELECT $1, $2, p.topic, p.partition, p.next_offset, p.next_offset, coalesce(s.incarnation, 1), coalesce(s.incarnation, 1), s.topic_id
FROM unnest($3::text[], $4::integer[], $5::bigint[]) AS p (topic, partition, next_offset)
LEFT JOIN LATERAL (
    SELECT q.incarnation, q.topic_id
    FROM tidegate.position q
    WHERE q.projection = $1 AND q.generation = $2 AND q.topic = p.topic
    ORDER BY q.incarnation DESC, q.topic_id NULLS LAST
    LIMIT 1
) s ON true
ORDER BY p.topic, p.partition
ON CONFLICT (projection, generation, topic, partition) DO NOTHING
