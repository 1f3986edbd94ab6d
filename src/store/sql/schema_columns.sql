-- The columns of the tables of a schema, with their types, but for Tidegate's own tables.
SELECT c.relname AS relation, a.attname AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = $1 AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND left(c.relname, 1) <> '_'
ORDER BY c.relname, a.attname
