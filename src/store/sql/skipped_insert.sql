-- Records that a range of offsets was left out on purpose (I6).
INSERT INTO tidegate.skipped (projection, generation, topic, incarnation, partition, from_offset, to_offset, operation)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
