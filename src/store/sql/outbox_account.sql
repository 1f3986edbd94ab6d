-- What `verify` holds the streams to: the counter, the rows that are kept, and the cursor. Reads the whole outbox.
SELECT s.stream, s.emitted, coalesce(r.sent_through, 0) AS sent_through, count(o.number) AS kept,
       coalesce(min(o.number), 0) AS lowest, coalesce(max(o.number), 0) AS highest
FROM tidegate.stream s
LEFT JOIN tidegate.relay r USING (stream)
LEFT JOIN tidegate.outbox o USING (stream)
GROUP BY s.stream, s.emitted, r.sent_through
ORDER BY s.stream
