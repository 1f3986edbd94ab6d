-- Adds the gates of entities never seen; one that is there by now is a duplicate key.
COPY _gate (entity, sequence) FROM STDIN WITH (FORMAT binary)
