-- Records a generation with the next free number, live or (with $2 false) building; the schema's oid is read from the
-- catalog, so it must exist. Runs with the projection's row locked, or under the exclusive generation lock of a first start.
INSERT INTO tidegate.generation (projection, number, state, schema_name, schema_oid, definition, setup, statements, live_at)
SELECT $1, coalesce((SELECT max(g.number) FROM tidegate.generation g WHERE g.projection = $1), 0) + 1,
       CASE WHEN $2 THEN 'live' ELSE 'building' END, n.nspname, n.oid, $4, $5, $6,
       CASE WHEN $2 THEN clock_timestamp() END
FROM pg_catalog.pg_namespace n
WHERE n.nspname = $3
RETURNING number
