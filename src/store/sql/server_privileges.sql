-- What this role must be allowed to do for `run` and is not.
SELECT 'USAGE on schema tidegate' AS missing
WHERE NOT pg_catalog.has_schema_privilege('tidegate', 'USAGE')
UNION ALL
SELECT format('%s on tidegate.%I', p.privilege, c.relname)
FROM pg_catalog.pg_class c
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (privilege)
WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind IN ('r', 'p')
  AND (c.relname <> 'migration' OR p.privilege = 'SELECT')
  AND NOT pg_catalog.has_table_privilege(c.oid, p.privilege)
UNION ALL
SELECT format('USAGE on schema %I', g.schema_name)
FROM tidegate.projection p
JOIN tidegate.generation g ON g.projection = p.name AND g.number = p.live_generation
WHERE to_regnamespace(format('%I', g.schema_name)) IS NOT NULL
  AND NOT pg_catalog.has_schema_privilege(format('%I', g.schema_name)::regnamespace, 'USAGE')
ORDER BY missing
