-- What the numbers of a schema registry stand for: one that has lost its data is noticed by it.

CREATE TABLE tidegate.registry_schema (
    -- The name that the configuration gives it.
    registry      text NOT NULL CHECK (registry <> ''),
    id            bigint NOT NULL CHECK (id BETWEEN 0 AND 4294967295),
    -- Of the schema's text and those of the schemas that it refers to.
    fingerprint   uuid NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (registry, id)
);
