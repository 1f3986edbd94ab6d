-- The number that the next generation of a projection will have.
SELECT coalesce(max(number), 0) + 1
FROM tidegate.generation
WHERE projection = $1
