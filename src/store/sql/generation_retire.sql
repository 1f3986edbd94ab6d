-- Ends a live generation; its positions and totals stay as history.
UPDATE tidegate.generation
SET state = 'retired'
WHERE projection = $1 AND number = $2 AND state = 'live'
