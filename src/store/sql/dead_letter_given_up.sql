-- Sequences of some entities that were given up: gate `next` passes over them when their turn comes.
SELECT entity, sequence
FROM tidegate.dead_letter
WHERE projection = $1 AND generation = $2 AND state = 'discarded' AND entity = ANY ($3::text[]) AND sequence IS NOT NULL
