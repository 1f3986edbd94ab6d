-- The streams of this relay that have sent messages, or resolved ones in quarantine, which were kept for long enough.
SELECT r.stream
FROM tidegate.relay r
WHERE r.owner = $1
  AND ((SELECT o.created_at
        FROM tidegate.outbox o
        WHERE o.stream = r.stream AND o.number > r.removed_through AND o.number <= r.sent_through
        ORDER BY o.number
        LIMIT 1) < clock_timestamp() - $2 * interval '1 millisecond'
       OR EXISTS (
           SELECT
           FROM tidegate.quarantine q
           WHERE q.stream = r.stream AND q.number <= r.removed_through AND q.state IN ('sent', 'discarded')
             AND q.resolved_at < clock_timestamp() - $2 * interval '1 millisecond'))
ORDER BY r.stream
