-- Records that could not be applied, kept with their bytes, and the records of their entities that wait behind them.

-- One row for ever: what became of it is its state. Numbers give the order within an entity.
CREATE TABLE tidegate.dead_letter (
    number        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    projection    text NOT NULL,
    generation    integer NOT NULL,
    topic         text NOT NULL,
    incarnation   integer NOT NULL,
    partition     integer NOT NULL,
    record_offset bigint NOT NULL,
    -- What could be read of it.
    entity        text COLLATE "C",
    sequence      bigint,
    -- The record as Kafka delivered it: bytes, never text.
    key           bytea,
    value         bytea,
    header_names  bytea[] NOT NULL,
    header_values bytea[] NOT NULL,
    timestamp_ms  bigint,
    reason        text NOT NULL CHECK (reason IN ('undecodable', 'rejected', 'database', 'panicked', 'gap', 'behind')),
    sqlstate      text,
    detail        text NOT NULL CHECK (length(detail) <= 2000),
    state         text NOT NULL DEFAULT 'waiting'
                  CHECK (state IN ('waiting', 'applied', 'stale', 'duplicate', 'filtered', 'discarded')),
    attempts      integer NOT NULL DEFAULT 1 CHECK (attempts >= 0),
    parked_at     timestamptz NOT NULL DEFAULT now(),
    tried_at      timestamptz NOT NULL DEFAULT now(),
    resolved_at   timestamptz,
    CONSTRAINT a_record_is_parked_once UNIQUE (projection, generation, topic, incarnation, partition, record_offset),
    FOREIGN KEY (projection, generation, topic, partition)
        REFERENCES tidegate.position (projection, generation, topic, partition),
    CHECK ((state = 'waiting') = (resolved_at IS NULL))
);
CREATE INDEX dead_letter_queue ON tidegate.dead_letter (projection, generation, entity, number) WHERE state = 'waiting';

CREATE INDEX dead_letter_given_up ON tidegate.dead_letter (projection, generation, entity, sequence) WHERE state = 'discarded';

-- The right to emit of records below `emitted_through` that have not spent it, since they were parked when a live
-- generation first passed them.
CREATE TABLE tidegate.unemitted (
    projection    text NOT NULL REFERENCES tidegate.projection (name),
    topic         text NOT NULL,
    incarnation   integer NOT NULL,
    partition     integer NOT NULL,
    record_offset bigint NOT NULL,
    PRIMARY KEY (projection, topic, incarnation, partition, record_offset)
);

-- Records that became dead letters: a part of the account, never taken back.
ALTER TABLE tidegate.position ADD COLUMN parked bigint NOT NULL DEFAULT 0 CHECK (parked >= 0);
ALTER TABLE tidegate.position DROP CONSTRAINT every_record_is_accounted_for;
ALTER TABLE tidegate.position ADD CONSTRAINT every_record_is_accounted_for
    CHECK (consumed = applied + stale + duplicate + filtered + parked);

-- Whether records of the entity wait: read by the gate's own statements, under the row's lock.
DO $$
DECLARE
    schema_name text;
BEGIN
    FOR schema_name IN SELECT g.schema_name FROM tidegate.generation g WHERE g.state = 'live' LOOP
        EXECUTE format('ALTER TABLE %I._gate ADD COLUMN parked boolean NOT NULL DEFAULT false', schema_name);
    END LOOP;
END
$$;
