-- When an event id was taken in.
SELECT applied_at
FROM _inbox
WHERE event_id = $1
