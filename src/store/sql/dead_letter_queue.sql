-- The first waiting records of some entities, in the order in which they are to be applied. Read after the entities'
-- gate rows are locked, so that nothing is parked behind them meanwhile.
SELECT number, topic, incarnation, partition, record_offset, entity, key, value, header_names, header_values, timestamp_ms
FROM tidegate.dead_letter
WHERE projection = $1 AND generation = $2 AND state = 'waiting' AND entity = ANY ($3::text[])
ORDER BY entity, number
LIMIT $4
FOR UPDATE
