-- Records on which the live generation $2 and a build $3 of entity $4 do not agree: the build cannot apply one that is applied
-- there, or has applied one that was given up.
SELECT pg_catalog.format('%s[%s]@%s cannot be applied: %s', b.topic, b.partition, b.record_offset, b.detail)
FROM tidegate.dead_letter b
WHERE b.projection = $1 AND b.generation = $3 AND b.state = 'waiting'
  AND NOT EXISTS (SELECT FROM tidegate.dead_letter d
                  WHERE d.projection = $1 AND d.generation = $2 AND d.state = 'waiting' AND d.topic = b.topic
                    AND d.incarnation = b.incarnation AND d.partition = b.partition AND d.record_offset = b.record_offset)
UNION ALL
SELECT pg_catalog.format('%s[%s]@%s was given up by an operator', d.topic, d.partition, d.record_offset)
FROM tidegate.dead_letter d
JOIN tidegate.position q ON q.projection = $1 AND q.generation = $3 AND q.topic = d.topic AND q.partition = d.partition
    AND q.incarnation = d.incarnation AND d.record_offset >= coalesce(q.first_offset, 0)
WHERE d.projection = $1 AND d.generation = $2 AND d.entity = $4 AND d.state = 'discarded'
ORDER BY 1
LIMIT 3
