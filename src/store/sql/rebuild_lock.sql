-- Only one process at a time is to build: two would take each other's partitions over and over. What they write is exact in
-- any case.
SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('tidegate.rebuild.' || $1, 0))
