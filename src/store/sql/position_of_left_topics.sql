-- Where topics stood that a projection has read, and generation $2 does not: each partition as the newest log of its topic was
-- read, by the generation that was live last.
SELECT DISTINCT ON (q.topic, q.partition)
       q.topic, q.partition, q.next_offset, q.incarnation, q.topic_id, q.epoch, q.in_doubt
FROM tidegate.position q
JOIN tidegate.generation g ON g.projection = q.projection AND g.number = q.generation
WHERE q.projection = $1
  AND NOT EXISTS (SELECT FROM tidegate.position l
                  WHERE l.projection = $1 AND l.generation = $2 AND l.topic = q.topic)
  AND q.incarnation = (SELECT max(n.incarnation) FROM tidegate.position n WHERE n.projection = $1 AND n.topic = q.topic)
ORDER BY q.topic, q.partition, g.live_at DESC NULLS LAST, q.generation DESC
