-- Removes the oldest messages of a stream, at most $3, up to the first that was made within $2: of those the cursor has
-- passed, and none that is in quarantine, whatever became of it. The walk begins where the one before has ended, since
-- what was removed stays in the index while somebody keeps a snapshot. Says how far it came, and how many went.
WITH next AS MATERIALIZED (
    SELECT o.number, o.created_at < clock_timestamp() - $2 * interval '1 millisecond' AS is_old
    FROM tidegate.relay r
    CROSS JOIN LATERAL (
        SELECT outbox.number, outbox.created_at
        FROM tidegate.outbox
        WHERE outbox.stream = r.stream AND outbox.number > r.removed_through AND outbox.number <= r.sent_through
        ORDER BY outbox.number
        LIMIT $3
    ) AS o
    WHERE r.stream = $1
),
old AS (
    SELECT number
    FROM next
    WHERE number < coalesce((SELECT min(number) FROM next WHERE NOT is_old), 9223372036854775807)
),
removed AS (
    DELETE FROM tidegate.outbox o
    USING old
    WHERE o.stream = $1 AND o.number = old.number
      AND NOT EXISTS (SELECT FROM tidegate.quarantine q WHERE q.stream = $1 AND q.number = old.number)
    RETURNING o.number
)
SELECT (SELECT max(number) FROM old) AS through, (SELECT count(*) FROM removed) AS removed
