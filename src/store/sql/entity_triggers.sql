-- Triggers and rules of a schema's tables that are not Tidegate's own: what runs when rows are deleted and copied.
SELECT pg_catalog.format('trigger %I of %s', t.tgname, t.tgrelid::regclass) AS fires
FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid AND c.relnamespace = $1 AND c.relkind IN ('r', 'p') AND left(c.relname, 1) <> '_'
WHERE NOT t.tgisinternal AND t.tgenabled <> 'D'
UNION ALL
SELECT pg_catalog.format('rule %I of %s', r.rulename, r.ev_class::regclass)
FROM pg_catalog.pg_rewrite r
JOIN pg_catalog.pg_class c ON c.oid = r.ev_class AND c.relnamespace = $1 AND c.relkind IN ('r', 'p') AND left(c.relname, 1) <> '_'
WHERE r.ev_enabled <> 'D'
ORDER BY 1
