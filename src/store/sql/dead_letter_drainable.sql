-- Gate `next`: entities whose waiting records only wait, and whose turn has come.
SELECT DISTINCT d.entity
FROM tidegate.dead_letter d
JOIN _gate g ON g.entity = d.entity
WHERE d.projection = $1 AND d.generation = $2 AND d.state = 'waiting' AND d.reason IN ('gap', 'behind')
  AND d.sequence <= g.sequence + 1
ORDER BY d.entity
LIMIT 1000
