//! The outbox leaves for Kafka: all of it, in order, with repeats that can be told.

use std::collections::BTreeMap;

use serde_json::json;

use crate::harness::{LONG, LogRecord, MockBroker, Process, World, set_topic, wait_until};
use crate::relay_quarantine::{passed, release};

/// Whether every message of the outbox is sent, as far as the stored cursors know.
pub(crate) fn is_all_sent(world: &World) -> bool {
    world.db.one(
        "SELECT count(*) > 0 AND bool_and(s.emitted = coalesce(r.sent_through, 0)) AND NOT EXISTS (
             SELECT FROM tidegate.quarantine WHERE state IN ('waiting', 'released'))
         FROM tidegate.stream s LEFT JOIN tidegate.relay r USING (stream)",
    )
}

fn has_all_streams(world: &World, process: &Process) -> bool {
    world.db.one(&format!(
        "SELECT count(*) > 0 AND bool_and(owner LIKE '%-{}-%') FROM tidegate.relay",
        process.pid()
    ))
}

/// Waits for the end, and compares the topic with the outbox: every id is there; repeats are the same
/// message; the first copies of a key in a stream are in the order of the outbox. Returns how many
/// repeats there are.
#[track_caller]
pub(crate) fn assert_sent(world: &World) -> usize {
    wait_until(LONG, "everything is sent", || is_all_sent(world));
    let outbox = world.outbox();
    let mut streams: BTreeMap<String, &str> = BTreeMap::new();
    for (stream, messages) in &outbox {
        streams.extend(messages.iter().map(|m| (m.id.to_string(), &**stream)));
    }
    let sent = world.sent();
    let mut first: BTreeMap<&str, &LogRecord> = BTreeMap::new();
    let mut order: BTreeMap<(&str, &[u8]), Vec<&str>> = BTreeMap::new();
    for record in &sent {
        let id = record.header("ce_id");
        let key = record.key.as_deref().unwrap();
        if let Some(known) = first.get(id) {
            assert_eq!(known.value, record.value, "a repeat is the same message");
            assert_eq!(known.headers, record.headers);
            assert_eq!(known.partition, record.partition);
        } else {
            let stream = streams.get(id);
            let stream = stream.unwrap_or_else(|| panic!("not in the outbox: {record:?}"));
            first.insert(id, record);
            order.entry((stream, key)).or_default().push(id);
        }
    }
    let mut stored_order: BTreeMap<(&str, &[u8]), Vec<String>> = BTreeMap::new();
    for (stream, messages) in &outbox {
        let source = format!("/tidegate/{}", stream.split('/').next().unwrap());
        for (number, message) in (1..).zip(messages) {
            let id = message.id.to_string();
            let record = first
                .get(&*id)
                .unwrap_or_else(|| panic!("{id} of {stream} is not there"));
            assert_eq!(record.json(), message.payload);
            assert_eq!(record.header("ce_specversion"), "1.0");
            assert_eq!(record.header("ce_source"), source);
            assert_eq!(record.header("ce_sequence"), format!("{number}"));
            assert_eq!(record.header("content-type"), "application/json");
            let key = (&**stream, message.key.as_bytes());
            stored_order.entry(key).or_default().push(id);
        }
    }
    for (key, ids) in stored_order {
        let (stream, name) = (key.0, String::from_utf8_lossy(key.1));
        assert_eq!(order[&key], ids, "{stream} {name}");
    }
    sent.len() - first.len()
}

// I9: what the broker has and the cursor does not know is sent again, with the same id.
#[test]
fn a_relay_that_ends_before_its_cursor_moves_repeats_the_same_messages() {
    let world = World::ledger(3);
    let feeder = world.stream().feed(400);
    let launch = || {
        let launch = world.launch("a").comes_back();
        launch.env("TIDEGATE__RELAY__LEASE", "1s")
    };
    for after in [0, 2] {
        let failpoints = format!("relay-before-cursor={after}*off->return");
        let status = launch().failpoints(&failpoints).start().wait(LONG);
        assert_eq!(status.code(), None, "it ended at the crash point");
        let sent = world.sent().len();
        let known: i64 = world
            .db
            .one("SELECT coalesce(sum(sent_through), 0)::bigint FROM tidegate.relay");
        assert!(
            i64::try_from(sent).unwrap() > known,
            "{sent} sent, {known} known"
        );
    }
    let _process = launch().start();
    feeder.finish();
    world.assert_exact();
    assert!(assert_sent(&world) > 0, "something was sent twice");
}

