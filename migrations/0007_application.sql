-- Messages that applications emit in transactions of their own, with tidegate.emit and tidegate.emit_bytes.
--
-- Numbers are dense and in commit order because whoever numbers holds the stream's counter row until its commit is
-- done. Numbered when they are emitted, messages would hold that row for the rest of a transaction that is not ours, and
-- two transactions that emit in different orders would deadlock. So they wait in `pending`, and a deferred trigger
-- numbers all of a transaction's messages at its COMMIT, stream by stream in one order.

-- No row outlives its transaction, so nothing is lost with it at a crash.
CREATE UNLOGGED TABLE tidegate.pending (
    xact_id       xid8 NOT NULL DEFAULT pg_current_xact_id(),
    place         bigint GENERATED ALWAYS AS IDENTITY,
    stream        text NOT NULL,
    id            uuid NOT NULL,
    topic         text NOT NULL,
    key           bytea,
    payload       bytea,
    type          text NOT NULL,
    header_names  text[] NOT NULL,
    header_values bytea[] NOT NULL,
    partition     integer,
    PRIMARY KEY (xact_id, place)
);

CREATE FUNCTION tidegate.number_messages() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The trigger of the first row has numbered all of them.
    IF NOT EXISTS (SELECT FROM tidegate.pending p WHERE p.xact_id = NEW.xact_id AND p.place = NEW.place) THEN
        RETURN NULL;
    END IF;
    WITH message AS (
        DELETE FROM tidegate.pending p WHERE p.xact_id = NEW.xact_id RETURNING p.*
    ),
    counter AS (
        INSERT INTO tidegate.stream AS s (stream, emitted)
        SELECT m.stream, count(*) FROM message m GROUP BY m.stream ORDER BY m.stream
        ON CONFLICT (stream) DO UPDATE SET emitted = s.emitted + excluded.emitted
        RETURNING s.stream, s.emitted
    )
    INSERT INTO tidegate.outbox (stream, number, id, topic, key, payload, type, source, header_names, header_values,
                                 partition)
    SELECT m.stream,
           c.emitted - count(*) OVER (PARTITION BY m.stream)
               + row_number() OVER (PARTITION BY m.stream ORDER BY m.place),
           m.id, m.topic, m.key, m.payload, m.type, '/tidegate/application', m.header_names, m.header_values,
           m.partition
    FROM message m
    JOIN counter c USING (stream);
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER number_messages AFTER INSERT ON tidegate.pending
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION tidegate.number_messages();
-- Also for who sets session_replication_role.
ALTER TABLE tidegate.pending ENABLE ALWAYS TRIGGER number_messages;
ALTER TABLE tidegate.stream ENABLE ALWAYS TRIGGER register_stream;

-- What both functions do, with the rights of their owner. `json` says that the payload is JSON.
CREATE FUNCTION tidegate.emit_message(topic text, key bytea, payload bytea, headers jsonb, type text, id uuid,
                                      partition integer, json boolean) RETURNS uuid
    LANGUAGE plpgsql AS $$
<<own>>
DECLARE
    -- As many as Context::emit allows: `MESSAGE_SIZE_MAX` in src/projection/context.rs.
    size_max CONSTANT bigint := 1000000;
    -- A header's lengths are sent with it: `HEADER_FRAMING`.
    header_framing CONSTANT bigint := 6;
    names  text[] := '{}';
    values bytea[] := '{}';
    pair   jsonb;
    name   text;
    value  bytea;
    size   bigint;
    stream text;
