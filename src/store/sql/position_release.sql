-- Says that nobody works on these partitions now. Only their newest owner may say so, and the fence stays as it is.
-- What halted a partition stays readable until somebody claims it again.
UPDATE tidegate.position AS p
SET owner = '',
    condition = CASE WHEN p.condition = 'halted' THEN 'halted' ELSE 'idle' END,
    cause = CASE WHEN p.condition = 'halted' THEN p.cause ELSE '' END,
    since = CASE WHEN p.condition = 'halted' THEN p.since ELSE clock_timestamp() END
FROM unnest($3::text[], $4::integer[], $5::bigint[], $6::uuid[]) AS b (topic, partition, epoch, claim_token)
WHERE p.projection = $1 AND p.generation = $2 AND p.topic = b.topic AND p.partition = b.partition
  AND p.epoch = b.epoch AND p.claim_token = b.claim_token
