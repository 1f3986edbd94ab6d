-- Keeps how far messages were removed, in the transaction that has removed them. It comes last, since the relay waits
-- for this row.
UPDATE tidegate.relay
SET removed_through = greatest(removed_through, $2)
WHERE stream = $1
