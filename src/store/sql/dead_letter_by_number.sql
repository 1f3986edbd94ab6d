-- Waiting records that have no entity, by their numbers: nothing waits behind them.
SELECT number, topic, incarnation, partition, record_offset, entity, key, value, header_names, header_values, timestamp_ms
FROM tidegate.dead_letter
WHERE projection = $1 AND generation = $2 AND state = 'waiting' AND entity IS NULL AND number = ANY ($3::bigint[])
ORDER BY number
FOR UPDATE
