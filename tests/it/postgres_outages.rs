//! Postgres goes away, comes back, changes places or forgets its clients. The service is never started
//! anew, and in the end everything is there once.

use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{
    Feeder, LONG, Launch, PostgresServer, Process, Route, Servers, Watch, World, wait_until,
};
use crate::relay::assert_sent;

/// A service of many small batches, whose relay waits for no lease for long.
fn launch(world: &World) -> Launch<'_> {
    let launch = world.launch("a").batch_records_max(30);
    launch.env("TIDEGATE__RELAY__LEASE", "1s")
}

/// Waits until so many more records are applied.
#[track_caller]
fn wait_for_more(world: &World, records: i64) {
    let target = world.progress() + records;
    wait_until(LONG, "it goes on", || world.progress() >= target);
}

/// Everything is applied and sent once, nothing is halted, and it is still the same process.
#[track_caller]
fn assert_survived(world: &World, process: &mut Process, feeder: Feeder) {
    feeder.finish();
    world.assert_exact();
    assert_sent(world);
    let halted: i64 = world
        .db
        .one("SELECT count(*) FROM tidegate.position WHERE condition <> 'running'");
    assert_eq!(halted, 0);
    assert!(!process.has_logged(&["halting"]));
    assert!(process.is_running());
}

// I1, I2, I10
#[test]
fn a_postgres_restart_is_survived() {
    let mut postgres = PostgresServer::start();
    let world = World::ledger_at(&Servers::shared().with_postgres(&postgres), 2);
    let feeder = world.stream().feed(300);
    let mut process = launch(&world).start();
    wait_until(LONG, "it has begun", || world.progress() > 300);
    let watch = Watch::over(&world.db);
    for stop in [PostgresServer::stop_fast, PostgresServer::stop_immediately] {
        stop(&mut postgres);
        process.wait_for_log(LONG, &["connection given up; claiming again", "refused"]);
        postgres.start_again();
        world.db.reconnect();
        wait_for_more(&world, 500);
    }
    assert_survived(&world, &mut process, feeder);
    watch.assert_only_grown();
}

// I6, I10: however much has come meanwhile, and whatever the batches of that moment were answered.
#[test]
fn half_a_minute_without_postgres_parks_nothing() {
    const OUTAGE: Duration = Duration::from_secs(30);
    let mut postgres = PostgresServer::start();
    let world = World::ledger_at(&Servers::shared().with_postgres(&postgres), 2);
    let feeder = world.stream().feed(500);
    let mut process = launch(&world).start();
    wait_until(LONG, "it has begun", || world.progress() > 300);
    let watch = Watch::over(&world.db);
    postgres.stop_immediately();
    let began = Instant::now();
    wait_until(LONG, "the outage lasts", || {
        assert!(process.is_running());
        began.elapsed() >= OUTAGE
    });
    postgres.start_again();
    world.db.reconnect();
    wait_for_more(&world, 500);
    assert_survived(&world, &mut process, feeder);
    let parked: i64 = world.db.one("SELECT count(*) FROM tidegate.dead_letter");
    assert_eq!(parked, 0);
    watch.assert_only_grown();
}

// I1, I10: what is asked of a node that only reads is tried again, until the address leads to one that
// writes. The last one is a standby that lags behind: what it does not know is applied again.
#[test]
fn a_failover_to_a_read_only_node_and_back_is_survived() {
    let mut primary = PostgresServer::start();
    let mut standby = primary.standby();
    let route = Route::to(&primary.address());
    let servers = Servers::shared().with_postgres(&primary).by_route(&route);
    let world = World::ledger_at(&servers, 2);
    let feeder = world.stream().feed(300);
    let read_only = "read-write mode during recovery";

    primary.wait_for_standby(&standby);
    route.lead_to(&standby.address());
    let mut process = launch(&world).start();
    process.wait_for_log(LONG, &["not started yet; trying again", read_only]);
    route.lead_to(&primary.address());
    world.db.reconnect();
    wait_until(LONG, "it has begun", || world.progress() > 300);

    route.lead_to(&standby.address());
    process.wait_for_log(LONG, &["connection given up", read_only]);
    process.wait_for_log(LONG, &["relay: reading again", read_only]);
    route.lead_to(&primary.address());
    world.db.reconnect();
    wait_for_more(&world, 300);

    // A default is not what our transactions run with.
    primary.set("default_transaction_read_only", "on");
    wait_for_more(&world, 300);
    primary.set("default_transaction_read_only", "off");

    standby.follow_no_more();
    wait_for_more(&world, 500);
    let ahead = world.progress();
    primary.kill();
    standby.promote();
    route.lead_to(&standby.address());
    world.db.reconnect();
    let behind = world.progress();
    assert!(behind < ahead, "{behind} {ahead}");
    wait_for_more(&world, 500);
    assert_survived(&world, &mut process, feeder);
}

// I1, I2, I10: again and again, faster than a claim and a batch take.
#[test]
fn terminated_backends_are_survived() {
    let world = World::ledger(2);
    let feeder = world.stream().feed(300);
    let mut process = launch(&world).start();
    wait_until(LONG, "it has begun", || world.progress() > 300);
    let watch = Watch::over(&world.db);
    let mut terminated: i64 = 0;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        terminated += world.db.one::<i64>(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'tidegate%'",
        );
        thread::sleep(Duration::from_millis(20));
    }
    assert!(terminated > 20, "{terminated}");
    assert_survived(&world, &mut process, feeder);
    watch.assert_only_grown();
}

