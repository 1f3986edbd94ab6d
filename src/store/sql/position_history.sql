-- Where one partition stands in the live generation of a projection, first, and stood in the others that were live,
-- the newest before: after a rollback those are newer.
SELECT q.generation, q.incarnation, q.next_offset, q.first_offset, p.desired_state, q.owner,
       EXISTS (SELECT FROM pg_catalog.pg_stat_activity a
               WHERE q.owner <> '' AND starts_with(a.application_name, 'tidegate ' || q.owner)) AS connected,
       q.applied, q.stale, q.duplicate, q.filtered, q.condition, q.cause, q.since
FROM tidegate.projection p
JOIN tidegate.position q ON q.projection = p.name
JOIN tidegate.generation g ON g.projection = q.projection AND g.number = q.generation AND g.live_at IS NOT NULL
WHERE p.name = $1 AND q.topic = $2 AND q.partition = $3
ORDER BY q.generation = p.live_generation DESC, q.generation DESC
