-- Numbers and stores the messages of a batch (I5). The stream's counter row is locked until commit, so numbers are
-- dense and in commit order; messages come in order within their stream. Returns how many were stored.
WITH message AS (
    SELECT *
    FROM unnest($1::text[], $2::uuid[], $3::text[], $4::bytea[], $5::bytea[], $6::text[], $7::text[], $8::timestamptz[],
                $9::jsonb[], $10::integer[])
        WITH ORDINALITY AS m (stream, id, topic, key, payload, type, source, occurred_at, headers, partition, place)
),
counter AS (
    INSERT INTO tidegate.stream AS s (stream, emitted)
    SELECT stream, count(*) FROM message GROUP BY stream ORDER BY stream
    ON CONFLICT (stream) DO UPDATE SET emitted = s.emitted + excluded.emitted
    RETURNING s.stream, s.emitted
)
INSERT INTO tidegate.outbox (stream, number, id, topic, key, payload, type, source, occurred_at, header_names,
                             header_values, partition)
SELECT m.stream,
       c.emitted - count(*) OVER (PARTITION BY m.stream) + row_number() OVER (PARTITION BY m.stream ORDER BY m.place),
       m.id, m.topic, m.key, m.payload, m.type, m.source, m.occurred_at,
       ARRAY(SELECT h ->> 0 FROM jsonb_array_elements(m.headers) WITH ORDINALITY AS t (h, n) ORDER BY n),
       ARRAY(SELECT decode(h ->> 1, 'hex') FROM jsonb_array_elements(m.headers) WITH ORDINALITY AS t (h, n) ORDER BY n),
       m.partition
FROM message m
JOIN counter c USING (stream)
