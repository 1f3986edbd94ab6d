-- Clears the bytes of dead letters that were resolved longer ago than $1 milliseconds, of $2 of them at most. One that waits
-- keeps its bytes, and every one its row (I6).
UPDATE tidegate.dead_letter
SET key = NULL, value = NULL, header_names = '{}', header_values = '{}', detail = '', cleared_at = clock_timestamp()
WHERE number = ANY (ARRAY(
    SELECT number
    FROM tidegate.dead_letter
    WHERE state <> 'waiting' AND cleared_at IS NULL AND resolved_at < now() - $1 * interval '1 millisecond'
    ORDER BY resolved_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED))
