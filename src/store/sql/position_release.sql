-- Says that nobody works on these partitions now. Only their newest owner may say so, and the fence stays as it is.
UPDATE tidegate.position AS p
SET owner = '', condition = 'idle', cause = '', since = clock_timestamp()
FROM unnest($3::text[], $4::integer[], $5::bigint[], $6::uuid[]) AS b (topic, partition, epoch, claim_token)
WHERE p.projection = $1 AND p.generation = $2 AND p.topic = b.topic AND p.partition = b.partition
  AND p.epoch = b.epoch AND p.claim_token = b.claim_token
