-- Says what a generation is from now on; its positions and totals stay. Runs with the projection's row locked.
UPDATE tidegate.generation
SET state = $3, live_at = CASE WHEN $3 = 'live' THEN clock_timestamp() ELSE live_at END,
    detached = NULL, trouble = ''
WHERE projection = $1 AND number = $2
