-- The generations that have a schema beside the live one's: the one that is being built, first, and former ones, the
-- last live first. Of those that were made in one schema, by resets, the last.
SELECT g.number, g.state, g.schema_name, g.schema_oid, g.definition, g.setup, g.statements, g.started_at, g.live_at,
       g.detached, g.trouble, g.left_at,
       CASE WHEN g.declined_at > pg_catalog.clock_timestamp() - interval '30 seconds' THEN g.declined ELSE '' END AS declined
FROM tidegate.generation g
JOIN tidegate.projection p ON p.name = g.projection
JOIN tidegate.generation l ON l.projection = p.name AND l.number = p.live_generation
JOIN pg_catalog.pg_namespace n ON n.oid = g.schema_oid AND n.nspname = g.schema_name
WHERE g.projection = $1 AND g.state IN ('building', 'retired') AND g.schema_oid <> l.schema_oid
  AND NOT EXISTS (SELECT FROM tidegate.generation s
                  WHERE s.projection = g.projection AND s.schema_oid = g.schema_oid AND s.number > g.number)
ORDER BY g.state = 'building' DESC, g.live_at DESC NULLS LAST, g.number DESC
