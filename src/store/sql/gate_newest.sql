-- Gate `newest`: moves the gate rows of a batch's entities and answers which moved, with their sequence before (I4).
-- Entities come sorted, so that all writers lock in one order. An entity that is not returned had nothing newer. One of
-- which records are parked is returned and does not move: what is newer waits behind them.
-- A statement of its own: what depends on it must be read after its row locks are held.
INSERT INTO _gate AS g (entity, sequence)
SELECT unnest($1::text[]), unnest($2::bigint[])
ON CONFLICT (entity) DO UPDATE
SET previous = g.sequence, sequence = CASE WHEN g.parked THEN g.sequence ELSE excluded.sequence END
WHERE g.sequence < excluded.sequence
RETURNING entity, previous, parked
