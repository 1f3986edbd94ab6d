-- Dead letters of live generations, those that wait first among their entity's.
SELECT d.number, d.projection, d.topic, d.partition, d.record_offset, d.entity, d.sequence, d.reason, d.sqlstate, d.detail,
       d.state, d.attempts, d.parked_at, d.tried_at, d.resolved_at, d.cleared_at, d.timestamp_ms, d.key,
       d.value, d.header_names, d.header_values
FROM tidegate.dead_letter d
JOIN tidegate.projection p ON p.name = d.projection AND p.live_generation = d.generation
WHERE ($1::text IS NULL OR d.projection = $1) AND ($2::text IS NULL OR d.entity = $2)
  AND ($3::text IS NULL OR d.reason = $3) AND ($4::bigint IS NULL OR d.number = $4)
  AND ($5::boolean OR d.state = 'waiting')
ORDER BY d.projection, d.number
LIMIT $6
