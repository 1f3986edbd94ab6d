-- Where some generations of a projection stand, for a rebuild. One that looks again by itself is halted for a moment only.
SELECT q.generation, q.topic, q.partition, q.next_offset, q.first_offset, q.incarnation, q.first_incarnation, q.topic_id, q.in_doubt, q.consumed,
       q.parked, q.cause, q.condition = 'halted' AND q.since < clock_timestamp() - interval '10 seconds' AS halted
FROM tidegate.position q
WHERE q.projection = $1 AND q.generation = ANY ($2)
ORDER BY q.topic, q.partition
