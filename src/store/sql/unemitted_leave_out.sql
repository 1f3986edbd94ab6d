-- Keeps the right to emit of records that a live generation leaves out by beginning behind them, as far as none has passed
-- them: a later one may come back to them (I5). Runs once `emitted_through` is raised.
INSERT INTO tidegate.unemitted (projection, topic, incarnation, partition, from_offset, to_offset)
SELECT $1, p.topic, p.incarnation, p.partition, greatest(e.emitted_through, p.low), p.next_offset
FROM unnest($2::text[], $3::integer[], $4::integer[], $5::bigint[], $6::bigint[])
    AS p (topic, incarnation, partition, low, next_offset)
LEFT JOIN tidegate.emission e
    ON e.projection = $1 AND e.topic = p.topic AND e.incarnation = p.incarnation AND e.partition = p.partition
WHERE p.next_offset > greatest(e.emitted_through, p.low)
