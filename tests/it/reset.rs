//! A read model is built anew while everything goes on.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::harness::{
    LONG, Proxy, Trouble, Watch, World, create_topic, delete, make_anew, message_id, read_log,
    wait_until,
};

const PROJECTIONS: [&str; 3] = ["balances", "turnover", "journal"];

fn reset(world: &World, projection: &str) {
    let done = world.tidegate(&["reset", projection, "--to", "earliest", "--yes"]);
    assert!(done.expect(0).stdout.contains("This empties all tables"));
}

/// With the projection's topic as another log than was read.
fn reset_new_log(world: &World, projection: &str) -> String {
    let (to, topic) = (["--to", "earliest"], world.incoming());
    let command = [
        &["reset", projection],
        &to[..],
        &["--new-log", topic, "--yes"],
    ]
    .concat();
    world.tidegate(&command).expect(0).stdout
}

/// Where an operator's action found the positions, summed up, and the generation it began.
fn operations(world: &World, projection: &str) -> Vec<(i64, i64)> {
    let rows: Vec<(String, Value, Value, Value)> = world.db.rows(&format!(
        "SELECT who, arguments, before, after FROM tidegate.operation
         WHERE projection = '{projection}' AND kind = 'reset' ORDER BY at"
    ));
    let operation = |(who, arguments, before, after): (String, Value, Value, Value)| {
        assert!(who.contains("tidegate reset"), "{who}");
        assert_eq!(arguments["to"], "earliest");
        let sum = |of: &Value| -> i64 {
            let offsets = of["next_offset"].as_object().unwrap();
            offsets.values().map(|next| next.as_i64().unwrap()).sum()
        };
        assert_eq!(sum(&after), 0);
        (sum(&before), after["generation"].as_i64().unwrap())
    };
    rows.into_iter().map(operation).collect()
}

// I2, I3, I5: two resets, the second in the middle of the refill of the first, with two processes at
// work and a stream that goes on.
#[test]
pub(crate) fn a_reset_under_load_repeats_and_loses_nothing() {
    let world = World::ledger(4);
    let mut stream = world.stream();
    stream.produce(3_000);
    // Slow, so that there is a middle.
    let start = |name: &str| {
        let launch = world.launch(name).batch_records_max(50);
        launch.failpoints("apply-before-commit=sleep(10)").start()
    };
    let (first, second) = (start("first"), start("second"));
    let feeder = stream.feed(300);
    let watch = Watch::over(&world.db);
    for projection in PROJECTIONS {
        wait_until(LONG, "both work", || {
            world.has_some_of(projection, &first) && world.has_some_of(projection, &second)
        });
    }
    let progress = |projection: &str| -> i64 {
        let positions = world.positions().into_iter();
        let own = positions.filter(|((name, _), _)| name == projection);
        own.map(|(_, next)| next).sum()
    };
    for projection in PROJECTIONS {
        wait_until(LONG, "much is applied", || progress(projection) > 2_000);
        reset(&world, projection);
        wait_until(LONG, "the refill has begun", || progress(projection) > 100);
        reset(&world, projection);
    }
    feeder.finish();
    world.assert_exact();
    watch.assert_only_grown();

    for projection in PROJECTIONS {
        let operations = operations(&world, projection);
        let [(before_first, 2), (before_second, 3)] = operations[..] else {
            panic!("{projection}: {operations:?}");
        };
        assert!(
            before_second > 0 && before_second < before_first,
            "{operations:?}"
        );
        // What was before stays as history.
        let history: i64 = world.db.one(&format!(
            "SELECT sum(next_offset)::bigint FROM tidegate.position
             WHERE projection = '{projection}' AND generation = 1"
        ));
        assert_eq!(history, before_first);
    }
}

// I5: what is applied between the question where the log ends and the lock lies beyond that end. It is no sign of
// another log, whose messages would be new ones.
#[test]
fn a_reset_right_behind_the_log_sends_nothing_again() {
    let world = World::ledger(2);
    let feeder = world.stream().feed(500);
    let _process = world.start("a");
    wait_until(LONG, "it works", || world.progress() >= 1_000);
    // Long enough after the question for many records.
    let proxy = Proxy::to(&world.db.address(), |_| Trouble::None);
    proxy.delay(Duration::from_millis(100));
    let slow = world.db.url_by(proxy.address());
    let command = world.launch("reset").env("TIDEGATE__POSTGRES__URL", slow);
    let done = command.output(&["reset", "journal", "--to", "earliest", "--yes"]);
    let told = done.expect(0).stdout;
    assert!(!told.contains("made anew"), "{told}");
    feeder.finish();
    world.assert_exact();
}

