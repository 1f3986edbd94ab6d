-- Those that waited behind some of these, and wait behind nothing else that could not be sent.
WITH gone AS (
    SELECT d.stream, d.holds
    FROM unnest($1::text[], $2::bigint[]) AS n (stream, number)
    JOIN tidegate.quarantine d USING (stream, number)
),
waiting AS (
    SELECT q.stream, q.number, q.reason, q.holds, sha256(convert_to(o.topic, 'UTF8')) AS topic_hash,
           sha256(convert_to(o.topic, 'UTF8') || '\x00' || o.key) AS key_hash
    FROM tidegate.quarantine q
    JOIN tidegate.outbox o USING (stream, number)
    WHERE q.state = 'waiting' AND q.stream IN (SELECT stream FROM gone)
)
SELECT w.stream, w.number
FROM waiting w
WHERE w.reason = 'behind'
  AND ((w.stream, w.topic_hash) IN (SELECT stream, holds FROM gone)
       OR (w.stream, w.key_hash) IN (SELECT stream, holds FROM gone))
  AND NOT EXISTS (
      SELECT
      FROM waiting c
      WHERE c.stream = w.stream AND c.reason <> 'behind' AND c.holds IN (w.topic_hash, w.key_hash)
  )
ORDER BY w.stream, w.number
