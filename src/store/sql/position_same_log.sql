-- Takes a topic for the same log in generations beside the live one too, where they have read what that has read, and fences
-- whoever builds one.
WITH locked AS (
    SELECT generation, partition
    FROM tidegate.position
    WHERE projection = $1 AND generation = ANY ($2) AND topic = $3 AND incarnation = $4
    ORDER BY generation, partition
    FOR UPDATE
)
UPDATE tidegate.position AS p
SET topic_id = $5, anchor_offset = NULL, anchor_digest = NULL, batch_id = NULL, in_doubt = false,
    epoch = p.epoch + 1, claim_token = gen_random_uuid(), owner = '', condition = 'idle', cause = '',
    since = clock_timestamp()
FROM locked l
WHERE p.projection = $1 AND p.generation = l.generation AND p.topic = $3 AND p.partition = l.partition
