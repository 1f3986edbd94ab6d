-- Everything `status` and `verify` show of the live generations.
SELECT p.name AS projection, p.desired_state, p.live_generation, g.definition, q.topic, q.partition, q.next_offset,
       q.epoch, q.owner,
       EXISTS (SELECT FROM pg_catalog.pg_stat_activity a
               WHERE q.owner <> '' AND starts_with(a.application_name, 'tidegate ' || q.owner)) AS connected,
       q.consumed, q.applied, q.stale, q.duplicate, q.filtered, q.parked, q.condition, q.cause, q.since
FROM tidegate.projection p
JOIN tidegate.generation g ON g.projection = p.name AND g.number = p.live_generation
JOIN tidegate.position q ON q.projection = p.name AND q.generation = p.live_generation
ORDER BY p.name, q.topic, q.partition
