-- Follows a schema that was renamed, for all generations that were made in it. Runs with the projection's row locked.
UPDATE tidegate.generation
SET schema_name = $3
WHERE projection = $1 AND schema_oid = $2
