-- Locks a generation's positions in order, raises their epochs and returns where they stood: from here on no batch of
-- an older claim can commit.
WITH locked AS (
    SELECT topic, partition
    FROM tidegate.position
    WHERE projection = $1 AND generation = $2
    ORDER BY topic, partition
    FOR UPDATE
)
UPDATE tidegate.position AS p
SET epoch = p.epoch + 1, claim_token = gen_random_uuid(), owner = '', condition = 'idle', cause = '',
    since = clock_timestamp()
FROM locked l
WHERE p.projection = $1 AND p.generation = $2 AND p.topic = l.topic AND p.partition = l.partition
RETURNING p.topic, p.partition, p.next_offset, p.incarnation, p.topic_id, p.epoch, p.in_doubt
