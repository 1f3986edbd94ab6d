-- The records whose messages are kept back.
SELECT DISTINCT h.topic, h.incarnation, h.partition, h.record_offset
FROM _held h
