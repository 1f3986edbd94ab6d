-- Messages in quarantine, without their payload. $6: those that are resolved too.
SELECT q.stream, q.number, q.reason, q.detail, q.state, q.attempts, q.quarantined_at, q.resolved_at, o.id, o.topic,
       o.key, octet_length(o.payload)::bigint AS payload_bytes
FROM tidegate.quarantine q
JOIN tidegate.outbox o USING (stream, number)
WHERE ($1::text IS NULL OR q.stream = $1) AND ($2::bigint IS NULL OR q.number = $2)
  AND ($3::text IS NULL OR o.topic = $3) AND ($4::bytea IS NULL OR o.key = $4) AND ($5::text IS NULL OR q.reason = $5)
  AND ($6::boolean OR q.state IN ('waiting', 'released'))
ORDER BY q.stream, q.number
LIMIT $7
