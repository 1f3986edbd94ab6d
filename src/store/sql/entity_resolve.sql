-- Resolves the letters of entity $4 in the live generation $2 whose records the build $3 has passed, and neither
-- parked nor skipped, and returns these records.
UPDATE tidegate.dead_letter AS d
SET state = 'applied', resolved_at = clock_timestamp(), tried_at = clock_timestamp(), attempts = d.attempts + 1
FROM tidegate.position q
WHERE d.projection = $1 AND d.generation = $2 AND d.entity = $4 AND d.state = 'waiting'
  AND q.projection = $1 AND q.generation = $3 AND q.topic = d.topic AND q.partition = d.partition
  AND q.incarnation = d.incarnation AND d.record_offset >= coalesce(q.first_offset, 0) AND d.record_offset < q.next_offset
  AND NOT EXISTS (SELECT FROM tidegate.dead_letter b
                  WHERE b.projection = $1 AND b.generation = $3 AND b.state = 'waiting' AND b.topic = d.topic
                    AND b.incarnation = d.incarnation AND b.partition = d.partition AND b.record_offset = d.record_offset)
  AND NOT EXISTS (SELECT FROM tidegate.skipped s
                  WHERE s.projection = $1 AND s.generation = $3 AND s.topic = d.topic AND s.incarnation = d.incarnation
                    AND s.partition = d.partition AND s.from_offset <= d.record_offset AND s.to_offset > d.record_offset)
RETURNING d.topic, d.incarnation, d.partition, d.record_offset
