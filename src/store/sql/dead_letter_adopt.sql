-- Gives waiting letters the entities that could not be read before: from now on they wait in those entities' queues.
UPDATE tidegate.dead_letter AS d
SET entity = a.entity, sequence = a.sequence, reason = a.reason, detail = a.detail
FROM (SELECT unnest($1::bigint[]) AS number, unnest($2::text[]) AS entity, unnest($3::bigint[]) AS sequence,
             unnest($4::text[]) AS reason, unnest($5::text[]) AS detail) AS a
WHERE d.number = a.number AND d.state = 'waiting' AND d.entity IS NULL