// I9, I10: it knows that nobody but itself holds its streams.
#[test]
fn a_relay_that_lost_its_connection_does_not_wait_for_its_own_lease() {
    let world = World::ledger(2);
    let mut stream = world.stream();
    // Enough for a message in every stream.
    stream.produce(400);
    let process = launch(&world).start();
    wait_until(LONG, "all streams are known", || is_all_sent(&world));
    process.stop();
    let _process = launch(&world).env("TIDEGATE__RELAY__LEASE", "10m").start();
    stream.produce(50);
    for _ in 0..3 {
        world.wait_until_done(LONG);
        wait_until(LONG, "all is sent", || is_all_sent(&world));
        let ended: i64 = world.db.one(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'tidegate % relay'",
        );
        assert_eq!(ended, 1);
        stream.produce(50);
    }
    world.assert_exact();
    assert_sent(&world);
}

// I1, I10: the transaction is ended while a handler thinks, and its next statement finds out.
#[test]
fn an_idle_in_transaction_kill_is_survived() {
    let world = World::new(1, "", &[]);
    let sender = world.sender();
    for value in ["{}", r#"{"do": "wait for long, once"}"#, "{}"] {
        sender.send(0, None, Some(value.as_bytes()));
    }
    sender.flush();
    let mut process = world
        .launch("a")
        .example("misbehaving")
        .env("INCOMING_TOPIC", world.incoming())
        .env("OUTGOING_TOPIC", world.outgoing())
        .env("TIDEGATE__POSTGRES__IDLE_IN_TRANSACTION_TIMEOUT", "1s")
        .start();
    world.wait_until_done(LONG);
    assert!(process.has_logged(&["connection given up; claiming again"]));
    let effects: Vec<(i64,)> = world
        .db
        .rows("SELECT record_offset FROM misbehaving.effect ORDER BY 1");
    assert_eq!(effects, [(0,), (1,), (2,)]);
    let messages: i64 = world.db.one("SELECT count(*) FROM tidegate.outbox");
    assert_eq!(messages, 3);
    assert_eq!(world.condition("misbehaving", 0).0, "running");
    assert!(process.is_running());
    world.tidegate(&["verify"]).expect(0);
}

// I10: the network forgets a connection, and tells neither end.
#[test]
fn a_half_open_connection_is_noticed() {
    let shared = Servers::shared();
    let world = World::ledger_at(&shared, 2);
    let route = Route::to(&world.db.address());
    let feeder = world.stream().feed(300);
    let mut process = launch(&world)
        .env("TIDEGATE__POSTGRES__URL", world.db.url_by(route.address()))
        .env("TIDEGATE__POSTGRES__STATEMENT_TIMEOUT", "500ms")
        .env("TIDEGATE__POSTGRES__IDLE_IN_TRANSACTION_TIMEOUT", "2s")
        .start();
    wait_until(LONG, "it has begun", || world.progress() > 300);
    let watch = Watch::over(&world.db);
    route.forget();
    process.wait_for_log(
        LONG,
        &["connection given up; claiming again", "took longer than"],
    );
    wait_for_more(&world, 500);
    assert_survived(&world, &mut process, feeder);
    watch.assert_only_grown();
}

// I9: an application's rows are visible before they are durable, and the relay waits for the second.
#[test]
fn the_relay_never_sends_what_a_postgres_crash_takes_back() {
    let mut postgres = PostgresServer::start();
    // Nobody makes anything durable by the way.
    postgres.set("synchronous_commit", "off");
    postgres.set("wal_writer_delay", "10s");
    let world = World::journal_at(&Servers::shared().with_postgres(&postgres), 1);
    let mut random = world.random();
    let mut process = launch(&world).start();
    let has_taken = |times: usize| {
        let taken = |line: &&str| line.contains("stream taken stream=\"app\"");
        process.log().lines().filter(taken).count() >= times
    };
    emit(&world, 1);
    let (mut round, mut taken_back) = (0, 0);
    while round < 6 || taken_back == 0 {
        round += 1;
        wait_until(LONG, "the relay has the stream", || has_taken(round));
        let before = emit(&world, 5);
        // Before the relay has seen them, while it sends them, or after.
        thread::sleep(Duration::from_millis(random.u64(..400)));
        postgres.kill();
        postgres.start_again();
        world.db.reconnect();
        let after = count(&world);
        eprintln!("round {round}: {after} of {before} messages are left");
        taken_back += before - after;
    }
    wait_until(LONG, "the rest is sent", || is_all_sent(&world));
    let stored: Vec<(String,)> = world.db.rows("SELECT id::text FROM tidegate.outbox");
    for record in world.sent() {
        let id = (record.header("ce_id").to_owned(),);
        assert!(stored.contains(&id), "{id:?} is sent, and nowhere stored");
    }
    assert!(process.is_running());
}

fn is_all_sent(world: &World) -> bool {
    world.db.one(
        "SELECT count(*) > 0 AND bool_and(s.emitted = coalesce(r.sent_through, 0))
         FROM tidegate.stream s LEFT JOIN tidegate.relay r USING (stream)",
    )
}

fn count(world: &World) -> i64 {
    world.db.one("SELECT count(*) FROM tidegate.outbox")
}

/// Puts messages in the outbox as `outbox_insert.sql` does, and says how many are there then.
fn emit(world: &World, messages: i64) -> i64 {
    world.db.run(&format!(
        "WITH counter AS (
             INSERT INTO tidegate.stream AS s (stream, emitted) VALUES ('app', {messages})
             ON CONFLICT (stream) DO UPDATE SET emitted = s.emitted + excluded.emitted
             RETURNING emitted
         )
         INSERT INTO tidegate.outbox (stream, number, id, topic, key, payload, type, source)
         SELECT 'app', emitted - {messages} + n, gen_random_uuid(), '{}', 'k', '{{}}', 't', '/app'
         FROM counter, generate_series(1, {messages}) n",
        world.outgoing()
    ));
    count(world)
}
