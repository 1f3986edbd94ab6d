-- What waits, by its place.
SELECT topic, partition, record_offset, entity, reason, detail
FROM tidegate.dead_letter
WHERE state = 'waiting'
ORDER BY topic, partition, record_offset
