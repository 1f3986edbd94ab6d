-- Resolves released messages that the broker has acknowledged.
UPDATE tidegate.quarantine AS q
SET state = 'sent', resolved_at = clock_timestamp()
FROM unnest($1::text[], $2::bigint[]) AS s (stream, number)
WHERE q.stream = s.stream AND q.number = s.number AND q.state = 'released'
