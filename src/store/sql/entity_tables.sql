-- The tables of a schema that are not Tidegate's own, with the columns that a row is made of, whether equal values of each are
-- the same text, and one whose numbers Postgres counts.
SELECT c.relname::text AS name,
       array_agg(a.attname::text ORDER BY a.attnum) AS columns,
       array_agg(a.atttypid IN ('pg_catalog.text'::regtype, 'pg_catalog.varchar'::regtype)
                 AND coalesce(l.collisdeterministic, true) ORDER BY a.attnum) AS exact,
       array_agg(pg_catalog.format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum) AS types,
       min(a.attname::text) FILTER (WHERE a.attidentity <> '' OR pg_catalog.pg_get_expr(d.adbin, d.adrelid) LIKE '%nextval(%')
           AS counted
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = $1 AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND left(c.relname, 1) <> '_'
GROUP BY c.relname
ORDER BY c.relname
