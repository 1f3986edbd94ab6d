-- Releases messages and all that waits behind them, by topic and key or by topic, in order: what an earlier one still
-- holds, which is not among them, stays. The relay's rows are locked, so that nothing is sent or put in quarantine meanwhile.
WITH named AS (
    SELECT q.stream, q.number, q.holds
    FROM unnest($1::text[], $2::bigint[]) AS n (stream, number)
    JOIN tidegate.quarantine q USING (stream, number)
    WHERE q.state = 'waiting'
),
waiting AS (
    SELECT q.stream, q.number, q.reason, q.holds, sha256(convert_to(o.topic, 'UTF8')) AS topic_hash,
           sha256(convert_to(o.topic, 'UTF8') || '\x00' || o.key) AS key_hash
    FROM tidegate.quarantine q
    JOIN tidegate.outbox o USING (stream, number)
    WHERE q.state = 'waiting' AND q.stream IN (SELECT stream FROM named)
),
candidate AS (
    SELECT w.stream, w.number, w.topic_hash, w.key_hash
    FROM waiting w
    WHERE (w.stream, w.number) IN (SELECT stream, number FROM named)
       OR (w.stream, w.holds) IN (SELECT stream, holds FROM named)
       -- It may have been put behind another one first.
       OR w.reason = 'behind'
          AND ((w.stream, w.topic_hash) IN (SELECT stream, holds FROM named)
               OR (w.stream, w.key_hash) IN (SELECT stream, holds FROM named))
)
UPDATE tidegate.quarantine AS q
SET state = 'released'
FROM candidate c
WHERE q.stream = c.stream AND q.number = c.number
  AND NOT EXISTS (
      SELECT
      FROM tidegate.quarantine w
      WHERE w.stream = c.stream AND w.number < c.number AND w.state = 'waiting'
        AND w.holds IN (c.topic_hash, c.key_hash)
        AND (w.stream, w.number) NOT IN (SELECT stream, number FROM candidate)
  )
