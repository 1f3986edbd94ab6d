-- Makes a migrated database as it was when it was new: no schema but Tidegate's own and an empty `public`, no rows.
-- DELETE, since TRUNCATE makes a new file of every table; rows that others refer to go in the next round.
DO $$
DECLARE
    name text;
    referred_to boolean;
BEGIN
    FOR name IN
        SELECT n.nspname FROM pg_namespace n
        WHERE n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'tidegate')
    LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
    CREATE SCHEMA public;
    LOOP
        referred_to := false;
        FOR name IN
            SELECT c.relname FROM pg_class c
            WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind = 'r' AND c.relname <> 'migration'
        LOOP
            BEGIN
                EXECUTE format('DELETE FROM tidegate.%I', name);
            EXCEPTION WHEN foreign_key_violation THEN
                referred_to := true;
            END;
        END LOOP;
        EXIT WHEN NOT referred_to;
    END LOOP;
END
$$
