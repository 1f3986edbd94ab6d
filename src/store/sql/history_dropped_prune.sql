-- Removes remembered drops whose time is over, at most $1.
DELETE FROM tidegate.history_dropped
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM tidegate.history_dropped WHERE keep_until < now() LIMIT $1 FOR UPDATE SKIP LOCKED))
