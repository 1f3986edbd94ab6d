-- What a generation has read and passed has spent its right to emit, but for what waits there as a dead letter (I5). Runs when that
-- generation becomes the live one, after what it had kept back is in the outbox.
DELETE FROM tidegate.unemitted u
USING tidegate.position q
WHERE u.projection = $1 AND q.projection = $1 AND q.generation = $2 AND q.topic = u.topic AND q.partition = u.partition
  AND q.incarnation = u.incarnation AND u.record_offset >= coalesce(q.first_offset, 0) AND u.record_offset < q.next_offset
  AND NOT EXISTS (
      SELECT FROM tidegate.dead_letter d
      WHERE d.projection = $1 AND d.generation = $2 AND d.state = 'waiting' AND d.topic = u.topic
        AND d.incarnation = u.incarnation AND d.partition = u.partition AND d.record_offset = u.record_offset)
