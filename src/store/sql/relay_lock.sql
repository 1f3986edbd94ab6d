-- Keeps relays from sending and from moving cursors of these streams until the transaction ends.
SELECT stream FROM tidegate.relay WHERE stream = ANY ($1) ORDER BY stream FOR UPDATE
