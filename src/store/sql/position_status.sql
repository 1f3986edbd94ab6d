-- Everything `status` and `verify` show of the live generations.
SELECT p.name AS projection, p.desired_state, p.live_generation,
       (SELECT b.number FROM tidegate.generation b WHERE b.projection = p.name AND b.state = 'building') AS building,
       g.definition, q.topic, q.partition, q.next_offset,
       q.epoch, q.owner,
       EXISTS (SELECT FROM pg_catalog.pg_stat_activity a
               WHERE q.owner <> '' AND starts_with(a.application_name, 'tidegate ' || q.owner)) AS connected,
       q.consumed, q.applied, q.stale, q.duplicate, q.filtered, q.parked, coalesce(w.waiting, 0) AS waiting, q.condition, q.cause, q.since
FROM tidegate.projection p
JOIN tidegate.generation g ON g.projection = p.name AND g.number = p.live_generation
JOIN tidegate.position q ON q.projection = p.name AND q.generation = p.live_generation
LEFT JOIN (
    SELECT d.projection, d.generation, d.topic, d.partition, count(*) AS waiting
    FROM tidegate.dead_letter d
    WHERE d.state = 'waiting'
    GROUP BY d.projection, d.generation, d.topic, d.partition
) w ON w.projection = q.projection AND w.generation = q.generation AND w.topic = q.topic AND w.partition = q.partition
ORDER BY p.name, q.topic, q.partition
