-- Waiting dead letters of live generations behind a number, without their bytes.
SELECT d.number, d.entity
FROM tidegate.dead_letter d
JOIN tidegate.projection p ON p.name = d.projection AND p.live_generation = d.generation
WHERE ($1::text IS NULL OR d.projection = $1) AND ($2::text IS NULL OR d.entity = $2)
  AND ($3::text IS NULL OR d.reason = $3) AND ($4::bigint IS NULL OR d.number = $4)
  AND d.state = 'waiting' AND d.number > $5
ORDER BY d.number
LIMIT $6
