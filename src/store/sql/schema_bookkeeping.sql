-- A generation's bookkeeping, in its own schema (first in search_path): what can be derived from the log.

-- The last sequence of each entity, the one before the last batch, and whether records of it are parked.
CREATE TABLE _gate (
    entity   text COLLATE "C" PRIMARY KEY,
    sequence bigint NOT NULL,
    previous bigint,
    parked   boolean NOT NULL DEFAULT false
);

-- Ids of events already applied.
CREATE TABLE _inbox (
    event_id   text COLLATE "C" PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- While this is not the live generation: messages of records that have not spent their right to emit. They go to the
-- outbox when it becomes the live one, if the records have their right still.
CREATE TABLE _held (
    -- The order in which records were applied: for one entity that is not always that of their offsets.
    number            bigint GENERATED ALWAYS AS IDENTITY,
    topic             text NOT NULL,
    incarnation       integer NOT NULL,
    partition         integer NOT NULL,
    record_offset     bigint NOT NULL,
    stream            text NOT NULL,
    id                uuid PRIMARY KEY,
    message_topic     text NOT NULL,
    key               bytea,
    payload           bytea,
    type              text NOT NULL,
    occurred_at       timestamptz,
    header_names      text[] NOT NULL,
    header_values     bytea[] NOT NULL,
    message_partition integer
);