// I9: leases change hands while messages are under way, and one relay sleeps with some.
#[test]
pub(crate) fn two_relays_send_everything_in_order() {
    let world = World::ledger(3);
    let feeder = world.stream().feed(400);
    let start = |name: &str| {
        let launch = world.launch(name).env("TIDEGATE__RELAY__LEASE", "1s");
        launch.batch_records_max(100).start()
    };
    let first = start("first");
    wait_until(LONG, "the first sends", || has_all_streams(&world, &first));
    let second = start("second");
    for _ in 0..2 {
        first.signal("STOP");
        wait_until(LONG, "the second has all leases", || {
            has_all_streams(&world, &second)
        });
        first.signal("CONT");
        // Or it slept amid its transaction, which was ended.
        wait_until(LONG, "the first has noticed", || {
            first.has_logged(&["relay:", "lost"]) || first.has_logged(&["relay: reading again"])
        });
        second.signal("STOP");
        wait_until(LONG, "the first has all leases", || {
            has_all_streams(&world, &first)
        });
        second.signal("CONT");
    }
    feeder.finish();
    world.assert_exact();
    assert_sent(&world);
    first.stop();
    second.stop();
    let held: i64 = world
        .db
        .one("SELECT count(*) FROM tidegate.relay WHERE owner <> ''");
    assert_eq!(held, 0, "a clean stop gives the leases up");
}

// I9: without a reason to send anything again, nothing is.
#[test]
fn a_relay_that_is_left_alone_sends_each_message_once() {
    let world = World::ledger(3);
    let mut stream = world.stream();
    stream.produce(500);
    let process = world.start("a");
    world.assert_exact();
    stream.produce(300);
    world.assert_exact();
    assert_eq!(assert_sent(&world), 0);
    process.stop();
    stream.produce(100);
    let process = world.start("a");
    world.assert_exact();
    assert_eq!(assert_sent(&world), 0, "nor over a clean stop");
    process.stop();
}

// I9: a process that only applies leaves the sending to others.
#[test]
fn the_relay_can_run_elsewhere() {
    let world = World::ledger(2);
    world.stream().produce(200);
    let applies = world
        .launch("applies")
        .env("TIDEGATE__RELAY__ENABLED", "false")
        .start();
    world.assert_exact();
    assert!(world.sent().is_empty());
    applies.stop();
    let status = world.status();
    let waiting = status["outbox"].as_array().unwrap().iter();
    assert!(
        waiting
            .map(|stream| stream["unsent"].as_i64().unwrap())
            .sum::<i64>()
            >= 200
    );
    let _sends = world.start("sends");
    assert_eq!(assert_sent(&world), 0);
}

/// Sends a letter of random text for each record.
const LETTERS: &str = r#"
[projections.letter]
topics  = ["@in@"]
gate    = "none"
columns = { account = "text", number = "bigint", text = "text" }

[[projections.letter.apply]]
sql = "SELECT 1 FROM events"

[[projections.letter.emit]]
name  = "copy"
topic = "@out@"
sql   = "SELECT _ref, account AS key, jsonb_build_object('number', number, 'text', text) AS payload FROM events"
"#;

/// Writes so many letters to each partition. The text is random, since a broker's limit is for what is
/// compressed.
fn write_letters(world: &World, numbers: i64, length: impl Fn(i32, i64) -> usize) {
    let sender = world.sender();
    let mut random = world.random();
    for number in 0..numbers {
        for partition in 0..world.partitions() {
            let text: String = (0..length(partition, number))
                .map(|_| random.alphanumeric())
                .collect();
            let letter =
                json!({ "account": format!("a-{partition}"), "number": number, "text": text });
            sender.send_json(partition, &letter);
        }
    }
    sender.flush();
}

