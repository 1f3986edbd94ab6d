-- Reads the next messages of the streams this relay holds: behind each cursor, in number order, of each at most as
-- many as $3 says, until they have $4 bytes in all, first all first ones, so that no stream's long messages keep others
-- waiting; one message in any case. How far that is, is found with lengths alone: rows with their payloads are not sorted.
-- Only rows of streams whose lease is still this relay's are sent: `relay_barrier.sql` decides that.
WITH held AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS h (stream, sent_through, most)
),
through AS MATERIALIZED (
    SELECT l.stream, l.sent_through, max(l.number) AS number
    FROM (
        SELECT held.stream, held.sent_through, o.number,
               sum(o.bytes) OVER (ORDER BY o.place, held.stream ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                   AS bytes_before
        FROM held
        CROSS JOIN LATERAL (
            SELECT b.number, b.bytes, row_number() OVER (ORDER BY b.number) AS place
            FROM (
                SELECT outbox.number,
                       coalesce(octet_length(outbox.payload), 0) + coalesce(octet_length(outbox.key), 0) AS bytes
                FROM tidegate.outbox
                WHERE outbox.stream = held.stream AND outbox.number > held.sent_through
                ORDER BY outbox.number
                LIMIT held.most
            ) AS b
        ) AS o
    ) AS l
    WHERE coalesce(l.bytes_before, 0) < $4
    GROUP BY l.stream, l.sent_through
)
SELECT o.stream, o.number, o.id, o.topic, o.partition, o.key, o.payload, o.type, o.source, o.occurred_at, o.created_at,
       o.header_names, o.header_values, false AS released
FROM (SELECT * FROM through ORDER BY stream) AS through
CROSS JOIN LATERAL (
    SELECT * FROM tidegate.outbox
    WHERE outbox.stream = through.stream AND outbox.number > through.sent_through AND outbox.number <= through.number
    ORDER BY outbox.number
) AS o
