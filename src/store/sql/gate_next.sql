-- Gate `next` for entities whose events form a dense run: $2 is the last of the run, $3 the one before its first (I4).
-- Moves the gate rows that join on to the run, and answers them with their sequence before. Not returned: nothing new,
-- or a gap. Returned as inserted: an entity never seen, which the caller checks against the first sequence allowed.
-- Parked records do not hold up the one that is due; the caller is told of them.
-- `xmax = 0` tells an inserted row from an updated one; a test holds Postgres to it.
INSERT INTO _gate AS g (entity, sequence, previous)
SELECT unnest($1::text[]), unnest($2::bigint[]), unnest($3::bigint[])
ON CONFLICT (entity) DO UPDATE
SET previous = g.sequence, sequence = excluded.sequence
WHERE g.sequence >= excluded.previous AND g.sequence < excluded.sequence
RETURNING entity, previous, xmax = 0 AS inserted, parked
