-- Builds under way, for the processes of the service: whose they are, and whether anybody is building.
SELECT b.projection, b.number, b.definition, b.setup, b.statements, b.detached, b.trouble, b.left_at,
       CASE WHEN b.declined_at > pg_catalog.clock_timestamp() - interval '30 seconds' THEN b.declined ELSE '' END AS declined,
       EXISTS (SELECT FROM pg_catalog.pg_locks h
               JOIN pg_catalog.pg_database d ON d.oid = h.database AND d.datname = pg_catalog.current_database()
               WHERE h.locktype = 'advisory' AND h.granted AND h.objsubid = 1
                 AND (h.classid::bigint << 32) | h.objid::bigint
                     = pg_catalog.hashtextextended('tidegate.rebuild.' || b.projection, 0)) AS taken
FROM tidegate.generation b
WHERE b.state = 'building'
ORDER BY b.projection, b.number
