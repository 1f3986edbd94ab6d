-- How many records of an entity wait before one of them, by number, or with $5 (gate `next`) by sequence.
SELECT count(*)
FROM tidegate.dead_letter
WHERE projection = $1 AND generation = $2 AND entity = $3 AND state = 'waiting'
  AND CASE WHEN $5::bigint IS NULL THEN number < $4 ELSE (sequence, number) < ($5, $4) END
