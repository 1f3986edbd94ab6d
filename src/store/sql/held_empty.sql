-- What was kept back is in the outbox, or has lost its right.
DELETE FROM _held
