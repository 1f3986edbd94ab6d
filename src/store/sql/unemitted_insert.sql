-- Keeps the right to emit of parked records, which have not spent it (I5).
INSERT INTO tidegate.unemitted (projection, topic, incarnation, partition, from_offset, to_offset)
SELECT $1, u.topic, u.incarnation, u.partition, u.record_offset, u.record_offset + 1
FROM unnest($2::text[], $3::integer[], $4::integer[], $5::bigint[]) AS u (topic, incarnation, partition, record_offset)
ON CONFLICT DO NOTHING