// I3: an operator's action and a batch keep out of each other's way by a lock that is taken first.
#[test]
fn a_reset_waits_for_the_open_batch() {
    let world = World::journal(1);
    world.stream().produce(50);
    let process = world
        .launch("a")
        .failpoints("apply-before-advance=1*sleep(3000)")
        .start();
    wait_until(LONG, "the first batch is open", || {
        world.is_amid_batch("journal", &process)
    });
    let locks = |mode: &str, granted: bool| -> i64 {
        world.db.one(&format!(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = '{mode}' AND granted = {granted}
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        ))
    };
    assert_eq!(
        locks("ShareLock", true),
        1,
        "the batch holds the generation lock"
    );
    thread::scope(|scope| {
        let resetting = scope.spawn(|| reset(&world, "journal"));
        wait_until(LONG, "the reset waits for the lock", || {
            locks("ExclusiveLock", false) == 1
        });
        resetting.join().unwrap();
    });
    world.assert_exact();
    let [(before, 2)] = operations(&world, "journal")[..] else {
        panic!("one reset");
    };
    assert!(before > 0, "the batch was committed first");
}

// I10: nothing happens that could run into the fence, and the refill begins all the same.
#[test]
fn a_reset_is_noticed_while_nothing_comes_in() {
    let world = World::ledger(2);
    world.stream().produce(200);
    let process = world.start("a");
    world.assert_exact();
    reset(&world, "balances");
    process.wait_for_log(LONG, &["fenced while idle"]);
    world.assert_exact();
    let generation: i32 = world
        .db
        .one("SELECT live_generation FROM tidegate.projection WHERE name = 'balances'");
    assert_eq!(generation, 2);
}

// I8 and I2: what a reset does, it does in one transaction, so one that fails changes nothing.
#[test]
fn a_refused_reset_leaves_everything_as_it_was() {
    let mut world = World::ledger(2);
    world.stream().produce(200);
    let process = world.start("a");
    world.assert_exact();
    process.stop();
    let epochs = |world: &World| -> i64 {
        world
            .db
            .one("SELECT sum(epoch)::bigint FROM tidegate.position")
    };
    let before = (world.stored(), world.positions(), epochs(&world));

    // Somebody else's table depends on a table of the projection: nothing says CASCADE.
    world.db.run(
        "CREATE SCHEMA theirs;
         CREATE TABLE theirs.note (account text REFERENCES balances.balance (account));",
    );
    let refused = world.tidegate(&["reset", "balances", "--to", "earliest", "--yes"]);
    assert!(refused.expect(70).stderr.contains("SQLSTATE 0A000"));
    assert_eq!((world.stored(), world.positions(), epochs(&world)), before);

    // The tables are not those that the setup would make now.
    world.db.run("DROP TABLE theirs.note");
    std::fs::write(
        world.folder().join("balances.sql"),
        "CREATE TABLE other (account text)",
    )
    .unwrap();
    let refused = world.tidegate(&["reset", "balances", "--to", "earliest", "--yes"]);
    assert!(
        refused
            .expect(70)
            .stderr
            .contains("setup SQL of `balances` has changed")
    );

    // A seed that fails, in the middle of the transaction.
    std::fs::write(
        world.folder().join("seed.sql"),
        "INSERT INTO turnover SELECT 1 / 0",
    )
    .unwrap();
    world.change_projections(
        "setup    = \"turnover.sql\"",
        "setup    = \"turnover.sql\"\nseed     = \"seed.sql\"",
    );
    world
        .tidegate(&["reset", "turnover", "--to", "earliest", "--yes"])
        .expect(70);
    assert_eq!((world.stored(), world.positions(), epochs(&world)), before);
    let operations: i64 = world.db.one("SELECT count(*) FROM tidegate.operation");
    assert_eq!(operations, 0);
}

