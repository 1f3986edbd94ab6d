-- Where the gates of some entities stand, without a lock.
SELECT entity, sequence, previous, parked
FROM _gate
WHERE entity = ANY ($1::text[])
