-- Locks the gate rows of entities that must be decided event by event, in order, and returns where they stand.
-- An entity never seen gets a row at $2, the sequence before its first, so that there is something to lock.
INSERT INTO _gate AS g (entity, sequence)
SELECT unnest($1::text[]), unnest($2::bigint[])
ON CONFLICT (entity) DO UPDATE
SET sequence = g.sequence
RETURNING entity, sequence, parked
