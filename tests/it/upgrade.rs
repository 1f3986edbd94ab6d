//! Migrations, and binaries of another age than the schema.

use crate::harness::{LONG, World, wait_until};

/// What a later version's migration does before it is allowed to take anything away: it adds.
const LATER: &str = "
    ALTER TABLE tidegate.position ADD COLUMN later bigint NOT NULL DEFAULT 0;
    ALTER TABLE tidegate.outbox ADD COLUMN later text;
    ALTER TABLE tidegate.dead_letter ADD COLUMN later text;
    ALTER TABLE tidegate.generation ADD COLUMN later text NOT NULL DEFAULT '';
    ALTER TABLE tidegate.relay ADD COLUMN later text NOT NULL DEFAULT '';
    CREATE TABLE tidegate.later (id bigint PRIMARY KEY);
    INSERT INTO tidegate.migration (version, description, success, checksum, execution_time)
    VALUES (9000, 'later', true, '\\x00', 0);
";

// What runs goes on, whichever of the two versions it is; what starts and is too old says so and is not started again
// in a circle (its code is not that of an outage).
#[test]
fn a_process_outlives_a_migration_that_it_does_not_know() {
    let world = World::ledger(2);
    let mut stream = world.stream();
    let (first, second) = (world.start("a"), world.start("b"));
    stream.produce(300);
    world.assert_exact();
    world.db.run(LATER);
    stream.produce(300);
    world.assert_exact();
    let refused = world.launch("late").output(&["run"]).expect(70);
    assert!(
        refused.stderr.contains("9000") && refused.stderr.contains("newer"),
        "{}",
        refused.stderr
    );
    world.launch("relay").output(&["relay"]).expect(70);
    world.tidegate(&["migrate"]).expect(70);
    world.tidegate(&["doctor"]).expect(70);
    // A rebalance makes it claim again, in the newer schema.
    first.stop();
    wait_until(LONG, "the other one has everything", || {
        world.is_owned_by("journal", &second) && world.is_owned_by("balances", &second)
    });
    stream.produce(300);
    world.assert_exact();
    second.stop();
}

/// Has migrations wait in their middle, until the holder lets go.
const WAIT: &str = "
    SELECT pg_advisory_lock(42);
    CREATE FUNCTION public.wait() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(42); END $$;
    CREATE EVENT TRIGGER wait ON ddl_command_start WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION public.wait();
";

/// How many of the others in the database hold a lock of a session's.
const HELD: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

const WAITING: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

// Whoever migrates holds a lock; it goes with its session.
#[test]
fn a_killed_migrator_leaves_no_lock_behind() {
    let world = World::without_kafka();
    let mut holder = world.db.session();
    world.db.run("DROP SCHEMA tidegate CASCADE");
    holder.run("CREATE SCHEMA IF NOT EXISTS public");
    holder.run(WAIT);
    let mut killed = world.launch("killed").instead("migrate").start();
    wait_until(LONG, "it waits in the middle of a migration", || {
        holder.one::<i64>(WAITING) == 1
    });
    assert!(holder.one::<i64>(HELD) >= 1, "it holds its lock");
    // Another one waits for it.
    let mut other = world.launch("other").instead("migrate").start();
    wait_until(LONG, "the other one waits too", || {
        holder.one::<i64>(WAITING) == 2
    });
    killed.kill();
    holder.run("DROP EVENT TRIGGER wait; SELECT pg_advisory_unlock(42)");
    assert_eq!(other.wait(LONG).code(), Some(0), "{}", other.log());
    wait_until(LONG, "nobody holds anything", || {
        holder.one::<i64>(HELD) == 0
    });
    world.tidegate(&["status"]).expect(0);
}
