-- What a schema holds that must be dropped for itself, in the order in which it usually can be: what goes with another object,
-- such as an index or the sequence of a column, is not in it.
SELECT kind, pg_catalog.format('%I.%I', n.nspname, o.name) || o.arguments AS name
FROM pg_catalog.pg_namespace n
CROSS JOIN LATERAL (
    SELECT 1 AS step, CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'MATERIALIZED VIEW' END AS kind, c.relname AS name, '' AS arguments
    FROM pg_catalog.pg_class c
    WHERE c.relnamespace = n.oid AND c.relkind IN ('v', 'm')
    UNION ALL
    SELECT 2, 'TABLE', c.relname, ''
    FROM pg_catalog.pg_class c
    WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    UNION ALL
    SELECT 3, 'SEQUENCE', c.relname, ''
    FROM pg_catalog.pg_class c
    WHERE c.relnamespace = n.oid AND c.relkind = 'S'
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                      WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i'))
    UNION ALL
    SELECT 4, CASE p.prokind WHEN 'a' THEN 'AGGREGATE' ELSE 'ROUTINE' END, p.proname,
           pg_catalog.format('(%s)', pg_catalog.pg_get_function_identity_arguments(p.oid))
    FROM pg_catalog.pg_proc p
    WHERE p.pronamespace = n.oid
    UNION ALL
    SELECT 5, CASE t.typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END, t.typname, ''
    FROM pg_catalog.pg_type t
    LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
    WHERE t.typnamespace = n.oid
      AND (t.typtype IN ('d', 'e', 'r') OR t.typtype = 'c' AND c.relkind = 'c')
) AS o
WHERE n.oid = $1
ORDER BY o.step, o.name
