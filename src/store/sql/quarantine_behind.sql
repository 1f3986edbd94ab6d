-- Of messages that were read to be sent, puts those in quarantine that have to wait behind an earlier one there, by
-- topic and key or by topic, and answers with all that are not to be sent: these, and those that were there before.
-- Released ones that have to wait again go back.
WITH w AS (
    SELECT o.stream, o.number, sha256(convert_to(o.topic, 'UTF8') || '\x00' || o.key) AS of_key,
           sha256(convert_to(o.topic, 'UTF8')) AS of_topic
    FROM unnest($1::text[], $2::bigint[]) AS r (stream, number)
    JOIN tidegate.outbox o USING (stream, number)
),
held AS (
    SELECT w.stream, w.number,
           CASE WHEN EXISTS (
                    SELECT FROM tidegate.quarantine q
                    WHERE q.stream = w.stream AND q.holds = w.of_key AND q.state = 'waiting' AND q.number < w.number)
                THEN w.of_key
                WHEN EXISTS (
                    SELECT FROM tidegate.quarantine q
                    WHERE q.stream = w.stream AND q.holds = w.of_topic AND q.state = 'waiting' AND q.number < w.number)
                THEN w.of_topic END AS holds
    FROM w
),
put AS (
    INSERT INTO tidegate.quarantine AS q (stream, number, reason, detail, holds, attempts)
    SELECT held.stream, held.number, 'behind', '', held.holds, 0
    FROM held
    WHERE held.holds IS NOT NULL
    ON CONFLICT (stream, number) DO UPDATE
    SET reason = 'behind', detail = '', holds = excluded.holds, state = 'waiting'
    WHERE q.state = 'released'
    RETURNING q.stream, q.number
)
SELECT put.stream, put.number, true AS now FROM put
UNION ALL
SELECT q.stream, q.number, false
FROM w
JOIN tidegate.quarantine q USING (stream, number)
WHERE q.state <> 'released'
