-- Stores the messages of a batch, with the numbers that outbox_number.sql gave.
COPY tidegate.outbox (stream, number, id, topic, key, payload, type, source, occurred_at, header_names, header_values,
                      partition)
FROM STDIN WITH (FORMAT binary)
