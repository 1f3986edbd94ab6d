-- Writes the first row of a partition. A row that exists stays: whoever came first has decided where to begin.
INSERT INTO tidegate.position (projection, generation, topic, partition, next_offset)
SELECT $1, $2, p.topic, p.partition, p.next_offset
FROM unnest($3::text[], $4::integer[], $5::bigint[]) AS p (topic, partition, next_offset)
ORDER BY p.topic, p.partition
ON CONFLICT (projection, generation, topic, partition) DO NOTHING
