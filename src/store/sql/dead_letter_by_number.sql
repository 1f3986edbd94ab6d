-- Waiting records that have no entity, by their numbers: nothing waits behind them. They are not locked: gate rows come
-- before dead letters, and what becomes of them is a compare-and-set.
SELECT number, topic, incarnation, partition, record_offset, entity, key, value, header_names, header_values, timestamp_ms
FROM tidegate.dead_letter
WHERE projection = $1 AND generation = $2 AND state = 'waiting' AND entity IS NULL AND number = ANY ($3::bigint[])
ORDER BY number
