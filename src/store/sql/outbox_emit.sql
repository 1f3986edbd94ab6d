-- Emits a message in a transaction of an application's, through the function that applications have. Headers are pairs of
-- name and bytes.
SELECT tidegate.emit_bytes(
    topic => $1, key => $2, payload => $3,
    headers => (
        SELECT jsonb_agg(jsonb_build_array(h.name, CASE WHEN h.value IS NOT NULL
                                                        THEN jsonb_build_object('base64', encode(h.value, 'base64')) END)
                         ORDER BY h.place)
        FROM unnest($4::text[], $5::bytea[]) WITH ORDINALITY AS h (name, value, place)
    ),
    type => $6, partition => $7)
