-- One message in quarantine, with its bytes.
SELECT o.type, o.source, o.partition, o.created_at, o.payload, o.header_names, o.header_values
FROM tidegate.quarantine q
JOIN tidegate.outbox o USING (stream, number)
WHERE q.stream = $1 AND q.number = $2
