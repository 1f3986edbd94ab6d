-- The relay's write: moves the cursor over what the broker has acknowledged, keeps what is known of the message that a
-- stream stands at, and renews the lease, only where the lease epoch is still this relay's. In the transaction that
-- reads the rows it is the durability barrier too: its synchronous commit makes everything visible to that read durable
-- (I9). It comes before the read, so that an operator who holds the row is waited for, and seen. Touches the relay's own
-- rows, never none, and locks them in the order of the streams, as everybody does.
WITH locked AS (
    SELECT stream FROM tidegate.relay WHERE stream = ANY ($1::text[]) ORDER BY stream FOR UPDATE
)
UPDATE tidegate.relay AS r
SET sent_through = greatest(r.sent_through, h.sent_through), last_error = h.last_error, attempts = h.attempts,
    retry_at = clock_timestamp() + h.retry_in * interval '1 millisecond',
    lease_until = clock_timestamp() + $7 * interval '1 millisecond'
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::integer[], $6::bigint[])
    AS h (stream, lease_epoch, sent_through, last_error, attempts, retry_in)
JOIN locked USING (stream)
WHERE r.stream = h.stream AND r.lease_epoch = h.lease_epoch
RETURNING r.stream
