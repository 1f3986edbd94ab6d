-- Reads a projection with its live generation, and keeps that from changing. Runs with the projection's row locked.
SELECT g.number AS generation, p.desired_state, g.schema_name, g.schema_oid, g.definition, g.setup, g.statements
FROM tidegate.projection p
JOIN tidegate.generation g ON g.projection = p.name AND g.number = p.live_generation
WHERE p.name = $1
FOR SHARE OF g
