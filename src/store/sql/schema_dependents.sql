-- What outside of a schema depends on something in it: views, foreign keys, functions, publications. They are bound by oid
-- and would stay with the old tables.
WITH mine AS (
    SELECT 'pg_catalog.pg_class'::regclass AS class, c.oid FROM pg_catalog.pg_class c WHERE c.relnamespace = $1
    UNION ALL
    SELECT 'pg_catalog.pg_type'::regclass, t.oid FROM pg_catalog.pg_type t WHERE t.typnamespace = $1
    UNION ALL
    SELECT 'pg_catalog.pg_proc'::regclass, p.oid FROM pg_catalog.pg_proc p WHERE p.pronamespace = $1
    UNION ALL
    SELECT 'pg_catalog.pg_namespace'::regclass, $1
),
dependent AS (
    SELECT d.classid, d.objid, d.objsubid, m.class AS of_class,
           CASE d.classid
               WHEN 'pg_catalog.pg_class'::regclass THEN (SELECT c.relnamespace FROM pg_catalog.pg_class c WHERE c.oid = d.objid)
               WHEN 'pg_catalog.pg_type'::regclass THEN (SELECT t.typnamespace FROM pg_catalog.pg_type t WHERE t.oid = d.objid)
               WHEN 'pg_catalog.pg_proc'::regclass THEN (SELECT p.pronamespace FROM pg_catalog.pg_proc p WHERE p.oid = d.objid)
               WHEN 'pg_catalog.pg_constraint'::regclass
                   THEN (SELECT k.connamespace FROM pg_catalog.pg_constraint k WHERE k.oid = d.objid)
               WHEN 'pg_catalog.pg_statistic_ext'::regclass
                   THEN (SELECT x.stxnamespace FROM pg_catalog.pg_statistic_ext x WHERE x.oid = d.objid)
               ELSE (SELECT c.relnamespace FROM pg_catalog.pg_class c WHERE c.oid = coalesce(
                   (SELECT r.ev_class FROM pg_catalog.pg_rewrite r WHERE d.classid = 'pg_catalog.pg_rewrite'::regclass AND r.oid = d.objid),
                   (SELECT t.tgrelid FROM pg_catalog.pg_trigger t WHERE d.classid = 'pg_catalog.pg_trigger'::regclass AND t.oid = d.objid),
                   (SELECT a.adrelid FROM pg_catalog.pg_attrdef a WHERE d.classid = 'pg_catalog.pg_attrdef'::regclass AND a.oid = d.objid),
                   (SELECT p.polrelid FROM pg_catalog.pg_policy p WHERE d.classid = 'pg_catalog.pg_policy'::regclass AND p.oid = d.objid)))
           END AS namespace
    FROM pg_catalog.pg_depend d
    JOIN mine m ON m.class = d.refclassid AND m.oid = d.refobjid
)
SELECT DISTINCT pg_catalog.pg_describe_object(d.classid, d.objid, 0)
FROM dependent d
WHERE d.namespace IS DISTINCT FROM $1
  AND d.namespace IS DISTINCT FROM 'pg_toast'::regnamespace
  -- Default privileges of the schema are in nobody's way.
  AND d.classid <> 'pg_catalog.pg_default_acl'::regclass
ORDER BY 1
