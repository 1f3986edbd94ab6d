-- Makes another generation the live one. Runs with the row locked.
UPDATE tidegate.projection
SET live_generation = $2
WHERE name = $1
