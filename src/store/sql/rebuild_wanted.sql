-- Whether somebody waits for what this session has locked.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_locks mine
    JOIN pg_catalog.pg_locks theirs USING (locktype, database, classid, objid, objsubid)
    WHERE mine.pid = pg_catalog.pg_backend_pid() AND mine.locktype = 'advisory' AND mine.granted AND NOT theirs.granted)
