-- What a record became in some generations, each with the topic's incarnation that it read.
SELECT d.number, d.generation, d.topic, d.partition, d.record_offset, d.entity, d.sequence, d.reason, d.sqlstate, d.detail,
       d.state, d.attempts, d.parked_at, d.tried_at, d.resolved_at, d.cleared_at
FROM unnest($2::integer[], $3::integer[]) AS g (generation, incarnation)
JOIN tidegate.dead_letter d ON d.generation = g.generation AND d.incarnation = g.incarnation
WHERE d.projection = $1 AND d.topic = $4 AND d.partition = $5 AND d.record_offset = $6
ORDER BY d.generation DESC