// I2: a changed definition neither goes on from these tables nor halts: it waits, and says why.
#[test]
fn a_changed_definition_waits_until_a_reset() {
    let mut world = World::ledger(2);
    world.stream().produce(200);
    let process = world.start("a");
    world.assert_exact();
    process.stop();
    let before = world.stored();

    world.change_projections(
        "[projections.turnover]",
        "[projections.turnover]\nversion  = 2",
    );
    world.stream().produce(100);
    let process = world.start("a");
    process.wait_for_log(
        LONG,
        &[
            "not claimed",
            "built by another definition",
            "version 1",
            "version 2",
        ],
    );
    wait_until(LONG, "the others go on", || {
        world.stored().journal.len() == 300
    });
    assert_eq!(world.stored().turnover, before.turnover);

    reset(&world, "turnover");
    world.assert_exact();
}

/// Sends a copy of every record.
const COPIES: &str = r#"
[projections.copies]
topics  = ["@in@"]
gate    = "none"
setup   = "copies.sql"
columns = { account = "text" }

[[projections.copies.apply]]
sql = "INSERT INTO copies (record_offset) SELECT _offset FROM events"

[[projections.copies.emit]]
name  = "copy"
topic = "@out@"
sql   = "SELECT _ref, account AS key, jsonb_build_object('offset', _offset) AS payload FROM events"
"#;

// I5, I6: a topic of the same name is another topic. That its log is shorter than the position is told, and
// the messages of its records are new ones although the offsets are old.
#[test]
fn a_topic_made_anew_sends_messages_of_its_own() {
    let setup = "CREATE TABLE copies (record_offset bigint NOT NULL)";
    let world = World::new(1, COPIES, &[("copies.sql", setup)]);
    world.stream().produce(50);
    let mut process = world.start("a");
    world.wait_until_done(LONG);
    let stream = format!("copies/{}/0", world.incoming());
    let before = world.outbox().remove(&stream).unwrap();
    assert_eq!(before.len(), 50);

    make_anew(world.incoming(), 1);
    let cause = world.wait_until_halted("copies", 0);
    for words in ["50", "the topic was made anew", "tidegate reset copies"] {
        assert!(cause.contains(words), "{words:?} in {cause:?}");
    }
    world.stream().produce(20);
    // Not without a word.
    let new_log = format!("--new-log {}", world.incoming());
    let told = world.tidegate(&["reset", "copies", "--to", "earliest", "--dry-run"]);
    let told = told.expect(0).stdout;
    for words in ["is taken for a new log (its id was", &new_log] {
        assert!(told.contains(words), "{words:?} in {told}");
    }
    let refused = world.tidegate(&["reset", "copies", "--to", "earliest", "--yes"]);
    let refused = refused.expect(70).stderr;
    assert!(refused.contains(&new_log), "{refused}");
    assert_eq!(world.outbox()[&stream].len(), 50);
    let told = reset_new_log(&world, "copies");
    let words = format!("topic {} was made anew since", world.incoming());
    assert!(told.contains(&words), "{words:?} in {told}");

    world.wait_until_done(LONG);
    let offsets: Vec<(i64,)> = world
        .db
        .rows("SELECT record_offset FROM copies.copies ORDER BY 1");
    assert_eq!(offsets, (0..20).map(|offset| (offset,)).collect::<Vec<_>>());
    let after = world.outbox().remove(&stream).unwrap();
    assert_eq!(after[..50], before, "what was sent before stays");
    let payloads: Vec<&Value> = after[50..].iter().map(|message| &message.payload).collect();
    let expected: Vec<Value> = (0..20).map(|offset| json!({ "offset": offset })).collect();
    assert_eq!(payloads, expected.iter().collect::<Vec<_>>());
    let ids: BTreeSet<Uuid> = after.iter().map(|message| message.id).collect();
    assert_eq!(ids.len(), 70, "no id is there twice");
    // Made as documented, with the topic's second id.
    let log = world.log();
    let id = |record| message_id("copies", 2, world.incoming(), record, "copy", 0);
    let expected: Vec<Uuid> = log.iter().map(id).collect();
    let found: Vec<Uuid> = after[50..].iter().map(|message| message.id).collect();
    assert_eq!(found, expected);
    wait_until(LONG, "all of them are sent", || {
        read_log(world.outgoing(), 1).len() >= 70
    });
    assert!(process.is_running());
    world.tidegate(&["verify"]).expect(0);

    // And once only: the same topic is not taken for a new one again.
    let told = world.tidegate(&["reset", "copies", "--to", "earliest", "--yes"]);
    assert!(!told.expect(0).stdout.contains("made anew"));
    world.wait_until_done(LONG);
    assert_eq!(world.outbox()[&stream].len(), 70);
}

