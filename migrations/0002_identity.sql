-- Which log a position belongs to, and what was skipped in it.

-- The first topic of a name is 1; each that an operator accepts as made anew is the next. Part of every message id.
ALTER TABLE tidegate.position RENAME COLUMN topic_id TO incarnation;
ALTER TABLE tidegate.position ALTER COLUMN incarnation DROP DEFAULT;
ALTER TABLE tidegate.position ALTER COLUMN incarnation TYPE integer USING incarnation::integer;
ALTER TABLE tidegate.position ALTER COLUMN incarnation SET DEFAULT 1;
ALTER TABLE tidegate.position ADD CHECK (incarnation >= 1);
ALTER TABLE tidegate.emission RENAME COLUMN topic_id TO incarnation;
ALTER TABLE tidegate.emission ALTER COLUMN incarnation TYPE integer USING incarnation::integer;

-- What Kafka calls the topic; null until it was learnt, and where brokers give topics no ids.
ALTER TABLE tidegate.position ADD COLUMN topic_id uuid;
-- The last applied record: where it stands, and a digest of it. A log that has another record there is another log.
ALTER TABLE tidegate.position ADD COLUMN anchor_offset bigint;
ALTER TABLE tidegate.position ADD COLUMN anchor_digest uuid;
ALTER TABLE tidegate.position ADD CHECK ((anchor_offset IS NULL) = (anchor_digest IS NULL) AND anchor_offset < next_offset);

-- The log was found to be another one: whoever resets or accepts it begins a new incarnation.
ALTER TABLE tidegate.position ADD COLUMN in_doubt boolean NOT NULL DEFAULT false;

-- Ranges that an operator chose to leave out: offsets from `from_offset` on, up to but without `to_offset`.
CREATE TABLE tidegate.skipped (
    projection  text NOT NULL,
    generation  integer NOT NULL,
    topic       text NOT NULL,
    incarnation integer NOT NULL,
    partition   integer NOT NULL,
    from_offset bigint NOT NULL,
    to_offset   bigint NOT NULL CHECK (to_offset > from_offset),
    operation   uuid NOT NULL REFERENCES tidegate.operation (id),
    PRIMARY KEY (projection, generation, topic, incarnation, partition, from_offset),
    FOREIGN KEY (projection, generation, topic, partition)
        REFERENCES tidegate.position (projection, generation, topic, partition)
);
