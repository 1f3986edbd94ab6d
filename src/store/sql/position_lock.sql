-- Locks the positions of one topic in order, for an operator action on some of them.
SELECT topic, partition, next_offset, incarnation, topic_id, epoch, in_doubt
FROM tidegate.position
WHERE projection = $1 AND generation = $2 AND topic = $3
ORDER BY topic, partition
FOR UPDATE
