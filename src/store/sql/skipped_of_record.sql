-- The range in which an operator has left out a record, in some generations, each with the topic's incarnation that it read.
SELECT s.generation, s.from_offset, s.to_offset, o.who, o.at
FROM unnest($2::integer[], $3::integer[]) AS g (generation, incarnation)
JOIN tidegate.skipped s ON s.generation = g.generation AND s.incarnation = g.incarnation
JOIN tidegate.operation o ON o.id = s.operation
WHERE s.projection = $1 AND s.topic = $4 AND s.partition = $5 AND s.from_offset <= $6 AND s.to_offset > $6
ORDER BY s.generation DESC
