-- Makes a relay row for every stream that has none.
INSERT INTO tidegate.relay (stream)
SELECT s.stream
FROM tidegate.stream s
WHERE NOT EXISTS (SELECT FROM tidegate.relay r WHERE r.stream = s.stream)
ON CONFLICT (stream) DO NOTHING
