-- A table that this transaction has written to although it is neither in the schema $1 nor Tidegate's own: by a trigger, say,
-- or a name with a schema. Of what the session has written before, that which is not counted yet is seen too.
SELECT s.schemaname || '.' || s.relname
FROM pg_catalog.pg_stat_xact_user_tables s
WHERE s.schemaname NOT IN ($1, 'tidegate') AND s.schemaname !~ '^pg_'
  AND s.n_tup_ins + s.n_tup_upd + s.n_tup_del > 0
LIMIT 1
