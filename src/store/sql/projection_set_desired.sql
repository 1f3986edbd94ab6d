-- Says whether a projection is to run. Runs with the row locked.
UPDATE tidegate.projection
SET desired_state = $2
WHERE name = $1
