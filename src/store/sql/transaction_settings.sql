-- Every setting a promise rests on, for this transaction only: poolers, roles and handlers cannot change it.
SELECT pg_catalog.set_config('search_path', $1, true),
       pg_catalog.set_config('application_name', $2, true),
       pg_catalog.set_config('lock_timeout', $3, true),
       pg_catalog.set_config('statement_timeout', $4, true),
       pg_catalog.set_config('idle_in_transaction_session_timeout', $5, true),
       pg_catalog.set_config('synchronous_commit', 'on', true),
       pg_catalog.set_config('jit', 'off', true)
