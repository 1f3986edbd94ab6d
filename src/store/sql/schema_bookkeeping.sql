-- A generation's bookkeeping, in its own schema (first in search_path): what can be derived from the log.

-- The last sequence of each entity, and the one before the last batch.
CREATE TABLE _gate (
    entity   text COLLATE "C" PRIMARY KEY,
    sequence bigint NOT NULL,
    previous bigint
);

-- Ids of events already applied.
CREATE TABLE _inbox (
    event_id   text COLLATE "C" PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);
