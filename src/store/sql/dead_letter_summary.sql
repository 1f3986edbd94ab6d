-- Waiting records of live generations by reason, with the oldest of each.
SELECT d.projection, d.reason, count(*) AS waiting, count(DISTINCT d.entity) AS entities, min(d.parked_at) AS oldest
FROM tidegate.dead_letter d
JOIN tidegate.projection p ON p.name = d.projection AND p.live_generation = d.generation
WHERE d.state = 'waiting'
GROUP BY d.projection, d.reason
ORDER BY d.projection, d.reason
