-- Ends transactions of batches, bulk writes and redrives that are idle and block this process, by what blocks now, not by a remembered pid.
-- A claim may end whoever holds the row it waits for: that transaction's epoch is older by then. A batch may end only
-- what belongs to a worker that owns no partition any more. Names are cut at 63 characters, as Postgres does.
WITH waiting AS (
    SELECT a.pid, starts_with(a.application_name, left('tidegate ' || $1 || ' claim ' || $2, 63)) AS claims
    FROM pg_catalog.pg_stat_activity a
    WHERE a.wait_event_type = 'Lock'
      AND a.application_name IN (left('tidegate ' || $1 || ' claim ' || $2, 63), left('tidegate ' || $1 || ' apply ' || $2, 63),
                                 left('tidegate ' || $1 || ' bulk ' || $2, 63))
),
straggler AS (
    SELECT DISTINCT a.pid, a.application_name
    FROM waiting w
    CROSS JOIN LATERAL unnest(pg_catalog.pg_blocking_pids(w.pid)) AS b (pid)
    JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid
    WHERE a.state IN ('idle in transaction', 'idle in transaction (aborted)')
      AND a.state_change < clock_timestamp() - $3 * interval '1 millisecond'
      AND starts_with(a.application_name, 'tidegate ')
      AND NOT starts_with(a.application_name, 'tidegate ' || $1 || ' ')
      AND split_part(a.application_name, ' ', 3) IN ('apply', 'bulk', 'redrive')
      AND starts_with($2, split_part(a.application_name, ' ', 4))
      AND (w.claims OR NOT EXISTS (
            SELECT FROM tidegate.position p
            WHERE p.projection = $2 AND p.owner = split_part(a.application_name, ' ', 2)))
)
SELECT s.application_name
FROM straggler s
WHERE pg_catalog.pg_terminate_backend(s.pid)
