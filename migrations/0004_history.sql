-- What became of records that left no trace but a count: kept for a while, by projections that want it.

-- The first offset that was to be read of this incarnation of the topic; null in rows older than this column.
ALTER TABLE tidegate.position ADD COLUMN first_offset bigint;

-- What a batch took from one partition: offsets from `from_offset` on, up to but without `to_offset`. What of it was
-- neither dropped nor parked was applied.
CREATE TABLE tidegate.history_batch (
    projection  text NOT NULL,
    generation  integer NOT NULL,
    topic       text NOT NULL,
    incarnation integer NOT NULL,
    partition   integer NOT NULL,
    from_offset bigint NOT NULL,
    to_offset   bigint NOT NULL CHECK (to_offset > from_offset),
    -- How many of these offsets were records.
    records     bigint NOT NULL CHECK (records >= 0 AND records <= to_offset - from_offset),
    batch_id    uuid NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    keep_until  timestamptz NOT NULL,
    PRIMARY KEY (projection, generation, topic, incarnation, partition, from_offset)
);
CREATE INDEX history_batch_age ON tidegate.history_batch (keep_until);

-- A record that was dropped, and why.
CREATE TABLE tidegate.history_dropped (
    projection    text NOT NULL,
    generation    integer NOT NULL,
    topic         text NOT NULL,
    incarnation   integer NOT NULL,
    partition     integer NOT NULL,
    record_offset bigint NOT NULL,
    entity        text COLLATE "C",
    sequence      bigint,
    outcome       text NOT NULL CHECK (outcome IN ('stale', 'duplicate', 'filtered')),
    -- Where the gate of a stale one stood at the end of its batch.
    gate_sequence bigint,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    keep_until    timestamptz NOT NULL,
    PRIMARY KEY (projection, generation, topic, incarnation, partition, record_offset)
);
CREATE INDEX history_dropped_age ON tidegate.history_dropped (keep_until);
CREATE INDEX history_dropped_entity ON tidegate.history_dropped (projection, generation, entity, at);
