-- Keeps messages back until the generation becomes the live one, each with the record whose right to emit it needs then.
COPY _held (topic, incarnation, partition, record_offset, stream, id, message_topic, key, payload, type, occurred_at,
            header_names, header_values, message_partition)
FROM STDIN WITH (FORMAT binary)
