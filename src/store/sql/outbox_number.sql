-- Takes the next numbers of streams, sorted, as many as there are messages for each (I5). The counter rows are locked until
-- commit, so numbers are dense and in commit order. Returns each stream's last number.
INSERT INTO tidegate.stream AS s (stream, emitted)
SELECT unnest($1::text[]), unnest($2::bigint[])
ON CONFLICT (stream) DO UPDATE SET emitted = s.emitted + excluded.emitted
RETURNING s.stream, s.emitted
