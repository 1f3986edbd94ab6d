//! The database is away, slow or contradictory for a while. Nothing is skipped, nobody restarts anything.

use serde_json::json;

use crate::harness::{LONG, Proxy, Sender, Trouble, World, create_topic, delete, wait_until};

// I10: somebody holds a row for longer than a statement waits for it.
#[test]
pub(crate) fn a_lock_that_is_held_too_long_is_waited_for() {
    let world = World::ledger(2);
    let mut stream = world.stream();
    stream.produce(300);
    let mut process = world
        .launch("a")
        .env("TIDEGATE__POSTGRES__LOCK_TIMEOUT", "400ms")
        .start();
    world.assert_exact();

    let mut holder = world.db.session();
    holder.run("BEGIN; SELECT 1 FROM balances.balance FOR UPDATE");
    stream.produce(300);
    wait_until(LONG, "the batch is tried again", || {
        let (condition, cause) = world.condition("balances", 0);
        condition == "retrying" && cause.contains("55P03")
    });
    process.wait_for_log(LONG, &["batch failed; trying again", "failures=3"]);
    holder.run("ROLLBACK");
    world.assert_exact();
    wait_until(LONG, "it says that it goes on", || {
        (0..2).all(|partition| {
            world.condition("balances", partition) == ("running".to_owned(), String::new())
        })
    });
    assert!(process.is_running());
}

// I10: connections are cut at any moment, again and again.
#[test]
fn a_lost_connection_is_replaced() {
    let world = World::ledger(2);
    let mut random = world.random();
    let feeder = world.stream().feed(500);
    let mut process = world.launch("a").batch_records_max(30).start();
    wait_until(LONG, "it has begun", || world.progress() > 200);
    let mut ended = 0;
    while ended < 12 {
        let target = world.progress() + random.i64(1..400);
        wait_until(LONG, "it goes on", || world.progress() >= target);
        let victims: i64 = world.db.one(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'tidegate%'",
        );
        ended += victims;
    }
    feeder.finish();
    world.assert_exact();
    assert!(process.has_logged(&["connection given up; claiming again"]));
    assert!(process.is_running());
}

// I1, I10: the connection breaks exactly at COMMIT. Whether it was done is asked, not guessed.
#[test]
fn an_unanswered_commit_is_settled_by_the_position() {
    let world = World::ledger(2);
    let mut stream = world.stream();
    stream.produce(400);
    // Every seventh COMMIT gets lost, before the server has it or after, in turn. Claims and the relay's too.
    let proxy = Proxy::to(&world.db.address(), |commits| match commits % 14 {
        6 => Trouble::AnswerLost,
        13 => Trouble::RequestLost,
        _ => Trouble::None,
    });
    let mut process = world
        .launch("a")
        .env("TIDEGATE__POSTGRES__URL", world.db.url_by(proxy.address()))
        .env("TIDEGATE__RELAY__LEASE", "1s")
        .batch_records_max(10)
        .start();
    world.wait_until_done(LONG);
    stream.produce(200);
    world.assert_exact();
    assert!(proxy.cuts() > 10, "{} cuts", proxy.cuts());
    assert!(process.has_logged(&["a commit was not answered"]));
    assert!(process.has_logged(&["already committed by me"]));
    assert!(process.is_running());
}

// I10: the database does not answer at the start, and comes later.
#[test]
fn a_start_without_a_database_waits_for_it() {
    let world = World::journal(1);
    world.stream().produce(20);
    let address = Proxy::free_address();
    let process = world
        .launch("a")
        .env("TIDEGATE__POSTGRES__URL", world.db.url_by(&address))
        .start();
    process.wait_for_log(LONG, &["not started yet; trying again", "failures=2"]);
    Proxy::at(&address, &world.db.address(), |_| Trouble::None);
    world.assert_exact();
}

// I10: a deadlock between two writers is nobody's fault. Both hold a row that the other one wants.
#[test]
fn a_deadlock_is_tried_again() {
    let projections = r#"
[projections.pair]
topics   = ["@in@"]
gate     = "none"
setup    = "pair.sql"
columns  = { account = "text" }

[[projections.pair.apply]]
sql = """
INSERT INTO pair AS p (name, count) SELECT CASE _partition WHEN 0 THEN 'x' ELSE 'y' END, count(*) FROM events GROUP BY 1
ON CONFLICT (name) DO UPDATE SET count = p.count + excluded.count"""

[[projections.pair.apply]]
sql = """
INSERT INTO pair AS p (name, count) SELECT CASE _partition WHEN 0 THEN 'y' ELSE 'x' END, count(*) FROM events GROUP BY 1
ON CONFLICT (name) DO UPDATE SET count = p.count + excluded.count"""
"#;
    let setup = "CREATE TABLE pair (name text PRIMARY KEY, count bigint NOT NULL)";
    let world = World::new(2, projections, &[("pair.sql", setup)]);
    let mut stream = world.stream();
    let mut process = world
        .launch("a")
        .env("TIDEGATE__APPLY__WRITERS", 2)
        .batch_records_max(1)
        .start();
    let mut produced = 0;
    wait_until(LONG, "there was a deadlock", || {
        stream.produce(100);
        produced += 100;
        process.has_logged(&["batch failed; trying again", "40P01"])
    });
    world.wait_until_done(LONG);
    let counts: Vec<(String, i64)> = world
        .db
        .rows("SELECT name, count FROM pair.pair ORDER BY 1");
    assert_eq!(
        counts,
        [("x".to_owned(), produced), ("y".to_owned(), produced)]
    );
    assert!(process.is_running());
    world.tidegate(&["verify"]).expect(0);
}

