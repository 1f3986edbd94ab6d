-- How far each stream is numbered and sent. One without a relay row has not been met by a relay yet.
SELECT s.stream, s.emitted, coalesce(r.sent_through, 0) AS sent_through, coalesce(r.owner, '') AS owner,
       coalesce(r.last_error, '') AS last_error, counted.kept, counted.highest
FROM tidegate.stream s
LEFT JOIN tidegate.relay r USING (stream)
CROSS JOIN LATERAL (
    SELECT count(*) AS kept, coalesce(max(o.number), 0) AS highest FROM tidegate.outbox o WHERE o.stream = s.stream
) AS counted
ORDER BY s.stream
