-- Locks a projection for an operator action. Waits for claims that are under way. What the row says is read by a statement
-- of its own, which sees what was waited for: this one would look for the generation that was live when it began.
SELECT name
FROM tidegate.projection
WHERE name = $1
FOR UPDATE
