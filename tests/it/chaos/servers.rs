//! Kafka or Postgres is killed under load, and comes back.

use crate::harness::{KafkaServer, LONG, PostgresServer, Servers, Watch, World, wait_until};

// I1, I2, I10: whatever the server's own settings say of durability.
#[test]
fn a_killed_postgres_is_waited_for_and_takes_nothing_back() {
    let mut postgres = PostgresServer::start();
    postgres.set("synchronous_commit", "off");
    postgres.set("wal_writer_delay", "10s");
    let servers = Servers::shared().with_postgres(&postgres);
    let world = World::ledger_at(&servers, 2);
    let feeder = world.stream().feed(500);
    let mut process = world.launch("a").batch_records_max(30).start();
    let watch = Watch::over(&world.db);
    let mut target = 300;
    for end in [PostgresServer::kill, PostgresServer::stop_immediately] {
        wait_until(LONG, "it works", || world.progress() >= target);
        end(&mut postgres);
        postgres.start_again();
        world.db.reconnect();
        target = world.progress() + 500;
    }
    wait_until(LONG, "it goes on", || world.progress() >= target);
    feeder.finish();
    world.assert_exact();
    watch.assert_only_grown();
    assert!(process.is_running());
}

// I9, I10: the broker has what it acknowledged; what it did not, the relay sends again.
#[test]
fn a_killed_broker_is_waited_for_and_misses_nothing() {
    let mut kafka = KafkaServer::start();
    let world = World::ledger_at(&Servers::shared().with_kafka(&kafka), 2);
    let feeder = world.stream().feed(500);
    let mut process = world.launch("a").batch_records_max(30).start();
    for _ in 0..2 {
        let target = world.progress() + 500;
        wait_until(LONG, "it works", || world.progress() >= target);
        kafka.kill();
        kafka.start_again();
    }
    let target = world.progress() + 500;
    wait_until(LONG, "it goes on", || world.progress() >= target);
    feeder.finish();
    world.assert_exact();
    crate::relay::assert_sent(&world);
    assert!(process.is_running());
}

// I10: with the broker gone there is nobody to take leave of, and nothing to wait for.
#[test]
fn a_stop_while_the_broker_is_gone_ends_in_time() {
    let mut kafka = KafkaServer::start();
    let world = World::ledger_at(&Servers::shared().with_kafka(&kafka), 2);
    let feeder = world.stream().feed(500);
    let process = world.launch("a").batch_records_max(30).start();
    wait_until(LONG, "it works", || world.progress() >= 500);
    feeder.finish();
    kafka.kill();
    process.signal("TERM");
    process.expect_stopped();
    kafka.start_again();
    world.assert_tables_are_at_the_positions();
}

// I10: nobody restarts it. It goes on applying what it has while the broker is away, so that there are
// positions to mirror when its session ends; the broker is back right then.
#[test]
fn a_static_member_outlives_a_broker_that_was_away_for_longer_than_its_session() {
    let mut kafka = KafkaServer::start();
    let world = World::journal_at(&Servers::shared().with_kafka(&kafka), 2);
    let mut stream = world.stream();
    stream.produce(2_000);
    let launch = world.launch("a").comes_back().batch_records_max(5);
    let mut process = launch
        .option("reconnect.backoff.max.ms", "100")
        .failpoints("apply-before-commit=sleep(30)")
        .start();
    wait_until(LONG, "it works", || world.progress() >= 100);
    kafka.kill();
    kafka.almost_start_again();
    process.wait_for_log(LONG, &["SESSTMOUT"]);
    kafka.finish_start();
    stream.produce(100);
    wait_until(LONG, "it has everything, or has ended", || {
        world.progress() >= 2_100 || !process.is_running()
    });
    world.assert_exact();
    assert!(process.is_running());
}
