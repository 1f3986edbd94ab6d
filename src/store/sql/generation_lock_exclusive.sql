-- The generation lock of an operator action or a first start: first in the lock order, waits for open batches.
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('tidegate.generation.' || $1, 0))
