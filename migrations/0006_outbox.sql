-- Messages to a chosen partition, messages that cannot be sent, and how far sent ones are removed.

-- The partition of its topic a message goes to; without one its key decides.
ALTER TABLE tidegate.outbox ADD COLUMN partition integer CHECK (partition >= 0);

-- Messages that the brokers do not take, and the later ones of the same key or topic, which wait behind them. The
-- messages themselves stay in the outbox: what is referred to here cannot be removed there.
CREATE TABLE tidegate.quarantine (
    stream         text NOT NULL,
    number         bigint NOT NULL,
    reason         text NOT NULL CHECK (reason IN ('too_large', 'unknown_topic', 'no_permission', 'refused', 'behind')),
    detail         text NOT NULL CHECK (length(detail) <= 2000),
    -- What waits behind it: SHA-256 of the topic, or of the topic and the key. Nothing does where it is null.
    holds          bytea CHECK (length(holds) = 32),
    -- Released: to be sent again, before anything later of the stream.
    state          text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'released', 'sent', 'discarded')),
    attempts       integer NOT NULL CHECK (attempts >= 0),
    quarantined_at timestamptz NOT NULL DEFAULT now(),
    resolved_at    timestamptz,
    PRIMARY KEY (stream, number),
    FOREIGN KEY (stream, number) REFERENCES tidegate.outbox (stream, number),
    CHECK ((state IN ('waiting', 'released')) = (resolved_at IS NULL))
);
CREATE INDEX quarantine_holds ON tidegate.quarantine (stream, holds) WHERE state = 'waiting';
CREATE INDEX quarantine_released ON tidegate.quarantine (stream, number) WHERE state = 'released';
CREATE INDEX quarantine_open ON tidegate.quarantine (stream, number) WHERE state IN ('waiting', 'released');

-- Attempts at the message that a stream stands at, and when the next one is due.
ALTER TABLE tidegate.relay ADD COLUMN attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0);
ALTER TABLE tidegate.relay ADD COLUMN retry_at timestamptz;
-- Messages up to here were removed, apart from those in quarantine: nothing but what is sent goes.
ALTER TABLE tidegate.relay ADD COLUMN removed_through bigint NOT NULL DEFAULT 0
    CHECK (removed_through BETWEEN 0 AND sent_through);

-- Every stream has its relay row from its first message on, so that no relay need look for new ones.
CREATE FUNCTION tidegate.register_stream() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO tidegate.relay (stream) VALUES (NEW.stream) ON CONFLICT (stream) DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER register_stream AFTER INSERT ON tidegate.stream
    FOR EACH ROW EXECUTE FUNCTION tidegate.register_stream();
INSERT INTO tidegate.relay (stream) SELECT s.stream FROM tidegate.stream s ON CONFLICT (stream) DO NOTHING;
