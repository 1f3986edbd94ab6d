//! A stop in order: whenever it comes, it ends soon, loses nothing and leaves its partitions to others at once.

use std::time::{Duration, Instant};

use crate::harness::{
    KafkaServer, LONG, PostgresServer, Process, Route, Servers, World, wait_until,
};

/// What librdkafka has where nobody says otherwise.
const SESSION: Duration = Duration::from_secs(45);

/// Whether somebody in the test's database waits for a lock.
fn waits_for_a_lock(world: &World) -> bool {
    let waiting: i64 = world.db.one(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
    );
    waiting > 0
}

/// Nothing of what belongs to the test is left behind, and a successor has the partitions soon.
#[track_caller]
fn assert_successor_goes_on(world: &World, total: i64) {
    let successor = world.start("successor");
    wait_until(LONG, "the successor has applied everything", || {
        world.progress() == total
    });
    successor.stop();
}

// A stop at any moment: in a handler's statement, waiting for records, waiting for a lock.
#[test]
fn a_stop_ends_soon_wherever_it_comes() {
    let world = World::journal(1);
    let sender = world.sender();
    let send = || {
        sender.send_json(0, &serde_json::json!({ "account": "a" }));
        sender.flush();
    };
    send();
    let stops_within = |process: Process, limit: Duration| {
        let began = Instant::now();
        process.stop();
        assert!(began.elapsed() < limit, "{:?}", began.elapsed());
    };
    // Idle.
    let process = world.start("idle");
    wait_until(LONG, "it has applied", || world.progress() == 1);
    stops_within(process, Duration::from_secs(8));
    // In a statement that waits for a lock: aborted when the drain is over, and rolled back.
    let mut holder = world.db.session();
    holder.run("BEGIN; LOCK TABLE journal.journal");
    let process = world
        .launch("blocked")
        .env("TIDEGATE__APPLY__DRAIN_MAX", "1s")
        .start();
    send();
    wait_until(LONG, "it waits for the lock", || waits_for_a_lock(&world));
    stops_within(process, Duration::from_secs(12));
    assert_eq!(world.progress(), 1, "what was open is rolled back");
    holder.run("ROLLBACK");
    assert_successor_goes_on(&world, 2);
}

// In the middle of a handler's statement: it may finish, and what it did is kept.
#[test]
fn a_stop_lets_a_handler_finish() {
    let world = World::journal(1);
    let process = world.start("a");
    wait_until(LONG, "it is there", || {
        world.is_owned_by("journal", &process)
    });
    world.db.run(
        "CREATE FUNCTION journal.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(3); RETURN NEW; END $$;
         CREATE TRIGGER dawdle BEFORE INSERT ON journal.journal FOR EACH ROW EXECUTE FUNCTION journal.dawdle()",
    );
    let sender = world.sender();
    sender.send_json(0, &serde_json::json!({ "account": "a" }));
    sender.flush();
    wait_until(LONG, "its handler is at work", || {
        world.db.one(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()",
        )
    });
    process.stop();
    assert_eq!(world.progress(), 1, "what was open is committed");
    let rows: i64 = world.db.one("SELECT count(*) FROM journal.journal");
    assert_eq!(rows, 1);
}

// Nobody answers any more: the broker, or the database, has ended first.
#[test]
fn a_stop_waits_for_no_server_that_has_ended() {
    const LIMIT: Duration = Duration::from_secs(25);
    let mut kafka = KafkaServer::start();
    let mut postgres = PostgresServer::start();
    let servers = Servers::private(&kafka, &postgres);
    let world = World::ledger_at(&servers, 2);
    let mut stream = world.stream();
    stream.produce(100);
    let launch = |name: &str| world.launch(name).env("TIDEGATE__APPLY__DRAIN_MAX", "1s");
    let (first, second) = (launch("a").start(), launch("b").start());
    world.assert_exact();
    kafka.kill();
    let began = Instant::now();
    first.stop();
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    postgres.kill();
    let began = Instant::now();
    second.stop();
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    kafka.start_again();
    postgres.start_again();
    world.db.reconnect();
    let process = world.start("c");
    stream.produce(100);
    world.assert_exact();
    process.stop();
}

#[test]
fn a_second_signal_ends_at_once_and_loses_nothing() {
    let world = World::journal(1);
    let mut holder = world.db.session();
    let process = world.start("first");
    wait_until(LONG, "it is there", || {
        world.is_owned_by("journal", &process)
    });
    holder.run("BEGIN; LOCK TABLE journal.journal");
    let sender = world.sender();
    sender.send_json(0, &serde_json::json!({ "account": "a" }));
    sender.flush();
    wait_until(LONG, "it waits for the lock", || waits_for_a_lock(&world));
    process.signal("TERM");
    process.wait_for_log(LONG, &["stopping"]);
    process.signal("TERM");
    let mut process = process;
    let began = Instant::now();
    assert_eq!(process.wait(LONG).code(), Some(75));
    assert!(began.elapsed() < Duration::from_secs(3));
    holder.run("ROLLBACK");
    assert_successor_goes_on(&world, 1);
}

// The database does not answer any more, not even with an error.
#[test]
fn a_stop_waits_for_no_database() {
    let world = World::journal(1);
    let route = Route::to(&world.db.address());
    let process = world
        .launch("a")
        .env("TIDEGATE__POSTGRES__URL", world.db.url_by(route.address()))
        .env("TIDEGATE__APPLY__DRAIN_MAX", "1s")
        .start();
    wait_until(LONG, "it is there", || {
        world.is_owned_by("journal", &process)
    });
    route.forget();
    route.lead_to("127.0.0.1:1");
    let began = Instant::now();
    process.stop();
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
}

// A stop is a small rebalance: who stays has the partitions when it learns of it, by its next heartbeat, and not when a
// session of 45 s has ended. The fastest of three counts, since the machine may be busy with something else.
#[test]
fn a_successor_has_the_partitions_of_who_stops_within_two_seconds() {
    // As brokers have it by default, and those of the other tests do not.
    let kafka = KafkaServer::start_with("group.initial.rebalance.delay.ms=3000");
    let world = World::journal_at(&Servers::shared().with_kafka(&kafka), 2);
    let start = |name: &str| world.launch(name).usual_session().start();
    let successor = start("successor");
    let took = (0..3).map(|_| {
        let process = start("a");
        wait_until(LONG, "each has one", || {
            world.owned_by("journal", &process) == 1 && world.owned_by("journal", &successor) == 1
        });
        let began = Instant::now();
        process.signal("TERM");
        wait_until(SESSION / 2, "the other one has both", || {
            world.owned_by("journal", &successor) == 2
        });
        let took = began.elapsed();
        process.expect_stopped();
        took
    });
    let took: Vec<Duration> = took.collect();
    assert!(
        took.iter().min() < Some(&Duration::from_secs(2)),
        "{took:?}"
    );
    successor.stop();
}
