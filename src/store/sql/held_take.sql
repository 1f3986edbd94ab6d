-- The messages that were kept back and whose records have not spent their right to emit meanwhile, by a redrive or a
-- discard in the live generation (I5), in the order in which the records were applied.
SELECT h.stream, h.id, h.message_topic, h.key, h.payload, h.type, h.occurred_at, h.header_names, h.header_values,
       h.message_partition
FROM _held h
JOIN tidegate.unemitted u
    ON u.projection = $1 AND u.topic = h.topic AND u.incarnation = h.incarnation AND u.partition = h.partition
   AND h.record_offset >= u.from_offset AND h.record_offset < u.to_offset
ORDER BY h.number
