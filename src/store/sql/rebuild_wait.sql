-- The same as `rebuild_lock.sql` for somebody who waits, in a transaction whose `lock_timeout` bounds that: the lock outlives it.
SELECT pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended('tidegate.rebuild.' || $1, 0))
