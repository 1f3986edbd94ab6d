-- Keeps a projection from changing until a claim commits. Waits for an operator action that holds it FOR UPDATE; read
-- by a statement of its own, as when it is locked.
SELECT name
FROM tidegate.projection
WHERE name = $1
FOR SHARE
