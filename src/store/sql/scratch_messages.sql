-- All messages, in order within each stream.
SELECT topic, key, payload, type, partition, header_names, header_values, id
FROM tidegate.outbox
ORDER BY stream, number
