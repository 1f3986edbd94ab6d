-- The lowest sequence that waits beyond a gap of an entity.
SELECT min(sequence)
FROM tidegate.dead_letter
WHERE projection = $1 AND generation = $2 AND state = 'waiting' AND entity = $3 AND sequence > $4
