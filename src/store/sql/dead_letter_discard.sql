-- Gives up dead letters, with their entities' gate rows locked. Returns what is needed to move the gates.
UPDATE tidegate.dead_letter
SET state = 'discarded', resolved_at = clock_timestamp()
WHERE projection = $1 AND generation = $2 AND state = 'waiting' AND number = ANY ($3::bigint[])
RETURNING topic, incarnation, partition, record_offset, entity, sequence
