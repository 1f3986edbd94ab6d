-- Writes the positions of some claims as they are, and returns them. Once this has committed, synchronously, they are
-- durable, and so is everything that was committed before (I7).
UPDATE tidegate.position AS p
SET next_offset = p.next_offset
FROM unnest($2::integer[], $3::text[], $4::integer[], $5::bigint[], $6::uuid[])
    AS b (generation, topic, partition, epoch, claim_token)
WHERE p.projection = $1 AND p.generation = b.generation AND p.topic = b.topic AND p.partition = b.partition
  AND p.epoch = b.epoch AND p.claim_token = b.claim_token
RETURNING p.topic, p.partition, p.next_offset
