-- Opens an apply transaction: takes the shared generation lock before any name of the handler's is resolved, and
-- returns the transaction's id, which the position statement asks for again. `tidegate.applying` tells functions of
-- ours that a handler is running.
SELECT pg_catalog.pg_advisory_xact_lock_shared(pg_catalog.hashtextextended('tidegate.generation.' || $1, 0)),
       pg_catalog.set_config('tidegate.applying', 'on', true),
       pg_catalog.set_config('plan_cache_mode', $2, true),
       pg_catalog.set_config('random_page_cost', '1.1', true),
       pg_catalog.pg_current_xact_id()::text AS xact_id
