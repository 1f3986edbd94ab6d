-- Builds under way, and generations that were live before, for the processes of the service: whose they are, and whether
-- anybody is building.
SELECT b.projection, b.number, b.state, l.definition AS live_definition, b.definition, b.setup, b.statements, b.detached, b.trouble,
       EXISTS (SELECT FROM pg_catalog.pg_locks h
               JOIN pg_catalog.pg_database d ON d.oid = h.database AND d.datname = pg_catalog.current_database()
               WHERE h.locktype = 'advisory' AND h.granted AND h.objsubid = 1
                 AND (h.classid::bigint << 32) | h.objid::bigint
                     = pg_catalog.hashtextextended('tidegate.rebuild.' || b.projection, 0)) AS taken
FROM tidegate.generation b
JOIN tidegate.projection p ON p.name = b.projection
JOIN tidegate.generation l ON l.projection = p.name AND l.number = p.live_generation
WHERE b.state IN ('building', 'retired')
ORDER BY b.projection, b.number
