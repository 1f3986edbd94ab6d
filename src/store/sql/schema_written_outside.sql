-- A table, or a sequence, that this transaction has written to although it is neither in the schema $1 nor Tidegate's own: by a
-- trigger, say, or a name with a schema. Rows are counted by Postgres; what else is more than reading, such as TRUNCATE and
-- nextval, shows in the locks that are held. Of what the session has written before, that which is not counted yet is seen
-- too.
SELECT s.schemaname || '.' || s.relname
FROM pg_catalog.pg_stat_xact_user_tables s
WHERE s.schemaname NOT IN ($1, 'tidegate') AND s.schemaname !~ '^pg_'
  AND s.n_tup_ins + s.n_tup_upd + s.n_tup_del > 0
UNION ALL
SELECT n.nspname || '.' || c.relname
FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_class c ON c.oid = l.relation AND c.relkind <> 'i'
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname NOT IN ($1, 'tidegate') AND n.nspname !~ '^pg_'
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
LIMIT 1
