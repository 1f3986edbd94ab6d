-- Which records in some ranges have not spent their right to emit. It stays theirs.
SELECT u.topic, u.incarnation, u.partition, u.record_offset
FROM tidegate.unemitted u
JOIN unnest($2::text[], $3::integer[], $4::integer[], $5::bigint[], $6::bigint[])
    AS s (topic, incarnation, partition, from_offset, to_offset)
    ON u.topic = s.topic AND u.incarnation = s.incarnation AND u.partition = s.partition
   AND u.record_offset >= s.from_offset AND u.record_offset < s.to_offset
WHERE u.projection = $1
