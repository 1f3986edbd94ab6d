-- The statements that give what is in schema $2 the owners and grants of what has the same name in schema $1.
WITH schema AS (
    SELECT o.nspacl AS acl, o.nspowner AS owner, n.nspowner AS new_owner, n.nspname AS name
    FROM pg_catalog.pg_namespace o, pg_catalog.pg_namespace n
    WHERE o.oid = $1 AND n.oid = $2
),
relation AS (
    SELECT o.oid AS old, n.oid AS new, o.relacl AS acl, o.relowner AS owner, n.relowner AS new_owner,
           CASE n.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind,
           pg_catalog.format('%I.%I', s.name, n.relname) AS name
    FROM schema s
    JOIN pg_catalog.pg_class o ON o.relnamespace = $1 AND o.relkind IN ('r', 'p', 'v', 'm', 'S')
    JOIN pg_catalog.pg_class n ON n.relnamespace = $2 AND n.relname = o.relname AND n.relkind IN ('r', 'p', 'v', 'm', 'S')
                              AND (n.relkind = 'S') = (o.relkind = 'S')
),
routine AS (
    SELECT o.proacl AS acl, o.proowner AS owner, n.proowner AS new_owner,
           pg_catalog.format('%I.%I(%s)', s.name, n.proname, pg_catalog.pg_get_function_identity_arguments(n.oid)) AS name
    FROM schema s
    JOIN pg_catalog.pg_proc o ON o.pronamespace = $1
    JOIN pg_catalog.pg_proc n ON n.pronamespace = $2 AND n.proname = o.proname AND n.proargtypes = o.proargtypes
                             AND n.prokind = o.prokind
),
granted AS (
    SELECT 'SCHEMA' AS kind, pg_catalog.quote_ident(name) AS name, '' AS columns, owner, acl FROM schema
    UNION ALL
    SELECT kind, name, '', owner, acl FROM relation
    UNION ALL
    SELECT 'TABLE', r.name, pg_catalog.format('(%I)', a.attname), r.owner, a.attacl
    FROM relation r
    JOIN pg_catalog.pg_attribute a ON a.attrelid = r.old AND a.attacl IS NOT NULL
    JOIN pg_catalog.pg_attribute b ON b.attrelid = r.new AND b.attname = a.attname AND NOT b.attisdropped
    UNION ALL
    SELECT 'ROUTINE', name, '', owner, acl FROM routine
)
SELECT statement
FROM (
    SELECT 1 AS step, pg_catalog.format('REVOKE EXECUTE ON ROUTINE %s FROM PUBLIC', r.name) AS statement
    FROM routine r
    WHERE r.acl IS NOT NULL AND NOT EXISTS (SELECT FROM pg_catalog.aclexplode(r.acl) a WHERE a.grantee = 0)
    UNION ALL
    SELECT 2, pg_catalog.format('GRANT %s%s ON %s %s TO %s%s', a.privilege_type, g.columns, g.kind, g.name,
                                CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END,
                                CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
    FROM granted g, pg_catalog.aclexplode(g.acl) a
    WHERE a.grantee <> g.owner
    UNION ALL
    SELECT 4, pg_catalog.format('ALTER TABLE %s OWNER TO %I', r.name, pg_catalog.pg_get_userbyid(r.owner))
    FROM relation r
    WHERE r.owner <> r.new_owner
      -- A sequence of a column goes with its table.
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                      WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = r.new AND r.kind = 'SEQUENCE'
                        AND d.deptype IN ('a', 'i'))
    UNION ALL
    SELECT 4, pg_catalog.format('ALTER ROUTINE %s OWNER TO %I', r.name, pg_catalog.pg_get_userbyid(r.owner))
    FROM routine r
    WHERE r.owner <> r.new_owner
    UNION ALL
    -- First, since the owner of a table needs to create in its schema when it becomes one.
    SELECT 3, pg_catalog.format('ALTER SCHEMA %I OWNER TO %I', s.name, pg_catalog.pg_get_userbyid(s.owner))
    FROM schema s
    WHERE s.owner <> s.new_owner
) AS all_of_them
ORDER BY step, statement
