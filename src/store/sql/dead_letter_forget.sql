-- Forgets the dead letters of a generation that is given up and never was live: its records are another one's.
DELETE FROM tidegate.dead_letter
WHERE projection = $1 AND generation = $2
