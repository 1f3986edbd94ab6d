-- Which statements of this process's claims and batches wait for a lock now, since when, and who holds it. Names are cut at
-- 63 characters, as Postgres does.
SELECT split_part(a.application_name, ' ', 4) AS projection, a.pid, pg_catalog.pg_blocking_pids(a.pid) AS blocked_by, a.query_start AS since
FROM pg_catalog.pg_stat_activity a
WHERE a.wait_event_type = 'Lock'
  AND starts_with(a.application_name, 'tidegate ' || $1 || ' ')
  AND split_part(a.application_name, ' ', 3) IN ('claim', 'apply', 'bulk')
ORDER BY a.query_start, a.pid
