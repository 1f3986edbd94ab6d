-- Records on which the live generation $2 and a build $3 of entity $4 do not agree: the build cannot apply one that is applied
-- there, or only one of them has its entity; it has applied one that was given up, or, with $5, one that would be applied again
-- because nothing there says whose it is; it was made to skip some.
SELECT pg_catalog.format('%s[%s]@%s cannot be applied: %s', b.topic, b.partition, b.record_offset, b.detail)
FROM tidegate.dead_letter b
WHERE b.projection = $1 AND b.generation = $3 AND b.state = 'waiting'
  AND NOT EXISTS (SELECT FROM tidegate.dead_letter d
                  WHERE d.projection = $1 AND d.generation = $2 AND d.state IN ('waiting', 'discarded') AND d.topic = b.topic
                    AND d.incarnation = b.incarnation AND d.partition = b.partition AND d.record_offset = b.record_offset
                    AND d.entity IS NOT DISTINCT FROM b.entity)
  AND NOT EXISTS (SELECT FROM tidegate.skipped s
                  WHERE s.projection = $1 AND s.generation = $2 AND s.topic = b.topic AND s.incarnation = b.incarnation
                    AND s.partition = b.partition AND s.from_offset <= b.record_offset AND s.to_offset > b.record_offset)
UNION ALL
SELECT pg_catalog.format(CASE d.state WHEN 'discarded' THEN '%s[%s]@%s was given up by an operator'
                                      ELSE '%s[%s]@%s waits, and nothing says of which entity: redrive or discard it first' END,
                         d.topic, d.partition, d.record_offset)
FROM tidegate.dead_letter d
JOIN tidegate.position q ON q.projection = $1 AND q.generation = $3 AND q.topic = d.topic AND q.partition = d.partition
    AND q.incarnation = d.incarnation AND d.record_offset >= coalesce(q.first_offset, 0)
WHERE d.projection = $1 AND d.generation = $2
  AND (d.state = 'discarded' AND d.entity = $4
       OR (d.state = 'discarded' OR d.state = 'waiting' AND $5) AND d.entity IS NULL
          AND NOT EXISTS (SELECT FROM tidegate.dead_letter b
                          WHERE b.projection = $1 AND b.generation = $3 AND b.state = 'waiting' AND b.topic = d.topic
                            AND b.incarnation = d.incarnation AND b.partition = d.partition
                            AND b.record_offset = d.record_offset))
UNION ALL
SELECT pg_catalog.format('%s[%s]@%s up to %s were skipped in the build alone', s.topic, s.partition, s.from_offset, s.to_offset)
FROM tidegate.skipped s
WHERE s.projection = $1 AND s.generation = $3
  AND NOT EXISTS (SELECT FROM tidegate.skipped l
                  WHERE l.projection = $1 AND l.generation = $2 AND l.topic = s.topic AND l.incarnation = s.incarnation
                    AND l.partition = s.partition AND l.from_offset <= s.from_offset AND l.to_offset >= s.to_offset)
ORDER BY 1
LIMIT 3
