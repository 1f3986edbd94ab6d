-- Moves one position by hand, with the row locked, and fences its owner. The last applied record says nothing about what
-- comes now.
UPDATE tidegate.position
SET next_offset = $5, first_offset = CASE WHEN incarnation = $6 THEN first_offset ELSE $5 END, incarnation = $6,
    topic_id = $7, anchor_offset = NULL, anchor_digest = NULL, batch_id = NULL,
    in_doubt = false,
    epoch = epoch + 1, claim_token = gen_random_uuid(), owner = '', condition = 'idle', cause = '',
    since = clock_timestamp()
WHERE projection = $1 AND generation = $2 AND topic = $3 AND partition = $4
