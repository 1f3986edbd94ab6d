-- The core: projections and their generations, positions, the right to emit, outbox and relay, operations.
-- What can be derived from the log lives elsewhere, in each generation's own schema.

CREATE SCHEMA IF NOT EXISTS tidegate;

CREATE TABLE tidegate.projection (
    name            text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,39}$'),
    live_generation integer NOT NULL CHECK (live_generation >= 1),
    desired_state   text NOT NULL DEFAULT 'running' CHECK (desired_state IN ('running', 'paused')),
    created_at      timestamptz NOT NULL DEFAULT now()
);

-- One build of a projection's tables.
CREATE TABLE tidegate.generation (
    projection  text NOT NULL REFERENCES tidegate.projection (name),
    number      integer NOT NULL CHECK (number >= 1),
    state       text NOT NULL CHECK (state IN ('building', 'live', 'retired', 'abandoned')),
    schema_name text NOT NULL,
    schema_oid  oid NOT NULL,
    -- Topics, gate, sources and version: what the tables' content depends on.
    definition  text NOT NULL,
    -- Hash of the SQL that made the tables.
    setup       text NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (projection, number)
);
CREATE UNIQUE INDEX generation_live ON tidegate.generation (projection) WHERE state = 'live';

-- The stored progress of one partition. The truth: Kafka's committed offsets are a copy for lag tools.
CREATE TABLE tidegate.position (
    projection  text NOT NULL,
    generation  integer NOT NULL,
    topic       text NOT NULL,
    partition   integer NOT NULL CHECK (partition >= 0),
    -- First offset not yet applied, as Kafka counts.
    next_offset bigint NOT NULL CHECK (next_offset >= 0),
    -- The fence: grows at every claim and every operator action.
    epoch       bigint NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    claim_token uuid NOT NULL DEFAULT gen_random_uuid(),
    owner       text NOT NULL DEFAULT '',
    -- The last batch that moved it: settles what became of a COMMIT whose answer was lost.
    batch_id    uuid,
    -- Which topic of that name; another one after an operator has accepted a topic made anew.
    topic_id    text NOT NULL DEFAULT '1',
    -- The account: records of this generation, by what became of them. Never taken back.
    consumed    bigint NOT NULL DEFAULT 0 CHECK (consumed >= 0),
    applied     bigint NOT NULL DEFAULT 0 CHECK (applied >= 0),
    stale       bigint NOT NULL DEFAULT 0 CHECK (stale >= 0),
    duplicate   bigint NOT NULL DEFAULT 0 CHECK (duplicate >= 0),
    filtered    bigint NOT NULL DEFAULT 0 CHECK (filtered >= 0),
    -- How its owner fares.
    condition   text NOT NULL DEFAULT 'idle' CHECK (condition IN ('idle', 'running', 'retrying', 'halted')),
    cause       text NOT NULL DEFAULT '',
    since       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (projection, generation, topic, partition),
    FOREIGN KEY (projection, generation) REFERENCES tidegate.generation (projection, number),
    CONSTRAINT every_record_is_accounted_for CHECK (consumed = applied + stale + duplicate + filtered)
) WITH (fillfactor = 50);

-- The right to emit belongs to the record: below this offset a live generation has been before.
CREATE TABLE tidegate.emission (
    projection      text NOT NULL REFERENCES tidegate.projection (name),
    topic           text NOT NULL,
    topic_id        text NOT NULL,
    partition       integer NOT NULL,
    emitted_through bigint NOT NULL CHECK (emitted_through >= 0),
    PRIMARY KEY (projection, topic, topic_id, partition)
);

-- A stream's counter. It belongs to the stream, not to a generation, and never goes back.
CREATE TABLE tidegate.stream (
    stream  text PRIMARY KEY,
    emitted bigint NOT NULL DEFAULT 0 CHECK (emitted >= 0)
) WITH (fillfactor = 50);

-- Downstream messages. Numbers are dense within a stream and in commit order.
CREATE TABLE tidegate.outbox (
    stream        text NOT NULL,
    number        bigint NOT NULL CHECK (number >= 1),
    id            uuid NOT NULL,
    topic         text NOT NULL,
    key           bytea,
    payload       bytea,
    type          text NOT NULL,
    source        text NOT NULL,
    header_names  text[] NOT NULL DEFAULT '{}',
    header_values bytea[] NOT NULL DEFAULT '{}',
    occurred_at   timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, number),
    CONSTRAINT a_message_is_emitted_once UNIQUE (id)
);

-- The relay's side of a stream: how far it has sent, and who may send.
CREATE TABLE tidegate.relay (
    stream       text PRIMARY KEY,
    sent_through bigint NOT NULL DEFAULT 0 CHECK (sent_through >= 0),
    owner        text NOT NULL DEFAULT '',
    lease_epoch  bigint NOT NULL DEFAULT 0,
    lease_until  timestamptz NOT NULL DEFAULT '-infinity',
    last_error   text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

-- What operators did.
CREATE TABLE tidegate.operation (
    id         uuid PRIMARY KEY,
    kind       text NOT NULL,
    projection text NOT NULL,
    who        text NOT NULL,
    at         timestamptz NOT NULL DEFAULT now(),
    arguments  jsonb NOT NULL,
    before     jsonb NOT NULL,
    after      jsonb NOT NULL
);
