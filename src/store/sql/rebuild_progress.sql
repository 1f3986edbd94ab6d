-- How far builds are, partition by partition: offsets that are read, and those that are left up to where the live generation
-- stands.
SELECT b.projection, l.topic, l.partition,
       coalesce(q.next_offset - coalesce(q.first_offset, 0), 0) AS done,
       greatest(l.next_offset - coalesce(q.next_offset, l.first_offset, 0), 0) AS remaining
FROM tidegate.generation b
JOIN tidegate.projection p ON p.name = b.projection
JOIN tidegate.position l ON l.projection = p.name AND l.generation = p.live_generation
LEFT JOIN tidegate.position q
    ON q.projection = p.name AND q.generation = b.number AND q.topic = l.topic AND q.partition = l.partition
WHERE b.state = 'building'
ORDER BY b.projection, l.topic, l.partition
