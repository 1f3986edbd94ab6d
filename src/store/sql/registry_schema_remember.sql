-- Remembers what a number of a registry stands for, the first time, and says what is remembered and since when.
INSERT INTO tidegate.registry_schema AS s (registry, id, fingerprint)
VALUES ($1, $2, $3)
ON CONFLICT (registry, id) DO UPDATE SET fingerprint = s.fingerprint
RETURNING s.fingerprint, s.first_seen_at
