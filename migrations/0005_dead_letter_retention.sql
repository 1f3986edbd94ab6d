-- The bytes of a dead letter that is resolved may go after a while; its row stays, since the account counts it.

ALTER TABLE tidegate.dead_letter ADD COLUMN cleared_at timestamptz;
ALTER TABLE tidegate.dead_letter ADD CONSTRAINT what_waits_keeps_its_bytes CHECK (cleared_at IS NULL OR state <> 'waiting');
CREATE INDEX dead_letter_age ON tidegate.dead_letter (resolved_at) WHERE state <> 'waiting' AND cleared_at IS NULL;
