-- Ranges left out in the live generations, for `verify`.
SELECT s.projection, s.topic, s.partition, s.from_offset, s.to_offset, o.who, o.at
FROM tidegate.skipped s
JOIN tidegate.projection p ON p.name = s.projection AND p.live_generation = s.generation
JOIN tidegate.operation o ON o.id = s.operation
ORDER BY s.projection, s.topic, s.partition, s.incarnation, s.from_offset
