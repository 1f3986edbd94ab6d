-- The last dropped records of one entity, the newest first.
SELECT generation, topic, partition, record_offset, entity, sequence, outcome, gate_sequence, at
FROM tidegate.history_dropped
WHERE projection = $1 AND generation = $2 AND entity = $3
ORDER BY at DESC
LIMIT $4
