-- Reads the positions of a generation, to name why a batch was refused and to notice a fence while idle.
SELECT topic, partition, next_offset, epoch, claim_token, owner, batch_id
FROM tidegate.position
WHERE projection = $1 AND generation = $2
ORDER BY topic, partition
