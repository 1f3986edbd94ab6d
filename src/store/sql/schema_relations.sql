-- The tables of a schema, with what would let them lose effects while the position survives: unlogged, temporary,
-- foreign (I1).
SELECT c.relname AS name, c.relkind = 'f' OR c.relpersistence <> 'p' AS unsafe
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'f')
ORDER BY c.relname
