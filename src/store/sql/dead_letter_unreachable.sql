-- How many waiting dead letters of generation $2 a generation does not meet that begins at the offsets given, each in one
-- log of its partition ($3 topics, $4 partitions, $5 incarnations, $6 offsets); with $7, all letters of these topics,
-- whose records may be gone from the middle of their logs; with $8, of one entity; with $9, also what that generation has
-- left out by a skip.
SELECT count(*)
FROM tidegate.dead_letter d
WHERE d.projection = $1 AND d.generation = $2 AND d.state = 'waiting'
  AND ($8::text IS NULL OR d.entity = $8)
  AND (d.topic = ANY ($7::text[])
       OR NOT EXISTS (
           SELECT
           FROM unnest($3::text[], $4::integer[], $5::integer[], $6::bigint[]) AS p (topic, partition, incarnation, first)
           WHERE p.topic = d.topic AND p.partition = d.partition AND p.incarnation = d.incarnation
             AND p.first <= d.record_offset)
       OR EXISTS (
           SELECT
           FROM tidegate.skipped s
           WHERE s.projection = $1 AND s.generation = $9::integer AND s.topic = d.topic AND s.partition = d.partition
             AND s.incarnation = d.incarnation AND s.from_offset <= d.record_offset AND s.to_offset > d.record_offset))
