-- Takes ownership of one partition of a generation.
-- Waits for a straggler's open transaction (row lock), so the position returned already contains its work. From the
-- moment this commits every position statement that carries an older epoch or another token matches no row (I3).
-- `batch_id` is the last committed batch: a lost answer to COMMIT is settled by it. A topic's id is learnt by the first
-- claim that knows it; from then on whoever meets another one does not apply.
UPDATE tidegate.position AS p
SET epoch = p.epoch + 1, claim_token = gen_random_uuid(), owner = $5, topic_id = coalesce(p.topic_id, $6),
    condition = 'running', cause = '', since = clock_timestamp()
WHERE p.projection = $1 AND p.generation = $2 AND p.topic = $3 AND p.partition = $4
RETURNING p.next_offset, p.epoch, p.claim_token, p.incarnation, p.topic_id, p.batch_id, p.anchor_offset, p.anchor_digest,
          coalesce((SELECT e.emitted_through FROM tidegate.emission e
                    WHERE e.projection = p.projection AND e.topic = p.topic AND e.incarnation = p.incarnation
                      AND e.partition = p.partition), 0) AS emitted_through
