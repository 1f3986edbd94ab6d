-- Reads the next messages of the streams this relay holds: behind each cursor, in number order, of each at most as many
-- as $3 says and $4 in all. Only rows of streams whose lease is still this relay's are sent: `relay_barrier.sql` decides that.
SELECT o.stream, o.number, o.id, o.topic, o.key, o.payload, o.type, o.source, o.occurred_at, o.created_at,
       o.header_names, o.header_values
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS held (stream, sent_through, most)
CROSS JOIN LATERAL (
    SELECT * FROM tidegate.outbox
    WHERE outbox.stream = held.stream AND outbox.number > held.sent_through
    ORDER BY outbox.number
    LIMIT held.most
) AS o
ORDER BY o.stream, o.number
LIMIT $4
