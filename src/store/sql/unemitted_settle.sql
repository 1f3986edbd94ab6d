-- What a generation has read and passed has spent its right to emit, but for what waits there as a dead letter (I5). Runs when that
-- generation becomes the live one, after what it had kept back is in the outbox.
WITH passed AS (
    SELECT q.topic, q.incarnation, q.partition, coalesce(q.first_offset, 0) AS from_offset, q.next_offset AS to_offset
    FROM tidegate.position q
    WHERE q.projection = $1 AND q.generation = $2
),
met AS (
    DELETE FROM tidegate.unemitted u
    USING passed s
    WHERE u.projection = $1 AND s.topic = u.topic AND s.incarnation = u.incarnation AND s.partition = u.partition
      AND u.from_offset < s.to_offset AND u.to_offset > s.from_offset
    RETURNING u.topic, u.incarnation, u.partition, u.from_offset, u.to_offset,
              s.from_offset AS spent_from, s.to_offset AS spent_to
)
INSERT INTO tidegate.unemitted (projection, topic, incarnation, partition, from_offset, to_offset)
SELECT $1, m.topic, m.incarnation, m.partition, m.from_offset, m.spent_from
FROM met m
WHERE m.from_offset < m.spent_from
UNION ALL
SELECT $1, m.topic, m.incarnation, m.partition, m.spent_to, m.to_offset
FROM met m
WHERE m.spent_to < m.to_offset
UNION ALL
SELECT $1, m.topic, m.incarnation, m.partition, d.record_offset, d.record_offset + 1
FROM met m
JOIN tidegate.dead_letter d ON d.projection = $1 AND d.generation = $2 AND d.state = 'waiting' AND d.topic = m.topic
    AND d.incarnation = m.incarnation AND d.partition = m.partition
    AND d.record_offset >= greatest(m.from_offset, m.spent_from) AND d.record_offset < least(m.to_offset, m.spent_to)
