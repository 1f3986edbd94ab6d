-- As `relay_read.sql`, of the messages that were released from quarantine: they are sent again before anything else of
-- their stream is read.
SELECT w.stream, w.number, w.id, w.topic, w.partition, w.key, w.payload, w.type, w.source, w.occurred_at, w.created_at,
       w.header_names, w.header_values, true AS released
FROM (
    SELECT o.*,
           sum(coalesce(octet_length(o.payload), 0) + coalesce(octet_length(o.key), 0))
               OVER (ORDER BY o.place, o.stream ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM unnest($1::text[], $2::bigint[]) AS held (stream, most)
    CROSS JOIN LATERAL (
        SELECT outbox.*, row_number() OVER (ORDER BY quarantine.number) AS place
        FROM tidegate.quarantine
        JOIN tidegate.outbox USING (stream, number)
        WHERE quarantine.stream = held.stream AND quarantine.state = 'released'
        ORDER BY quarantine.number
        LIMIT held.most
    ) AS o
) AS w
WHERE coalesce(w.bytes_before, 0) < $3
ORDER BY w.stream, w.number
