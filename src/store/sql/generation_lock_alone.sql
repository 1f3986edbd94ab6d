-- The generation lock of a batch that must be the only one. It is waited for as long as a statement may take: open batches may
-- take longer than other locks are waited for, and whoever gave up and came back would find new ones.
SELECT pg_catalog.set_config('lock_timeout', '0', true),
       pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('tidegate.generation.' || $1, 0)),
       pg_catalog.set_config('lock_timeout', before.lock_timeout, true)
FROM (SELECT pg_catalog.current_setting('lock_timeout') AS lock_timeout OFFSET 0) AS before
