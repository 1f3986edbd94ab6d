-- The first waiting records of some entities, in the order in which they are to be applied. Read after the entities'
-- gate rows are locked, so that nothing is parked behind them meanwhile. With $5 (gate `next`) that is the order of
-- sequences: what is due comes first, however many that are not were parked before it.
SELECT number, topic, incarnation, partition, record_offset, entity, key, value, header_names, header_values, timestamp_ms
FROM tidegate.dead_letter
WHERE projection = $1 AND generation = $2 AND state = 'waiting' AND entity = ANY ($3::text[])
ORDER BY entity, CASE WHEN $5 THEN sequence END, number
LIMIT $4
FOR UPDATE
