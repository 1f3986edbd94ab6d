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
