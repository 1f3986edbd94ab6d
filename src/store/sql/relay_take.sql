-- Takes the lease of streams that nobody holds, or whose holder's lease has run out by the database's clock; with $3
-- also of those that the taker itself has held, before it lost its connection.
-- The lease epoch grows, so that the former holder can neither move the cursor nor pass its barrier.
WITH free AS (
    SELECT stream
    FROM tidegate.relay
    WHERE CASE WHEN owner = $1 THEN $3 ELSE lease_until < clock_timestamp() END
    ORDER BY stream
    FOR UPDATE SKIP LOCKED
)
UPDATE tidegate.relay AS r
SET owner = $1, lease_epoch = r.lease_epoch + 1, lease_until = clock_timestamp() + $2 * interval '1 millisecond'
FROM free
WHERE r.stream = free.stream
RETURNING r.stream, r.lease_epoch, r.sent_through, r.last_error, r.attempts,
          greatest(0, extract(epoch FROM r.retry_at - clock_timestamp()) * 1000)::bigint AS retry_in
