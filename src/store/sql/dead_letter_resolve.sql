-- Says what became of dead letters: the last statement of a redrive, and a compare-and-set (I1, I6). One resolves only
-- if it waits, in the generation that was read, whose schema is still the one it was made in, and in the transaction that
-- BEGIN opened. The caller sends COMMIT only if as many were resolved as it has applied or dropped.
UPDATE tidegate.dead_letter AS d
SET state = r.state, resolved_at = clock_timestamp(), tried_at = clock_timestamp(), attempts = d.attempts + 1
FROM unnest($3::bigint[], $4::text[]) AS r (number, state)
WHERE d.number = r.number AND d.projection = $1 AND d.generation = $2 AND d.state = 'waiting'
  AND EXISTS (SELECT FROM tidegate.generation g WHERE g.projection = $1 AND g.number = $2 AND g.state IN ('live', 'building'))
  AND pg_catalog.pg_current_xact_id()::text = $5
  AND (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = $6) = $7
