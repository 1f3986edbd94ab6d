-- How far each stream is numbered and sent, what stands in its way, and since when its first unsent message waits.
SELECT s.stream, s.emitted, r.sent_through, r.owner, r.attempts, r.retry_at, r.last_error,
       first.created_at AS oldest_unsent, q.waiting, q.released
FROM tidegate.stream s
JOIN tidegate.relay r USING (stream)
LEFT JOIN LATERAL (
    SELECT o.created_at
    FROM tidegate.outbox o
    WHERE o.stream = s.stream AND o.number > r.sent_through
    ORDER BY o.number
    LIMIT 1
) AS first ON true
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE state = 'waiting') AS waiting, count(*) FILTER (WHERE state = 'released') AS released
    FROM tidegate.quarantine
    WHERE quarantine.stream = s.stream AND state IN ('waiting', 'released')
) AS q
ORDER BY s.stream
