-- Reads a projection with its live generation and the last operator action on it.
SELECT g.number AS generation, p.desired_state, g.schema_name, g.schema_oid, g.definition, g.setup, g.statements,
       coalesce((SELECT o.kind || ' ' || o.id FROM tidegate.operation o
                 WHERE o.projection = p.name ORDER BY o.at DESC LIMIT 1), '') AS last_operation
FROM tidegate.projection p
JOIN tidegate.generation g ON g.projection = p.name AND g.number = p.live_generation
WHERE p.name = $1
