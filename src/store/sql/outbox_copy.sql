-- Stores the messages of a batch, with the numbers that outbox_number.sql gave.
COPY tidegate.outbox (number, source, stream, id, topic, key, payload, type, occurred_at, header_names, header_values,
                      partition)
FROM STDIN WITH (FORMAT binary)
