-- What an idle relay asks, over and over, outside of any transaction and without a lock: which of its streams have
-- messages behind its cursor or released ones, and, with $3, whether there are streams that nobody holds. Only a hint:
-- what is sent is read again, with a barrier. The outbox itself is asked, not the counter, whose old versions pile up
-- while somebody keeps a snapshot.
SELECT h.stream
FROM unnest($1::text[], $2::bigint[]) AS h (stream, sent_through)
WHERE EXISTS (SELECT FROM tidegate.outbox o WHERE o.stream = h.stream AND o.number > h.sent_through)
   OR EXISTS (SELECT FROM tidegate.quarantine q WHERE q.stream = h.stream AND q.state = 'released')
UNION ALL
-- Free ones have no name here: taking them says which they are.
(SELECT NULL FROM tidegate.relay r WHERE $3 AND r.owner <> $4 AND r.lease_until < clock_timestamp() LIMIT 1)
