-- Dead letters of one entity: the first that wait, in the order in which they are to be applied, with $6 (gate `next`) that of
-- their sequences; or the last that were resolved, the newest first.
SELECT number, generation, topic, partition, record_offset, entity, sequence, reason, sqlstate, detail, state, attempts,
       parked_at, tried_at, resolved_at, cleared_at
FROM tidegate.dead_letter
WHERE projection = $1 AND generation = $2 AND entity = $3 AND (state = 'waiting') = $4
ORDER BY CASE WHEN $4 AND $6 THEN sequence END, CASE WHEN $4 THEN number ELSE -number END
LIMIT $5
