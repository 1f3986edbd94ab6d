-- The relay's write: moves the cursor over what the broker has acknowledged and renews the lease, only where the lease
-- epoch is still this relay's. In the transaction that has read the rows it is the durability barrier too: its
-- synchronous commit makes everything visible to that read durable (I9). Touches the relay's own rows, never none.
UPDATE tidegate.relay AS r
SET sent_through = greatest(r.sent_through, h.sent_through), last_error = h.last_error,
    lease_until = clock_timestamp() + $5 * interval '1 millisecond'
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[]) AS h (stream, lease_epoch, sent_through, last_error)
WHERE r.stream = h.stream AND r.lease_epoch = h.lease_epoch
RETURNING r.stream
