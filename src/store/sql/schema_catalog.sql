-- What the catalog says of a schema, in one word: another one once a function of it was replaced, a type changed, or a right
-- granted, which take no lock that would show.
SELECT coalesce(pg_catalog.md5(string_agg(o.kind || o.oid || ':' || o.version, ' ' ORDER BY o.kind, o.oid)), '')
FROM (
    SELECT 'p' AS kind, p.oid, p.xmin::text AS version FROM pg_catalog.pg_proc p WHERE p.pronamespace = $1
    UNION ALL
    SELECT 't', t.oid, t.xmin::text FROM pg_catalog.pg_type t WHERE t.typnamespace = $1
    UNION ALL
    SELECT 'c', c.oid, c.xmin::text FROM pg_catalog.pg_class c WHERE c.relnamespace = $1
    UNION ALL
    SELECT 'n', n.oid, n.xmin::text FROM pg_catalog.pg_namespace n WHERE n.oid = $1
) AS o
