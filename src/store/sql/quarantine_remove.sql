-- Removes messages that were sent or discarded from quarantine longer ago than $2, at most $3, and their rows there.
WITH resolved AS (
    SELECT q.stream, q.number
    FROM tidegate.quarantine q
    JOIN tidegate.relay r USING (stream)
    WHERE q.stream = $1 AND q.number <= r.removed_through AND q.state IN ('sent', 'discarded')
      AND q.resolved_at < clock_timestamp() - $2 * interval '1 millisecond'
    ORDER BY q.number
    LIMIT $3
),
forgotten AS (
    DELETE FROM tidegate.quarantine q
    USING resolved
    WHERE q.stream = resolved.stream AND q.number = resolved.number
    RETURNING q.stream, q.number
)
DELETE FROM tidegate.outbox o
USING forgotten
WHERE o.stream = forgotten.stream AND o.number = forgotten.number
