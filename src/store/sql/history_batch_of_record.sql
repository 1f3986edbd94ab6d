-- The batch that took a record, in some generations, each with the topic's incarnation that it read. One that is about to
-- be forgotten is left out: what it dropped may be forgotten already.
SELECT b.generation, b.from_offset, b.to_offset, b.records, b.batch_id, b.at
FROM unnest($2::integer[], $3::integer[]) AS g (generation, incarnation)
CROSS JOIN LATERAL (
    SELECT *
    FROM tidegate.history_batch h
    WHERE h.projection = $1 AND h.generation = g.generation AND h.topic = $4 AND h.incarnation = g.incarnation
      AND h.partition = $5 AND h.from_offset <= $6
    ORDER BY h.from_offset DESC
    LIMIT 1
) AS b
WHERE b.to_offset > $6 AND b.keep_until > now() + interval '1 minute'
ORDER BY b.generation DESC
