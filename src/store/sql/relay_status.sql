-- How far each stream is numbered and sent. One without a relay row has not been met by a relay yet.
SELECT s.stream, s.emitted, coalesce(r.sent_through, 0) AS sent_through, coalesce(r.owner, '') AS owner,
       coalesce(r.last_error, '') AS last_error
FROM tidegate.stream s
LEFT JOIN tidegate.relay r USING (stream)
ORDER BY s.stream
