-- Gate `none`: which of these entities have parked records, with their rows locked, in order.
SELECT entity
FROM _gate
WHERE parked AND entity = ANY ($1::text[])
ORDER BY entity
FOR UPDATE
