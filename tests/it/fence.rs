//! Workers that are late, stopped or in the way.

use std::time::{Duration, Instant};

use crate::harness::{LONG, World, wait_until};

/// A projection whose batches take their time in the database.
const SLOW: &str = r#"
[projections.slow]
topics  = ["@in@"]
gate    = "none"
setup   = "slow.sql"
columns = { account = "text" }

[[projections.slow.apply]]
sql = "INSERT INTO slow (partition, record_offset) SELECT _partition, _offset FROM events"

[[projections.slow.apply]]
per_event = true
sql = "INSERT INTO pace SELECT count(pg_sleep((SELECT max(seconds) FROM public.patience))) FROM (SELECT * FROM events LIMIT 1) e"
"#;

const SLOW_FILE: (&str, &str) = (
    "slow.sql",
    "CREATE TABLE slow (partition integer NOT NULL, record_offset bigint NOT NULL);
     CREATE TABLE pace (waited bigint NOT NULL)",
);

// I3: a revoke waits for the open batch, but not for ever; what is aborted was never there.
#[test]
fn a_batch_that_is_late_at_a_revoke_is_aborted() {
    let world = World::new(2, SLOW, &[SLOW_FILE]);
    world.db.run("CREATE TABLE public.patience (seconds float8 NOT NULL); INSERT INTO public.patience VALUES (20)");
    let count = 40;
    let sender = world.sender();
    for number in 0..count {
        sender.send_json(number % 2, &serde_json::json!({ "account": "a" }));
    }
    sender.flush();
    let late = world
        .launch("late")
        .env("TIDEGATE__APPLY__DRAIN_MAX", "500ms")
        .start();
    wait_until(LONG, "the first is amid a batch", || {
        world.db.one(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'",
        )
    });
    world.db.run("UPDATE public.patience SET seconds = 0");
    let began = Instant::now();
    let next = world.start("next");
    late.wait_for_log(LONG, &["not done in time; aborting it"]);
    late.wait_for_log(LONG, &["a revoke does not wait any longer"]);
    wait_until(LONG, "the second has a partition", || {
        world.has_some_of("slow", &next)
    });
    let took = began.elapsed();
    assert!(took < Duration::from_secs(15), "took {took:?}");
    world.wait_until_done(LONG);
    let rows: Vec<(i64, i64)> = world
        .db
        .rows("SELECT count(*), count(DISTINCT (partition, record_offset)) FROM slow.slow");
    assert_eq!(rows, [(i64::from(count), i64::from(count))]);
    world.tidegate(&["verify"]).expect(0);
}

// I3: a worker that stopped right before its COMMIT holds the position's row. Its successor ends it, and
// need not wait for the server to do so.
#[test]
fn a_straggler_that_blocks_a_claim_is_ended() {
    let world = World::journal(1);
    world.stream().produce(100);
    let idle = "TIDEGATE__POSTGRES__IDLE_IN_TRANSACTION_TIMEOUT";
    let straggler = world
        .launch("straggler")
        .env(idle, "10m")
        .failpoints("apply-before-commit=1*sleep(20000)")
        .start();
    wait_until(LONG, "the straggler is amid a batch", || {
        world.is_amid_batch("journal", &straggler)
    });
    straggler.signal("STOP");
    let next = world.launch("next").env(idle, "10m").start();
    next.wait_for_log(LONG, &["ended a transaction that held locks", "apply"]);
    world.assert_exact();
    assert!(world.is_owned_by("journal", &next));
    straggler.signal("CONT");
    straggler.wait_for_log(LONG, &["connection given up"]);
    world.assert_exact();
}

// I3: the same for one that holds gate rows, which its successor's batch needs, not its claim.
#[test]
fn a_straggler_that_blocks_a_batch_is_ended() {
    let world = World::ledger(1);
    world.stream().produce(100);
    let idle = "TIDEGATE__POSTGRES__IDLE_IN_TRANSACTION_TIMEOUT";
    let straggler = world
        .launch("straggler")
        .env(idle, "10m")
        .failpoints("apply-before-advance=1*off->1*sleep(20000)->off")
        .start();
    wait_until(LONG, "the straggler is amid a batch", || {
        ["balances", "turnover", "journal"]
            .iter()
            .any(|projection| world.is_amid_batch(projection, &straggler))
    });
    straggler.signal("STOP");
    let _next = world.launch("next").env(idle, "10m").start();
    world.assert_exact();
    straggler.signal("CONT");
    world.assert_exact();
}
