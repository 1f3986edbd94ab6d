-- Gate `next`: entities whose waiting records only wait, and whose turn has come, if need be behind one that was given up.
-- A gate may stand at the highest number, so that none is added to it.
SELECT DISTINCT d.entity
FROM tidegate.dead_letter d
JOIN _gate g ON g.entity = d.entity
WHERE d.projection = $1 AND d.generation = $2 AND d.state = 'waiting' AND d.reason IN ('gap', 'behind')
  AND (d.sequence - 1 <= g.sequence
       OR EXISTS (SELECT FROM tidegate.dead_letter x
                  WHERE x.projection = $1 AND x.generation = $2 AND x.state = 'discarded' AND x.entity = d.entity
                    AND x.sequence - 1 = g.sequence))
ORDER BY d.entity
LIMIT 1000
