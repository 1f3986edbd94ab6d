-- Moves and marks gate rows that this transaction has locked.
UPDATE _gate AS g
SET previous = g.sequence, sequence = m.sequence, parked = m.parked
FROM (SELECT unnest($1::text[]) AS entity, unnest($2::bigint[]) AS sequence, unnest($3::boolean[]) AS parked) AS m
WHERE g.entity = m.entity