BEGIN
    IF current_setting('tidegate.applying', true) = 'on' THEN
        RAISE EXCEPTION 'tidegate.emit: a projection is being applied here, and every rebuild would send this message again'
            USING ERRCODE = 'active_sql_transaction',
                  HINT = 'emit from the projection, with an `emit` of its own or with Context::emit';
    END IF;
    IF topic IS NULL THEN
        RAISE EXCEPTION 'tidegate.emit: the topic is null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF topic COLLATE "C" !~ '^[A-Za-z0-9._-]{1,249}$' OR topic IN ('.', '..') THEN
        RAISE EXCEPTION 'tidegate.emit: `%` cannot name a topic', left(topic, 300)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'use up to 249 letters, digits, `.`, `_` and `-`';
    END IF;
    IF partition < 0 THEN
        RAISE EXCEPTION 'tidegate.emit: partition % is negative', partition USING ERRCODE = 'invalid_parameter_value';
    END IF;
    type := coalesce(nullif(type, ''), topic);

    IF jsonb_typeof(headers) = 'object' THEN
        headers := (SELECT jsonb_agg(jsonb_build_array(h.key, h.value)) FROM jsonb_each(headers) h);
    ELSIF jsonb_typeof(headers) <> 'array' THEN
        RAISE EXCEPTION 'tidegate.emit: headers are %', left(headers::text, 100)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'give an object, {"name": "value"}, or an array of pairs, [["name", "value"]]';
    END IF;
    FOR pair IN
        SELECT h.value FROM jsonb_array_elements(headers) WITH ORDINALITY AS h (value, place) ORDER BY h.place
    LOOP
        IF jsonb_typeof(pair) <> 'array' OR jsonb_array_length(pair) <> 2 OR jsonb_typeof(pair -> 0) <> 'string' THEN
            RAISE EXCEPTION 'tidegate.emit: `%` is no header', left(pair::text, 100)
                USING ERRCODE = 'invalid_parameter_value', HINT = 'give a pair, ["name", "value"]';
        END IF;
        name := pair ->> 0;
        IF starts_with(name, 'ce_') THEN
            RAISE EXCEPTION 'tidegate.emit: header `%` is set by tidegate', left(name, 100)
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF jsonb_typeof(pair -> 1) IN ('string', 'null') THEN
            value := convert_to(pair ->> 1, 'UTF8');
        ELSIF jsonb_typeof(pair #> '{1,base64}') = 'string'
              AND pair -> 1 = jsonb_build_object('base64', pair #> '{1,base64}') THEN
            BEGIN
                value := decode(pair #>> '{1,base64}', 'base64');
            EXCEPTION WHEN invalid_parameter_value THEN
                RAISE EXCEPTION 'tidegate.emit: header `%`: %', left(name, 100), SQLERRM
                    USING ERRCODE = 'invalid_parameter_value';
            END;
        ELSE
            RAISE EXCEPTION 'tidegate.emit: header `%` is no string', left(name, 100)
                USING ERRCODE = 'invalid_parameter_value', HINT = 'give a string, null, or {"base64": ".."} for bytes';
        END IF;
        names := names || name;
        values := values || value;
    END LOOP;
    IF json AND payload IS NOT NULL AND NOT 'content-type' = ANY (names) THEN
        names := array_prepend('content-type', names);
        values := array_prepend(convert_to('application/json', 'UTF8'), values);
    END IF;

    size := coalesce(octet_length(key), 0) + coalesce(octet_length(payload), 0) + octet_length(type)
        + (SELECT coalesce(sum(octet_length(n) + coalesce(octet_length(v), 0) + header_framing), 0)
           FROM unnest(names, values) AS h (n, v));
    IF size > size_max THEN
        RAISE EXCEPTION 'tidegate.emit: the message has % bytes; % are allowed', size, size_max
            USING ERRCODE = 'program_limit_exceeded', HINT = 'store what is large elsewhere, and send where it is';
    END IF;
    IF id IS NULL THEN
        id := gen_random_uuid();
    ELSIF EXISTS (SELECT FROM tidegate.outbox o WHERE o.id = emit_message.id) THEN
        RAISE EXCEPTION 'tidegate.emit: message % was emitted before', id
            USING ERRCODE = 'unique_violation', SCHEMA = 'tidegate', TABLE = 'outbox',
                  CONSTRAINT = 'a_message_is_emitted_once';
    END IF;

    -- The number of streams is fixed: with another one, messages of a key would be in two of them and lose their order.
    stream := 'application/' || get_byte(sha256(convert_to(topic, 'UTF8') || '\x00'::bytea
        || coalesce(key, convert_to(partition::text, 'UTF8'), uuid_send(id))), 0) % 16;
    INSERT INTO tidegate.pending (stream, id, topic, key, payload, type, header_names, header_values, partition)
    VALUES (own.stream, emit_message.id, emit_message.topic, emit_message.key, emit_message.payload, emit_message.type,
            own.names, own.values, emit_message.partition);
    RETURN id;
END
$$;

-- Puts a message in the outbox: it is sent if the transaction commits. Returns its id.
CREATE FUNCTION tidegate.emit(topic text, key text, payload jsonb, headers jsonb DEFAULT NULL, type text DEFAULT NULL,
                              id uuid DEFAULT NULL, partition integer DEFAULT NULL) RETURNS uuid
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT tidegate.emit_message(topic, convert_to(key, 'UTF8'), convert_to(payload::text, 'UTF8'), headers, type, id,
                                 partition, true)
$$;

-- The same with a key and a payload of bytes.
CREATE FUNCTION tidegate.emit_bytes(topic text, key bytea, payload bytea, headers jsonb DEFAULT NULL,
                                    type text DEFAULT NULL, id uuid DEFAULT NULL, partition integer DEFAULT NULL)
    RETURNS uuid
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT tidegate.emit_message(topic, key, payload, headers, type, id, partition, false)
$$;

-- Whoever may see the schema may not yet send: GRANT EXECUTE says who.
REVOKE EXECUTE ON FUNCTION tidegate.number_messages, tidegate.register_stream, tidegate.emit_message, tidegate.emit,
    tidegate.emit_bytes FROM PUBLIC;
