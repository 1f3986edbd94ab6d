-- Spends the right to emit of the records in some ranges, and returns those that had it (I5).
DELETE FROM tidegate.unemitted AS u
USING unnest($2::text[], $3::integer[], $4::integer[], $5::bigint[], $6::bigint[])
    AS s (topic, incarnation, partition, from_offset, to_offset)
WHERE u.projection = $1 AND u.topic = s.topic AND u.incarnation = s.incarnation AND u.partition = s.partition
  AND u.record_offset >= s.from_offset AND u.record_offset < s.to_offset
RETURNING u.topic, u.incarnation, u.partition, u.record_offset
