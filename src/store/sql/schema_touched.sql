-- A relation of schema $1 that this transaction has done more with than read it.
SELECT c.relname
FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_class c ON c.oid = l.relation AND c.relnamespace = $1
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.mode <> 'AccessShareLock'
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
ORDER BY c.relkind NOT IN ('r', 'p'), c.relname
LIMIT 1
