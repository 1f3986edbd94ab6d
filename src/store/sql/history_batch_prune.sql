-- Removes remembered batches whose time is over, at most $1.
DELETE FROM tidegate.history_batch
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM tidegate.history_batch WHERE keep_until < now() LIMIT $1 FOR UPDATE SKIP LOCKED))
