-- Whether streams have released messages, which are sent before all others, and whether what is read of them has to be
-- compared with the quarantine: something waits there, or some of what is behind the cursor was passed over before.
-- Read under the lock of the relay's rows, so that a release is seen or comes after.
SELECT h.stream,
       EXISTS (SELECT FROM tidegate.quarantine q WHERE q.stream = h.stream AND q.state = 'released') AS released,
       EXISTS (SELECT FROM tidegate.quarantine q WHERE q.stream = h.stream AND q.state = 'waiting')
       OR EXISTS (SELECT FROM tidegate.quarantine q WHERE q.stream = h.stream AND q.number > h.sent_through) AS compared
FROM unnest($1::text[], $2::bigint[]) AS h (stream, sent_through)
