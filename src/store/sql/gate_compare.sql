-- Moves gates from where they are believed to stand, $3, to $2 (I4). The caller counts: one that has moved meanwhile, or of
-- which records are parked, is not among them. Entities come sorted, so that all writers lock in one order.
INSERT INTO _gate AS g (entity, sequence, previous)
SELECT unnest($1::text[]), unnest($2::bigint[]), unnest($3::bigint[])
ON CONFLICT (entity) DO UPDATE
SET previous = g.sequence, sequence = excluded.sequence
WHERE g.sequence = excluded.previous AND NOT g.parked
