-- Where the gate of an entity stands.
SELECT sequence, previous, parked
FROM _gate
WHERE entity = $1
