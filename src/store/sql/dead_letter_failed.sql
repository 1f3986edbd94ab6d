-- A dead letter was tried again and failed again: it keeps its place.
UPDATE tidegate.dead_letter
SET attempts = attempts + 1, tried_at = clock_timestamp(), reason = $2, sqlstate = $3, detail = $4
WHERE number = $1 AND state = 'waiting'
