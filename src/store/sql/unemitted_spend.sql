-- Spends the right to emit of the records in some ranges, which do not overlap, and returns those that had it, as ranges
-- (I5). What reaches beyond stays.
WITH asked AS (
    SELECT s.topic, s.incarnation, s.partition, s.from_offset, s.to_offset
    FROM unnest($2::text[], $3::integer[], $4::integer[], $5::bigint[], $6::bigint[])
        AS s (topic, incarnation, partition, from_offset, to_offset)
),
met AS (
    DELETE FROM tidegate.unemitted u
    WHERE u.projection = $1
      AND EXISTS (SELECT FROM asked s
                  WHERE s.topic = u.topic AND s.incarnation = u.incarnation AND s.partition = u.partition
                    AND u.from_offset < s.to_offset AND u.to_offset > s.from_offset)
    RETURNING u.topic, u.incarnation, u.partition, u.from_offset, u.to_offset
),
spent AS (
    SELECT m.topic, m.incarnation, m.partition, m.from_offset AS of_offset, m.to_offset AS of_end,
           greatest(m.from_offset, s.from_offset) AS from_offset, least(m.to_offset, s.to_offset) AS to_offset
    FROM met m
    JOIN asked s ON s.topic = m.topic AND s.incarnation = m.incarnation AND s.partition = m.partition
                AND m.from_offset < s.to_offset AND m.to_offset > s.from_offset
),
-- What lies before each piece that is spent, and behind the last one.
left_over AS (
    SELECT p.topic, p.incarnation, p.partition,
           coalesce(lag(p.to_offset) OVER (PARTITION BY p.topic, p.incarnation, p.partition, p.of_offset ORDER BY p.from_offset),
                    p.of_offset) AS from_offset,
           p.from_offset AS to_offset
    FROM spent p
    UNION ALL
    SELECT p.topic, p.incarnation, p.partition, max(p.to_offset), p.of_end
    FROM spent p
    GROUP BY p.topic, p.incarnation, p.partition, p.of_offset, p.of_end
),
kept AS (
    INSERT INTO tidegate.unemitted (projection, topic, incarnation, partition, from_offset, to_offset)
    SELECT $1, l.topic, l.incarnation, l.partition, l.from_offset, l.to_offset
    FROM left_over l
    WHERE l.from_offset < l.to_offset
)
SELECT p.topic, p.incarnation, p.partition, p.from_offset, p.to_offset
FROM spent p
