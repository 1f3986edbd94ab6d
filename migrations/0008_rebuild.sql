-- Generations that are built beside the live one, and what their content was made by.

-- Hash of the statements, columns and seed; empty where nobody wrote it down.
ALTER TABLE tidegate.generation ADD COLUMN statements text NOT NULL DEFAULT '';
-- When it became the live one, for the last time; null if it never was.
ALTER TABLE tidegate.generation ADD COLUMN live_at timestamptz;
UPDATE tidegate.generation SET live_at = started_at;
CREATE UNIQUE INDEX generation_building ON tidegate.generation (projection) WHERE state = 'building';

-- Messages of a generation that is not live yet: see `schema_bookkeeping.sql`.
DO $$
DECLARE
    schema_name text;
BEGIN
    FOR schema_name IN SELECT g.schema_name FROM tidegate.generation g WHERE g.state = 'live' LOOP
        EXECUTE format(
            'CREATE TABLE %I._held (
                number bigint GENERATED ALWAYS AS IDENTITY, topic text NOT NULL, incarnation integer NOT NULL,
                partition integer NOT NULL, record_offset bigint NOT NULL, stream text NOT NULL,
                id uuid PRIMARY KEY, message_topic text NOT NULL, key bytea, payload bytea, type text NOT NULL,
                occurred_at timestamptz, header_names text[] NOT NULL,
                header_values bytea[] NOT NULL, message_partition integer)',
            schema_name);
    END LOOP;
END
$$;
