-- Reads the generation that is being built beside the live one, if it is, and keeps it so until the transaction ends.
-- Waits for an operator action that holds it.
SELECT g.number AS generation, p.desired_state, g.schema_name, g.schema_oid, g.definition, g.setup, g.statements
FROM tidegate.projection p
JOIN tidegate.generation g ON g.projection = p.name AND g.number = $2 AND g.state = 'building'
WHERE p.name = $1
FOR SHARE
