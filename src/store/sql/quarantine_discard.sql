-- Gives messages up. Returns how many there were.
UPDATE tidegate.quarantine AS q
SET state = 'discarded', resolved_at = clock_timestamp()
FROM unnest($1::text[], $2::bigint[]) AS n (stream, number)
WHERE q.stream = n.stream AND q.number = n.number AND q.state = 'waiting'
