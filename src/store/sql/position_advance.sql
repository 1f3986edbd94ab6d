-- Moves the positions of a batch: a compare-and-set, and the last statement of its transaction (I1, I2, I3).
-- A row moves only if the claim is the newest (epoch and token), the batch begins where the position stands, the
-- generation's schema is still the one it was made in, and this is still the transaction that BEGIN opened (a handler
-- that ran COMMIT is in another one). The caller sends COMMIT only if as many rows moved as the batch has partitions.
-- Rows are locked in the order of topic and partition, the same for everybody.
WITH batch AS (
    SELECT * FROM unnest($4::text[], $5::integer[], $6::bigint[], $7::uuid[], $8::bigint[], $9::bigint[],
                         $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
                         $18::bigint[], $19::uuid[], $20::bigint[])
        AS b (topic, partition, epoch, claim_token, from_offset, to_offset, consumed, applied, stale, duplicate, filtered,
              anchor_offset, anchor_digest, parked)
),
locked AS (
    SELECT b.*
    FROM tidegate.position p
    JOIN batch b ON b.topic = p.topic AND b.partition = p.partition
    WHERE p.projection = $1 AND p.generation = $2
      AND p.epoch = b.epoch AND p.claim_token = b.claim_token AND p.next_offset = b.from_offset
    ORDER BY p.topic, p.partition
    FOR UPDATE OF p
)
UPDATE tidegate.position AS p
SET next_offset = b.to_offset, batch_id = $3, in_doubt = false,
    anchor_offset = coalesce(b.anchor_offset, p.anchor_offset), anchor_digest = coalesce(b.anchor_digest, p.anchor_digest),
    consumed = p.consumed + b.consumed,
    applied = p.applied + b.applied, stale = p.stale + b.stale,
    duplicate = p.duplicate + b.duplicate, filtered = p.filtered + b.filtered, parked = p.parked + b.parked
FROM locked b
WHERE p.projection = $1 AND p.generation = $2 AND p.topic = b.topic AND p.partition = b.partition
  AND p.epoch = b.epoch AND p.claim_token = b.claim_token AND p.next_offset = b.from_offset
  AND b.to_offset > b.from_offset
  AND pg_catalog.pg_current_xact_id()::text = $15
  AND (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = $16) = $17
