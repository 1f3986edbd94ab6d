-- How many records of an entity wait before one of them.
SELECT count(*)
FROM tidegate.dead_letter
WHERE projection = $1 AND generation = $2 AND entity = $3 AND state = 'waiting' AND number < $4
