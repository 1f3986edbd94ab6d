-- Leaves a build to the processes of the service, with what they are to do, or with null takes it from them. What was in
-- its way is to be tried again. Runs with the projection's row locked, or with the lock of whoever builds.
UPDATE tidegate.generation
SET detached = $3::text, trouble = '', left_at = CASE WHEN $3::text IS NOT NULL THEN pg_catalog.clock_timestamp() END, declined = ''
WHERE projection = $1 AND number = $2 AND state = 'building'
