-- How many records of each of these entities wait.
SELECT entity, count(*)
FROM tidegate.dead_letter
WHERE projection = $1 AND generation = $2 AND state = 'waiting' AND entity = ANY ($3::text[])
GROUP BY entity