// I5: a topic that was left out comes back as what it was, with the ids and the right to emit of that log, or as another one if
// it has become that meanwhile.
#[test]
fn a_topic_that_comes_back_sends_nothing_twice() {
    let setup = "CREATE TABLE copies (record_offset bigint NOT NULL)";
    let mut world = World::new(1, COPIES, &[("copies.sql", setup)]);
    let stream = format!("copies/{}/0", world.incoming());
    let sent = |world: &World| {
        let messages = world.outbox().remove(&stream).unwrap();
        let ids: BTreeSet<Uuid> = messages.iter().map(|message| message.id).collect();
        assert_eq!(ids.len(), messages.len(), "no id is there twice");
        messages.len()
    };
    world.stream().produce(10);
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    make_anew(world.incoming(), 1);
    world.stream().produce(20);
    reset_new_log(&world, "copies");
    let process = world.start("b");
    world.wait_until_done(LONG);
    process.stop();
    assert_eq!(sent(&world), 30);

    let elsewhere = format!("{}-elsewhere", world.incoming());
    create_topic(&elsewhere, 1);
    let leave = |world: &mut World| {
        world.change_projections("\"@in@\"", &format!("\"{elsewhere}\""));
        reset(world, "copies");
    };
    let come_back =
        |world: &mut World| world.change_projections(&format!("\"{elsewhere}\""), "\"@in@\"");
    leave(&mut world);
    come_back(&mut world);
    reset(&world, "copies");
    let process = world.start("c");
    world.wait_until_done(LONG);
    process.stop();
    assert_eq!(sent(&world), 30);

    leave(&mut world);
    make_anew(world.incoming(), 1);
    world.stream().produce(5);
    come_back(&mut world);
    let refused = world.tidegate(&["reset", "copies", "--to", "earliest", "--yes"]);
    let refused = refused.expect(70).stderr;
    assert!(refused.contains("--new-log"), "{refused}");
    reset_new_log(&world, "copies");
    let process = world.start("d");
    world.wait_until_done(LONG);
    process.stop();
    assert_eq!(sent(&world), 35);
    delete(&[&elsewhere], &[]);
}

// I5: of two operators who take a topic for a new log in the same moment, one has begun it, and the other looks again.
#[test]
fn a_new_log_is_begun_once() {
    let setup = "CREATE TABLE copies (record_offset bigint NOT NULL)";
    let world = World::new(1, COPIES, &[("copies.sql", setup)]);
    world.stream().produce(50);
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    make_anew(world.incoming(), 1);
    world.stream().produce(20);
    // Nothing but the log's end tells that it is another one.
    world.db.run("UPDATE tidegate.position SET topic_id = NULL");
    let mut session = world.db.session();
    session.run("BEGIN");
    session.run("SELECT FROM tidegate.projection FOR UPDATE");
    let waiting = || -> i64 {
        world.db.one(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
             AND application_name LIKE 'tidegate reset%' AND wait_event_type = 'Lock'",
        )
    };
    let topic = world.incoming();
    let command = [
        "reset",
        "copies",
        "--to",
        "earliest",
        "--new-log",
        topic,
        "--yes",
    ];
    let mut codes = thread::scope(|scope| {
        let resets = ["one", "two"].map(|name| {
            let launch = world.launch(name);
            let launch = launch.env("TIDEGATE__POSTGRES__LOCK_TIMEOUT", "60s");
            scope.spawn(|| launch.output(&command))
        });
        wait_until(LONG, "both wait", || waiting() == 2);
        session.run("COMMIT");
        resets.map(|reset| reset.join().unwrap().code)
    });
    codes.sort_unstable();
    assert_eq!(codes, [0, 75]);
    let found: i32 = world
        .db
        .one("SELECT max(incarnation) FROM tidegate.position");
    assert_eq!(found, 2);
}
