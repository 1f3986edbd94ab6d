-- Which records in some ranges have not spent their right to emit, as ranges. It stays theirs.
SELECT u.topic, u.incarnation, u.partition, greatest(u.from_offset, s.from_offset), least(u.to_offset, s.to_offset)
FROM tidegate.unemitted u
JOIN unnest($2::text[], $3::integer[], $4::integer[], $5::bigint[], $6::bigint[])
    AS s (topic, incarnation, partition, from_offset, to_offset)
    ON u.topic = s.topic AND u.incarnation = s.incarnation AND u.partition = s.partition
   AND u.from_offset < s.to_offset AND u.to_offset > s.from_offset
WHERE u.projection = $1
