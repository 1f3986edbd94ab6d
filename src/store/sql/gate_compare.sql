-- Moves gates from where they are believed to stand, $3, to $2 (I4), and counts them: one that has moved meanwhile, or of
-- which records are parked, is not among them. Nor is one that is not there any more: it is inserted, which whoever counts
-- rolls back. Entities come sorted, so that all writers lock in one order, which a plain UPDATE would leave to the plan.
-- `xmax = 0` tells an inserted row from an updated one; a test holds Postgres to it.
WITH moved AS (
    INSERT INTO _gate AS g (entity, sequence, previous)
    SELECT unnest($1::text[]), unnest($2::bigint[]), unnest($3::bigint[])
    ON CONFLICT (entity) DO UPDATE
    SET previous = g.sequence, sequence = excluded.sequence
    WHERE g.sequence = excluded.previous AND NOT g.parked
    RETURNING xmax = 0 AS inserted
)
SELECT count(*) FILTER (WHERE NOT inserted) FROM moved
