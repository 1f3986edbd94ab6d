-- Says why a process that is there does not take a build that was left to the service. Said every ten seconds, by
-- whoever comes first, so that it holds only as long as there is such a process. What somebody has locked is about to change, and is not waited for.
UPDATE tidegate.generation g
SET declined = $3, declined_at = pg_catalog.clock_timestamp()
FROM (SELECT l.projection, l.number FROM tidegate.generation l
      WHERE l.projection = $1 AND l.number = $2 AND l.state = 'building' AND l.detached IS NOT NULL
        AND (l.declined_at IS NULL OR l.declined_at < pg_catalog.clock_timestamp() - interval '10 seconds')
      FOR NO KEY UPDATE SKIP LOCKED) l
WHERE g.projection = l.projection AND g.number = l.number
