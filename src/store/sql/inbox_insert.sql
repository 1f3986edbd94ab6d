-- Takes in event ids and answers those that are new (I4). Ids come sorted; one that another transaction is taking in
-- is waited for.
INSERT INTO _inbox (event_id)
SELECT unnest($1::text[])
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id
