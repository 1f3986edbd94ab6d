-- Those that wait behind some of these, and behind nothing else that could not be sent.
SELECT q.stream, q.number
FROM tidegate.quarantine q
WHERE q.state = 'waiting'
  AND (q.stream, q.holds) IN (
      SELECT d.stream, d.holds
      FROM unnest($1::text[], $2::bigint[]) AS n (stream, number)
      JOIN tidegate.quarantine d USING (stream, number)
  )
  AND NOT EXISTS (
      SELECT
      FROM tidegate.quarantine c
      WHERE c.stream = q.stream AND c.holds = q.holds AND c.state = 'waiting' AND c.reason <> 'behind'
  )
ORDER BY q.stream, q.number
