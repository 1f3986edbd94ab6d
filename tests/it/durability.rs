//! Batches that do not wait for the disk, and a Postgres that is killed.

use crate::harness::{LONG, PostgresServer, Servers, World, committed_offsets, wait_until};

// I1, I2, I7: what a crash takes back it takes back as a whole, it is applied again, and Kafka was told of
// nothing that could be taken back.
#[test]
fn batches_that_do_not_wait_for_the_disk_fall_back_as_a_whole() {
    let mut postgres = PostgresServer::start();
    postgres.set("wal_writer_delay", "10s");
    let servers = Servers::shared().with_postgres(&postgres);
    let world = World::ledger_at(&servers, 2);
    let feeder = world.stream().feed(500);
    let mut process = world
        .launch("a")
        .env("TIDEGATE__APPLY__SYNCHRONOUS_COMMIT", "false")
        // Its own transactions wait for the disk, and take everything before them along.
        .env("TIDEGATE__RELAY__ENABLED", "false")
        .batch_records_max(30)
        // One alone: every writer that confirms its positions makes those of all others durable.
        .argument("--only")
        .argument("journal")
        .start();
    let mut random = world.random();
    let mut taken_back = 0;
    for _ in 0..8 {
        let target = world.progress() + random.i64(200..700);
        wait_until(LONG, "it works", || world.progress() >= target);
        process.signal("STOP");
        let before = world.progress();
        postgres.kill();
        postgres.start_again();
        world.db.reconnect();
        let positions = world.positions();
        taken_back += before - world.progress();
        let group = world.group("journal");
        for (partition, mirrored) in committed_offsets(&group, world.incoming(), 2) {
            let stored = positions[&("journal".to_owned(), partition)];
            assert!(
                mirrored <= stored,
                "{mirrored} is mirrored, {stored} is stored"
            );
        }
        world.assert_tables_are_at_the_positions();
        process.signal("CONT");
    }
    assert!(taken_back > 0, "no crash has taken anything back");
    feeder.finish();
    world.assert_exact();
    assert!(process.is_running());
}
