-- Records a generation; the schema's oid is read from the catalog, so it must exist.
INSERT INTO tidegate.generation (projection, number, state, schema_name, schema_oid, definition, setup)
SELECT $1, $2, 'live', n.nspname, n.oid, $4, $5
FROM pg_catalog.pg_namespace n
WHERE n.nspname = $3
