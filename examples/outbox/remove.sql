-- Where change data capture reads the outbox, nothing tells Tidegate what is sent: this removes what is older than a
-- day, of each stream from its beginning, and counts it as sent. The write-ahead log has it until the connector has read it.
WITH through AS (
    SELECT stream, max(number) AS number
    FROM tidegate.outbox
    WHERE created_at < now() - interval '1 day'
    GROUP BY stream
),
removed AS (
    DELETE FROM tidegate.outbox o USING through t WHERE o.stream = t.stream AND o.number <= t.number
)
UPDATE tidegate.relay r
SET sent_through = t.number, removed_through = t.number
FROM through t
WHERE r.stream = t.stream AND r.sent_through < t.number;
