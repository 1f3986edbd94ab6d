-- Lets halted partitions be tried again: raises their epochs, which their owners notice and claim again. With $3 all
-- partitions, for a pause.
WITH locked AS (
    SELECT topic, partition
    FROM tidegate.position
    WHERE projection = $1 AND generation = $2 AND ($3 OR condition = 'halted')
    ORDER BY topic, partition
    FOR UPDATE
)
UPDATE tidegate.position AS p
SET epoch = p.epoch + 1, claim_token = gen_random_uuid(), owner = '', condition = 'idle', cause = '',
    since = clock_timestamp()
FROM locked l
WHERE p.projection = $1 AND p.generation = $2 AND p.topic = l.topic AND p.partition = l.partition
