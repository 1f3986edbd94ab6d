-- Moves gate rows that this transaction has locked.
UPDATE _gate AS g
SET previous = g.sequence, sequence = m.sequence
FROM (SELECT unnest($1::text[]) AS entity, unnest($2::bigint[]) AS sequence) AS m
WHERE g.entity = m.entity