// I9: messages travel together, and a broker may take each of them but not all at once.
#[test]
fn a_topic_that_takes_less_than_a_batch_gets_every_message() {
    let world = World::new(2, LETTERS, &[]);
    set_topic(world.outgoing(), "max.message.bytes", "3000");
    write_letters(&world, 150, |_, _| 300);
    let process = world.start("a");
    assert_sent(&world);
    assert!(process.has_logged(&["relay: not sent", "MessageSizeTooLarge"]));
}

// I9: what the broker would take does not arrive before what it does not take, however late the relay
// looks at the answers.
#[test]
fn nothing_overtakes_a_message_that_the_broker_refuses() {
    let world = World::new(1, LETTERS, &[]);
    set_topic(world.outgoing(), "max.message.bytes", "60000");
    write_letters(&world, 600, |_, number| match number {
        5 => 200_000,
        _ => 1_000,
    });
    // All are handed over at once, and travel in many batches.
    let holder = Holder::of(&world, "letter");
    let process = world
        .launch("a")
        .option("batch.size", "20000")
        .failpoints("relay-handed-over=1*sleep(2000)")
        .start();
    wait_until(LONG, "all is in the outbox", || world.progress() == 600);
    holder.let_go();
    process.wait_for_log(LONG, &["relay: put in quarantine", "number=6"]);
    wait_until(LONG, "all wait behind it", || {
        passed(&world, &holder.stream) == 600
    });
    let sent = world.sent();
    let number = |record: &LogRecord| record.json()["number"].as_i64().unwrap();
    let overtaken: Vec<i64> = sent.iter().map(number).filter(|n| *n > 5).collect();
    assert!(overtaken.is_empty(), "{overtaken:?}");

    set_topic(world.outgoing(), "max.message.bytes", "400000");
    release(&world);
    assert_sent(&world);
}

/// Another relay, so to speak: it has a stream's lease and sends nothing.
struct Holder<'w> {
    world: &'w World,
    stream: String,
}

impl<'w> Holder<'w> {
    fn of(world: &'w World, projection: &str) -> Self {
        let stream = format!("{projection}/{}/0", world.incoming());
        world.db.run(&format!(
            "INSERT INTO tidegate.stream (stream) VALUES ('{stream}');
             UPDATE tidegate.relay SET owner = 'holder', lease_until = 'infinity'"
        ));
        Self { world, stream }
    }

    fn let_go(&self) {
        let free = "UPDATE tidegate.relay SET owner = '', lease_until = '-infinity'";
        self.world.db.run(free);
    }
}

// I9, I10: a stop waits for no answer. What is under way is sent again by the next relay.
#[test]
fn a_stop_waits_for_no_broker() {
    let world = World::new(1, LETTERS, &[]);
    let broker = MockBroker::with_topics(&[world.incoming(), world.outgoing()], 1);
    let sender = broker.sender(world.incoming());
    let letter = json!({ "account": "a", "number": 1, "text": "x" });
    sender.send_json(0, &letter);
    sender.flush();
    // Nothing is sent while the broker still answers.
    let holder = Holder::of(&world, "letter");
    let process = world
        .launch("a")
        .env(
            "TIDEGATE__KAFKA__BOOTSTRAP_SERVERS",
            broker.bootstrap_servers(),
        )
        .env("TIDEGATE__RELAY__LEASE", "1s")
        .start();
    let letters = ("letter".to_owned(), 0);
    wait_until(LONG, "the letter is in the outbox", || {
        world.positions().get(&letters) == Some(&1)
    });
    broker.fall_silent();
    holder.let_go();
    process.wait_for_log(LONG, &["relay: the broker does not answer"]);
    process.stop();
    let relays: Vec<(i64, String)> = world
        .db
        .rows("SELECT sent_through, owner FROM tidegate.relay");
    assert_eq!(relays, [(0, String::new())], "not sent, and given up");
}
