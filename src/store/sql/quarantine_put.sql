-- Puts messages in quarantine, or back there if they had been released. What waits behind one is what has its topic, if
-- $5, or else its topic and key: nothing, if it has no key. The messages stay in the outbox.
INSERT INTO tidegate.quarantine AS q (stream, number, reason, detail, holds, attempts)
SELECT o.stream, o.number, v.reason, v.detail,
       CASE WHEN v.topic THEN sha256(convert_to(o.topic, 'UTF8'))
            ELSE sha256(convert_to(o.topic, 'UTF8') || '\x00' || o.key) END,
       v.attempts
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::boolean[], $6::integer[])
    AS v (stream, number, reason, detail, topic, attempts)
JOIN tidegate.outbox o USING (stream, number)
ON CONFLICT (stream, number) DO UPDATE
SET reason = excluded.reason, detail = excluded.detail, holds = excluded.holds, state = 'waiting',
    attempts = q.attempts + excluded.attempts
WHERE q.state = 'released'
