-- What `verify` holds the streams to: the counter, the cursor, how far messages were removed, and the rows that are kept
-- behind and before that. Reads the whole outbox.
SELECT s.stream, s.emitted, r.sent_through, r.removed_through,
       count(o.number) FILTER (WHERE o.number > r.removed_through) AS kept,
       count(o.number) FILTER (WHERE o.number <= r.removed_through) AS kept_before,
       coalesce(max(o.number), 0) AS highest,
       (SELECT count(*) FROM tidegate.quarantine q
        WHERE q.stream = s.stream AND q.number <= r.removed_through) AS quarantined_before
FROM tidegate.stream s
JOIN tidegate.relay r USING (stream)
LEFT JOIN tidegate.outbox o USING (stream)
GROUP BY s.stream, s.emitted, r.sent_through, r.removed_through
ORDER BY s.stream
