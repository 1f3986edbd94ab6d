-- Reads the next messages of the streams this relay holds: behind each cursor, in number order, of each at most as
-- many as $3 says, until they have $4 bytes in all, first all first ones, so that no stream's long messages keep others
-- waiting; one message in any case. Only rows of streams whose lease is still
-- this relay's are sent: `relay_barrier.sql` decides that.
SELECT w.stream, w.number, w.id, w.topic, w.partition, w.key, w.payload, w.type, w.source, w.occurred_at, w.created_at,
       w.header_names, w.header_values, false AS released
FROM (
    SELECT o.*,
           sum(coalesce(octet_length(o.payload), 0) + coalesce(octet_length(o.key), 0))
               OVER (ORDER BY o.place, o.stream ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS held (stream, sent_through, most)
    CROSS JOIN LATERAL (
        SELECT outbox.*, row_number() OVER (ORDER BY outbox.number) AS place FROM tidegate.outbox
        WHERE outbox.stream = held.stream AND outbox.number > held.sent_through
        ORDER BY outbox.number
        LIMIT held.most
    ) AS o
) AS w
WHERE coalesce(w.bytes_before, 0) < $4
ORDER BY w.stream, w.number