// I10: each projection starts on its own, and so does the relay.
#[test]
fn a_missing_topic_keeps_nobody_else_waiting() {
    let mut world = World::ledger(2);
    let later = format!("{}-later", world.incoming());
    world.change_projections(
        "[projections.balances]",
        &format!(
            r#"[projections.absent]
topics = ["{later}"]
gate   = "none"
columns = {{ account = "text" }}

[[projections.absent.apply]]
sql = "SELECT 1 FROM events"

[projections.balances]"#
        ),
    );
    world.stream().produce(200);
    let mut process = world.start("a");
    process.wait_for_log(LONG, &["not started yet; trying again", &later]);
    world.assert_exact();
    wait_until(LONG, "their messages are sent", || {
        world.db.one(
            "SELECT count(*) > 0 AND bool_and(s.emitted = coalesce(r.sent_through, 0))
             FROM tidegate.stream s LEFT JOIN tidegate.relay r USING (stream)",
        )
    });
    let absent = ("absent".to_owned(), 0);
    assert_eq!(world.positions().get(&absent), None);

    create_topic(&later, 1);
    wait_until(LONG, "it starts once its topic is there", || {
        world.positions().contains_key(&absent)
    });
    assert!(process.is_running());
    process.stop();
    delete(&[&later], &[&world.group("absent")]);
}

// I10: a batch that never ends in time would be tried for ever. In `statements` one statement takes too long,
// in `batches` all of them together.
#[test]
fn a_batch_that_is_too_slow_is_cut_until_it_passes() {
    let projections = r#"
[projections.statements]
topics   = ["@in@"]
gate     = "none"
setup    = "slow.sql"
columns  = { account = "text" }

[[projections.statements.apply]]
sql = "INSERT INTO slow (record_offset) SELECT _offset FROM events"

[[projections.statements.apply]]
sql = "SELECT pg_sleep(0.03) FROM events"

[projections.batches]
topics   = ["@in@"]
entity   = "/account"
gate     = "none"
setup    = "slow.sql"
columns  = { account = "text" }

[[projections.batches.apply]]
per_event = true
sql = "INSERT INTO slow (record_offset) SELECT _offset FROM events"

[[projections.batches.apply]]
per_event = true
sql = "SELECT pg_sleep(0.1) FROM events"
"#;
    let setup = "CREATE TABLE slow (record_offset bigint NOT NULL)";
    let world = World::new(1, projections, &[("slow.sql", setup)]);
    let sender = world.sender();
    for number in 0..80 {
        sender.send_json(0, &json!({ "account": "a", "number": number }));
    }
    sender.flush();
    let mut process = world
        .launch("a")
        .env("TIDEGATE__POSTGRES__STATEMENT_TIMEOUT", "700ms")
        .start();
    world.wait_until_done(LONG);
    for (projection, why) in [("statements", "57014"), ("batches", "took longer than")] {
        let told = [
            &*format!("projection=\"{projection}\""),
            why,
            "records at once",
        ];
        assert!(process.has_logged(&told), "{told:?}");
        let offsets: Vec<(i64,)> = world.db.rows(&format!(
            "SELECT record_offset FROM {projection}.slow ORDER BY 1"
        ));
        assert_eq!(offsets, (0..80).map(|offset| (offset,)).collect::<Vec<_>>());
    }
    assert!(process.is_running());
    world.tidegate(&["verify"]).expect(0);
}

// I10: a client that loses a partition says nothing. Silence alone is no reason to fetch again: what an open
// transaction holds back will come, and neither the end of a transaction nor an aborted one is a record.
#[test]
fn a_partition_that_stands_still_is_fetched_again_and_no_other_is() {
    let world = World::journal(4);
    let plain = world.sender();
    let records = |sender: &Sender, partition| {
        (0..10).for_each(|_| sender.send_json(partition, &json!({ "account": "a" })));
        sender.flush();
    };
    (0..2).for_each(|partition| records(&plain, partition));
    let in_transactions = Sender::in_transactions(world.incoming());
    in_transactions.begin();
    records(&in_transactions, 2);
    in_transactions.commit();
    in_transactions.begin();
    records(&in_transactions, 3);
    in_transactions.abort();
    in_transactions.begin();
    records(&in_transactions, 1);
    let process = world
        .launch("a")
        .failpoints("kafka-fetch-lost=1*return->off")
        .start();
    let place = format!("partition={}[0]", world.incoming());
    process.wait_for_log(LONG, &["stands still", &place, "next=0", "end=10"]);
    let at = |partition| world.positions()[&("journal".to_owned(), partition)];
    wait_until(LONG, "it goes on", || at(0) == 10);
    assert_eq!([at(1), at(2)], [10, 11]);
    assert_eq!(process.log().matches("stands still").count(), 1);
    in_transactions.commit();
    plain.send_json(3, &json!({ "account": "a" }));
    plain.flush();
    wait_until(LONG, "what comes later comes", || {
        [at(1), at(3)] == [21, 12]
    });
    world.tidegate(&["verify"]).expect(0);
}
