-- Foreign keys to tables of a schema that delete or change rows elsewhere when a row of these goes.
SELECT pg_catalog.format('%I of %s', k.conname, k.conrelid::regclass)
FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = k.confrelid AND c.relnamespace = $1
WHERE k.contype = 'f' AND k.confdeltype IN ('c', 'n', 'd') AND k.conparentid = 0
ORDER BY 1
