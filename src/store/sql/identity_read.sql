-- The database's name and its cluster's identifier, which a copy restored from a dump does not share.
SELECT current_database()::text, system_identifier::text FROM pg_catalog.pg_control_system()
