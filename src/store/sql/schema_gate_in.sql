-- Whether a table can carry the gate: it is there, its key is of the entities' type, that is its primary key, it has room for the sequence, and
-- no other table's rows take its rows along when they are deleted.
WITH t AS (
    SELECT c.oid
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')
), a AS (
    SELECT a.attrelid, a.attname, a.attnum, a.atttypid, a.attnotnull
    FROM pg_catalog.pg_attribute a
    JOIN t ON t.oid = a.attrelid
    WHERE NOT a.attisdropped
)
SELECT EXISTS (SELECT FROM t),
       EXISTS (SELECT FROM a WHERE attname = $3 AND atttypid = $4),
       EXISTS (SELECT FROM a JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid
               WHERE a.attname = $3 AND i.indisprimary AND i.indimmediate AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum),
       EXISTS (SELECT FROM a WHERE attname = '_sequence' AND atttypid = 'pg_catalog.int8'::pg_catalog.regtype AND attnotnull),
       EXISTS (SELECT FROM t JOIN pg_catalog.pg_constraint c ON c.conrelid = t.oid WHERE c.contype = 'f' AND c.confdeltype = 'c')
