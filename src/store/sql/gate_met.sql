-- The gate in the row: which of these entities have a row here all the same, since records of them were parked. None can
-- be added until this transaction ends: whoever adds one has the generation to itself. Mostly there is none at all, and
-- then none is looked for.
SELECT entity
FROM _gate
WHERE (SELECT EXISTS (SELECT FROM _gate)) AND entity = ANY ($1::text[])
