-- Roles that have what they need and no more. Run it as a superuser in the database of the projections, before
-- `tidegate migrate`; running it again changes nothing, and repairs what was granted by hand.
--
--   psql -d shop -v ON_ERROR_STOP=1 -f deploy/sql/roles.sql
--
-- It sets no passwords: use \password, or certificates.
--
--   tidegate_owner    owns the schema `tidegate`; for `tidegate migrate` and nothing else
--   tidegate_runtime  for `run`, `relay` and operators' commands: reads and writes rows of `tidegate`, cannot alter, drop or
--                     truncate its tables, and owns the schemas of the projections, which it makes
--   tidegate_handler  what the statements of projections with `role = "tidegate_handler"` run as: rows of the projection's own
--                     tables and nothing else. Nobody logs in as it
--   tidegate_reader   for `status`, `verify`, `explain` and dashboards: reads
--
-- Without `role`, what a projection's statements do they do as tidegate_runtime. The schema of a projection comes first in
-- their search path, `tidegate check` refuses statements that write elsewhere unless `writes_elsewhere` allows it, and the one
-- transaction refuses a position that was moved behind its back; but no privilege keeps a Rust handler or a trigger from the
-- tables of `tidegate`. With it, one does. (Whoever means harm can take the role off: it keeps mistakes out.)

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['tidegate_owner', 'tidegate_runtime', 'tidegate_reader'] LOOP
        IF to_regrole(name) IS NULL THEN
            EXECUTE format('CREATE ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE', name);
        END IF;
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), name);
    END LOOP;
    IF to_regrole('tidegate_handler') IS NULL THEN
        CREATE ROLE tidegate_handler NOLOGIN;
    END IF;
    GRANT tidegate_handler TO tidegate_runtime;
    -- One makes the schema `tidegate`, the other those of the projections.
    EXECUTE format('GRANT CREATE ON DATABASE %I TO tidegate_owner, tidegate_runtime', current_database());
END
$$;

CREATE SCHEMA IF NOT EXISTS tidegate AUTHORIZATION tidegate_owner;
GRANT USAGE ON SCHEMA tidegate TO tidegate_runtime, tidegate_reader;

-- Tables that are there, and those that later migrations make.
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tidegate TO tidegate_runtime;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA tidegate TO tidegate_runtime;
GRANT SELECT ON ALL TABLES IN SCHEMA tidegate TO tidegate_reader;
ALTER DEFAULT PRIVILEGES FOR ROLE tidegate_owner IN SCHEMA tidegate
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO tidegate_runtime;
ALTER DEFAULT PRIVILEGES FOR ROLE tidegate_owner IN SCHEMA tidegate GRANT USAGE ON SEQUENCES TO tidegate_runtime;
ALTER DEFAULT PRIVILEGES FOR ROLE tidegate_owner IN SCHEMA tidegate GRANT SELECT ON TABLES TO tidegate_reader;

-- `tidegate.migration` says which version the schema has; only who migrates may change that.
DO $$
BEGIN
    IF to_regclass('tidegate.migration') IS NOT NULL THEN
        REVOKE INSERT, UPDATE, DELETE ON tidegate.migration FROM tidegate_runtime;
    END IF;
END
$$;

-- The reader sees what projections make from now on. Whether it should is yours to decide.
ALTER DEFAULT PRIVILEGES FOR ROLE tidegate_runtime GRANT USAGE ON SCHEMAS TO tidegate_reader;
ALTER DEFAULT PRIVILEGES FOR ROLE tidegate_runtime GRANT SELECT ON TABLES TO tidegate_reader;
