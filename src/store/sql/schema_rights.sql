-- What the role that is connected may not do that a cut-over needs, in the order of the questions: make schemas in this
-- database, act as the owner of the live schema, and as the owner of each of its relations.
SELECT pg_catalog.format('create schemas in database %I', pg_catalog.current_database())
WHERE NOT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')
UNION ALL
SELECT pg_catalog.format('act as %I, the owner of schema %I', pg_catalog.pg_get_userbyid(n.nspowner), n.nspname)
FROM pg_catalog.pg_namespace n
WHERE n.oid = $1 AND NOT pg_catalog.pg_has_role(n.nspowner, 'USAGE')
UNION ALL
SELECT pg_catalog.format('act as %I, the owner of %s', pg_catalog.pg_get_userbyid(c.relowner), c.oid::regclass)
FROM pg_catalog.pg_class c
WHERE c.relnamespace = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'S') AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE')
