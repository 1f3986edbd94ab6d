CREATE TABLE activity (
    id     text COLLATE "C" PRIMARY KEY,
    author text NOT NULL,
    kind   text NOT NULL,
    text   text NOT NULL,
    at     timestamptz NOT NULL
);
-- What a page of the feed asks for.
CREATE INDEX activity_by_author ON activity (author, at DESC);

CREATE TABLE posts (
    author     text COLLATE "C" PRIMARY KEY,
    activities bigint NOT NULL
) WITH (fillfactor = 80);
