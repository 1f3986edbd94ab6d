-- In how many partitions a build of one entity, $3, has met events of it, and how many of these its gate has dropped.
SELECT count(*) FILTER (WHERE q.applied + q.stale + q.duplicate + l.letters > 0),
       coalesce(sum(q.stale + l.stale), 0)::bigint
FROM tidegate.position q
CROSS JOIN LATERAL (
    SELECT count(*) AS letters, count(*) FILTER (WHERE d.state = 'stale') AS stale
    FROM tidegate.dead_letter d
    WHERE d.projection = q.projection AND d.generation = q.generation AND d.topic = q.topic AND d.partition = q.partition
      AND d.entity = $3
) l
WHERE q.projection = $1 AND q.generation = $2
