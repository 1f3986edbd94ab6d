//! Handlers that do what they must not: `examples/misbehaving.rs`.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::harness::{LONG, Launch, Process, World, message_id, wait_until};

/// What a record makes the handler do, what the cause must say, and whether the record itself can be
/// named, so that everything before it is applied.
const MISBEHAVIOURS: [(&str, &[&str], bool); 12] = [
    ("commit", &["has ended the transaction", "COMMIT"], false),
    (
        "commit and begin",
        &["has ended the transaction", "COMMIT"],
        false,
    ),
    (
        "rollback",
        &["has ended the transaction", "ROLLBACK"],
        false,
    ),
    (
        "rollback and begin",
        &["has ended the transaction", "ROLLBACK"],
        false,
    ),
    ("swallow", &["swallowed an SQL error"], false),
    ("swallow, then go on", &["swallowed an SQL error"], false),
    ("swallow in a savepoint", &["swallowed an SQL error"], false),
    (
        "commit in a savepoint",
        &["has ended the transaction", "COMMIT"],
        false,
    ),
    (
        "roll back to a savepoint that is gone",
        &["tidegate_savepoint_2", "3B001"],
        false,
    ),
    ("panic", &["the handler panicked: out of cheese"], true),
    ("reject", &["not this one"], true),
    ("reject without a name", &["one of them"], true),
];

// I1: caught, named, halted; no position moves, and no message leaves.
#[test]
fn a_handler_that_breaks_the_transaction_is_caught() {
    check(&MISBEHAVIOURS);
}

// I1, I10: what is the code's fault, and what is a message's.
#[test]
fn a_handler_that_fails_is_named() {
    check(&[
        ("a missing table", &["nowhere", "42P01"], false),
        // These two cost the connection, or seem to: the halt must be told all the same.
        ("a missing row", &["no rows returned"], false),
        (
            "what postgres does not do",
            &["FOR UPDATE is not allowed", "0A000"],
            false,
        ),
        (
            "emit too much",
            &["emit `huge`", "1000000 are allowed"],
            true,
        ),
    ]);
}

// I1: sqlx's `begin` inside the batch's transaction is a savepoint, so its `rollback` takes back no more.
#[test]
fn a_transaction_of_the_handlers_own_is_only_a_savepoint() {
    let world = World::new(1, "", &[]);
    let sender = world.sender();
    for number in 0..30 {
        let order = if number % 3 == 1 { TAKE_BACK } else { b"{}" };
        sender.send(0, None, Some(order));
    }
    sender.flush();
    let mut process = start(&world, 1);
    world.wait_until_done(LONG);
    let effects: Vec<(i32, i64)> = world
        .db
        .rows("SELECT part, record_offset FROM misbehaving.effect ORDER BY 1, 2");
    let expected: Vec<(i32, i64)> = (0..30).map(|offset| (0, offset)).collect();
    assert_eq!(effects, expected);
    let stream = format!("misbehaving/{}/0", world.incoming());
    assert_eq!(world.outbox_sizes(), BTreeMap::from([(stream, 30)]));
    assert!(process.is_running());
    world.tidegate(&["verify"]).expect(0);
}

// I1, I5: what fails in a savepoint is undone, with its messages; those that follow have the ids that they would have
// had without it.
#[test]
fn a_savepoint_takes_its_messages_along() {
    let world = World::new(1, "", &[]);
    let sender = world.sender();
    for value in ["{}", r#"{"do": "fail in a savepoint"}"#, "{}"] {
        sender.send(0, None, Some(value.as_bytes()));
    }
    sender.flush();
    let _process = start(&world, 1);
    world.wait_until_done(LONG);
    let effects: Vec<(i32, i64)> = world
        .db
        .rows("SELECT part, record_offset FROM misbehaving.effect ORDER BY 1, 2");
    assert_eq!(effects, [(0, 0), (0, 1), (0, 2)]);
    let stored: Vec<(i64, Uuid, String)> = world
        .db
        .rows("SELECT number, id, convert_from(payload, 'UTF8') FROM tidegate.outbox WHERE type <> 'copy' ORDER BY number");
    let log = world.kafka.read_log(world.incoming(), 1);
    let id = |emit, index| message_id("misbehaving", 1, world.incoming(), &log[1], emit, index);
    let expected = [
        (3, id("part", 0), "\"before\"".to_owned()),
        (4, id("part", 1), "\"after\"".to_owned()),
        (5, id("other", 0), "\"after\"".to_owned()),
    ];
    assert_eq!(stored, expected);
    world.tidegate(&["verify"]).expect(0);
}

const TAKE_BACK: &[u8] = br#"{"do": "take back"}"#;

// I1, I10: an error that may pass later is believed only of a transaction that is still ours. What such a
// handler writes outside of it would be written again with every attempt.
#[test]
fn a_handler_that_writes_outside_the_transaction_is_not_tried_again() {
    let world = World::new(1, "", &[]);
    let sender = world.sender();
    sender.send(0, None, Some(br#"{"do": "rollback, then write and fail"}"#));
    sender.flush();
    let process = start(&world, 1);
    let cause = world.wait_until_halted("misbehaving", 0);
    for words in ["has ended the transaction", "ROLLBACK"] {
        assert!(cause.contains(words), "{words:?} in {cause:?}");
    }
    assert!(!process.has_logged(&["batch failed; trying again"]));
    let effects: Vec<(i32, i64)> = world
        .db
        .rows("SELECT part, record_offset FROM misbehaving.effect");
    assert_eq!(effects, [(-1, -1)], "written once, and nothing else is");
    assert_eq!(world.positions()[&("misbehaving".to_owned(), 0)], 0);
}

// I10: a handler that asks to be tried again is, and says so in the position; where its attempts have a
// limit, the record is found and its partition halts. It is never parked.
#[test]
fn a_handler_that_asks_to_be_tried_again_has_a_limit_where_one_is_set() {
    let world = World::new(1, "", &[]);
    let sender = world.sender();
    for value in ["{}", "{}", r#"{"do": "come back later"}"#, "{}"] {
        sender.send(0, None, Some(value.as_bytes()));
    }
    sender.flush();
    let patient = start(&world, 1);
    wait_until(LONG, "it is tried again and again", || {
        let (condition, cause) = world.condition("misbehaving", 0);
        condition == "retrying"
            && cause.starts_with("attempt ")
            && !cause.starts_with("attempt 1:")
            && cause.ends_with(": come back later")
    });
    patient.stop();
    let _limited = world
        .launch("b")
        .example("misbehaving")
        .env("INCOMING_TOPIC", world.incoming())
        .env("OUTGOING_TOPIC", world.outgoing())
        .env("ON_FAILURE", "park")
        .env("ATTEMPTS_MAX", 3)
        .start();
    let cause = world.wait_until_halted("misbehaving", 0);
    for words in ["offset 2: ", "given up after 3 attempts: come back later"] {
        assert!(cause.contains(words), "{words:?} in {cause:?}");
    }
    assert_eq!(world.positions()[&("misbehaving".to_owned(), 0)], 2);
    let parked: i64 = world.db.one("SELECT count(*) FROM tidegate.dead_letter");
    assert_eq!(parked, 0);
}

// I10: a handler that takes longer than a member may be silent costs the process nothing: the group hears of
// it all the time.
#[test]
fn a_handler_that_takes_its_time_keeps_its_membership() {
    let world = World::new(1, "", &[]);
    let sender = world.sender();
    for value in ["{}", r#"{"do": "take its time"}"#, "{}"] {
        sender.send(0, None, Some(value.as_bytes()));
    }
    sender.flush();
    let process = launch(&world, 1)
        .option("max.poll.interval.ms", "6000")
        .env("TIDEGATE__APPLY__DRAIN_MAX", "2s")
        .start();
    wait_until(LONG, "all three are applied", || {
        world
            .positions()
            .get(&("misbehaving".to_owned(), 0))
            .is_some_and(|next| *next == 3)
    });
    let log = process.log();
    assert_eq!(log.matches(" assigned ").count(), 1, "{log}");
    assert_eq!(log.matches(" claimed ").count(), 1, "{log}");
    assert!(!process.has_logged(&["revoked"]));
    let effects: Vec<(i32, i64)> = world
        .db
        .rows("SELECT part, record_offset FROM misbehaving.effect ORDER BY 1, 2");
    assert_eq!(effects, [(0, 0), (0, 1), (0, 2)]);
}

fn launch(world: &World, writers: i32) -> Launch<'_> {
    world
        .launch("a")
        .example("misbehaving")
        .env("INCOMING_TOPIC", world.incoming())
        .env("OUTGOING_TOPIC", world.outgoing())
        .env("TIDEGATE__APPLY__WRITERS", writers)
}

// I6, I10: with parking, a record's fault parks that record and no other; the code's fault parks nothing.
#[test]
fn a_handler_that_fails_at_a_record_parks_that_record_only() {
    let faults = [
        ("panic", "panicked", "the handler panicked: out of cheese"),
        ("reject", "rejected", "not this one"),
        ("reject without a name", "rejected", "one of them"),
        ("emit too much", "rejected", "1000000 are allowed"),
        ("no\0such", "rejected", "do what? no\u{fffd}such"),
    ];
    let of_code = ["swallow", "commit", "a missing table"];
    let all = faults.iter().map(|(what, ..)| *what).chain(of_code);
    let partitions = i32::try_from(faults.len() + of_code.len()).unwrap();
    let world = World::new(partitions, "", &[]);
    let sender = world.sender();
    for (partition, what) in (0..).zip(all) {
        let misbehave = serde_json::json!({ "do": what }).to_string();
        for value in ["{}", "{}", "{}", &misbehave, "{}"] {
            sender.send(partition, None, Some(value.as_bytes()));
        }
    }
    sender.flush();
    let mut process = world
        .launch("a")
        .example("misbehaving")
        .env("INCOMING_TOPIC", world.incoming())
        .env("OUTGOING_TOPIC", world.outgoing())
        .env("TIDEGATE__APPLY__WRITERS", partitions)
        .env("ON_FAILURE", "park")
        .start();
    let next = |partition| {
        world
            .positions()
            .get(&("misbehaving".to_owned(), partition))
            .copied()
    };
    let mut expected: Vec<(i32, i64)> = Vec::new();
    for (partition, (what, reason, detail)) in (0..).zip(faults) {
        wait_until(LONG, &format!("{what} is passed"), || {
            next(partition) == Some(5)
        });
        let letters: Vec<(i64, String, String)> = world.db.rows(&format!(
            "SELECT record_offset, reason, detail FROM tidegate.dead_letter WHERE partition = {partition}"
        ));
        assert_eq!(letters.len(), 1, "{what}: {letters:?}");
        assert_eq!((letters[0].0, &*letters[0].1), (3, reason), "{what}");
        assert!(letters[0].2.contains(detail), "{what}: {letters:?}");
        expected.extend([0, 1, 2, 4].map(|offset| (partition, offset)));
    }
    for (partition, what) in (0..).zip(of_code).map(|(at, what)| (at + 5, what)) {
        world.wait_until_halted("misbehaving", partition);
        let letters: i64 = world.db.one(&format!(
            "SELECT count(*) FROM tidegate.dead_letter WHERE partition = {partition}"
        ));
        assert_eq!(letters, 0, "{what}");
    }
    let effects: Vec<(i32, i64)> = world
        .db
        .rows("SELECT part, record_offset FROM misbehaving.effect WHERE part < 5 ORDER BY 1, 2");
    assert_eq!(effects, expected);
    assert!(process.is_running());
    world.tidegate(&["verify"]).expect(0);
}

// I6: where a handler gets one event at a time, nobody has to search for the one at fault, whether it returns an
// error, is refused by Postgres, or panics.
#[test]
fn an_event_at_fault_is_known_at_once_where_they_are_applied_one_by_one() {
    check_known_at_once(
        "event",
        &[
            ("panic", "panicked", "the handler panicked: out of cheese"),
            ("reject", "rejected", "not this one"),
            ("divide", "database", "division by zero"),
        ],
    );
}

// I6: the same for a fold, which goes by entity.
#[test]
fn an_event_at_fault_is_known_at_once_where_it_is_folded() {
    check_known_at_once(
        "fold",
        &[
            ("panic", "panicked", "the handler panicked: out of cheese"),
            ("reject", "rejected", "not this one"),
        ],
    );
}

// I1: two writers that meet at an entity whose events are in several partitions read its state one after the other,
// although there is no gate.
#[test]
fn a_state_is_read_and_written_by_one_writer_at_a_time() {
    const PARTITIONS: i32 = 3;
    const RECORDS: i64 = 400;
    let world = World::new(PARTITIONS, "", &[]);
    let sender = world.sender();
    for offset in 0..RECORDS {
        for partition in 0..PARTITIONS {
            let key = format!("k-{}", offset % 3);
            sender.send(partition, Some(key.as_bytes()), Some(b"{}"));
        }
    }
    sender.flush();
    let _process = launch(&world, PARTITIONS)
        .env("KIND", "fold")
        .batch_records_max(4)
        .start();
    world.wait_until_done(LONG);
    let mut seen: Vec<(i32, i64)> = world.db.rows(
        "SELECT (place->>0)::int, (place->>1)::bigint FROM misbehaving.seen, jsonb_array_elements(places) AS place",
    );
    seen.sort_unstable();
    let place = |partition| (0..RECORDS).map(move |offset| (partition, offset));
    let expected: Vec<(i32, i64)> = (0..PARTITIONS).flat_map(place).collect();
    assert!(seen == expected, "{} of {}", seen.len(), expected.len());
    let events: i64 = world
        .db
        .one("SELECT sum(events)::bigint FROM misbehaving.seen");
    assert_eq!(events, RECORDS * i64::from(PARTITIONS));
    world.tidegate(&["verify"]).expect(0);
}

// I1: a fold's row appears, changes and goes with its events, however they are cut.
#[test]
fn a_state_that_is_forgotten_begins_anew() {
    for size in [1, 100] {
        let world = World::new(1, "", &[]);
        let sender = world.sender();
        let events = [
            ("a", "{}"),
            ("b", r#"{"do": "x"}"#),
            ("a", r#"{"do": "forget"}"#),
            ("c", r#"{"do": "forget"}"#),
            ("b", r#"{"do": "y\"y"}"#),
            ("d", "{}"),
            ("d", r#"{"do": "forget"}"#),
            ("d", r#"{"do": "z"}"#),
            ("b", "{}"),
        ];
        for (key, value) in events {
            sender.send(0, Some(key.as_bytes()), Some(value.as_bytes()));
        }
        sender.flush();
        let _process = launch(&world, 1)
            .env("KIND", "fold")
            .batch_records_max(size)
            .start();
        world.wait_until_done(LONG);
        let seen: Vec<(String, i64, Option<String>, String)> = world.db.rows(
            "SELECT entity, events, last, places::text FROM misbehaving.seen ORDER BY entity",
        );
        let row = |entity: &str, events, last: Option<&str>, places: &str| {
            (
                entity.to_owned(),
                events,
                last.map(str::to_owned),
                places.to_owned(),
            )
        };
        let expected = [
            row("b", 3, None, "[[0, 1], [0, 4], [0, 8]]"),
            row("d", 1, Some("z"), "[[0, 7]]"),
        ];
        assert_eq!(seen, expected);
        let stream = format!("misbehaving/{}/0", world.incoming());
        assert_eq!(world.outbox_sizes(), BTreeMap::from([(stream, 9)]));
    }
}

/// One record at fault in the middle of each partition: all others are applied, and send their message.
fn check_known_at_once(kind: &str, faults: &[(&str, &str, &str)]) {
    const RECORDS: i64 = 400;
    let partitions = i32::try_from(faults.len()).unwrap();
    let world = World::new(partitions, "", &[]);
    let sender = world.sender();
    for (partition, (what, ..)) in (0..).zip(faults) {
        for offset in 0..RECORDS {
            let value = match offset == RECORDS / 2 {
                true => serde_json::json!({ "do": what }).to_string(),
                false => "{}".to_owned(),
            };
            let key = format!("{partition}-{}", offset % 7);
            sender.send(partition, Some(key.as_bytes()), Some(value.as_bytes()));
        }
    }
    sender.flush();
    let process = launch(&world, partitions)
        .env("KIND", kind)
        .env("ON_FAILURE", "park")
        .start();
    world.wait_until_done(LONG);
    for (partition, (what, reason, detail)) in (0..).zip(faults) {
        let letters: Vec<(i64, String, String)> = world.db.rows(&format!(
            "SELECT record_offset, reason, detail FROM tidegate.dead_letter WHERE partition = {partition} AND reason <> 'behind'"
        ));
        assert_eq!(letters.len(), 1, "{what}: {letters:?}");
        assert_eq!(
            (letters[0].0, &*letters[0].1),
            (RECORDS / 2, *reason),
            "{what}"
        );
        assert!(letters[0].2.contains(detail), "{what}: {letters:?}");
    }
    // Once in the batch that has it, and once alone.
    let failures = process.log().matches("a record is refused").count();
    assert!(failures <= 2 * faults.len(), "{failures}");
    world.tidegate(&["verify"]).expect(0);
}

fn start(world: &World, writers: i32) -> Process {
    launch(world, writers).start()
}

/// Each misbehaviour in a partition and with a writer of its own.
fn check(misbehaviours: &[(&str, &[&str], bool)]) {
    let partitions = i32::try_from(misbehaviours.len()).unwrap();
    let world = World::new(partitions + 1, "", &[]);
    let sender = world.sender();
    for (partition, (what, ..)) in (0..).zip(misbehaviours) {
        let misbehave = serde_json::json!({ "do": what }).to_string();
        for value in ["{}", "{}", "{}", &misbehave, "{}"] {
            sender.send(partition, None, Some(value.as_bytes()));
        }
    }
    for _ in 0..50 {
        sender.send(partitions, None, Some(b"{}"));
    }
    sender.flush();
    let mut process = start(&world, partitions + 1);

    for (partition, (what, says, isolated)) in (0..).zip(misbehaviours) {
        let cause = world.wait_until_halted("misbehaving", partition);
        for words in *says {
            assert!(cause.contains(words), "{what}: {words:?} in {cause:?}");
        }
        let next = world.positions()[&("misbehaving".to_owned(), partition)];
        assert!(next <= 3, "{what}: {next}");
        if *isolated {
            assert_eq!(next, 3, "{what}: what comes before it is applied");
            let place = format!("{}[{partition}] offset 3: ", world.incoming());
            assert!(cause.contains(&place), "{what}: {place:?} in {cause:?}");
        }
    }
    wait_until(LONG, "the good partition is done", || {
        world.positions()[&("misbehaving".to_owned(), partitions)] == 50
    });
    assert!(process.is_running());
    // So are the effects: all of the records below the position, and none above.
    let effects: Vec<(i32, i64)> = world
        .db
        .rows("SELECT part, record_offset FROM misbehaving.effect ORDER BY 1, 2");
    let positions = world.positions().into_iter();
    let expected: Vec<(i32, i64)> = positions
        .flat_map(|((_, partition), next)| (0..next).map(move |offset| (partition, offset)))
        .collect();
    assert_eq!(effects, expected);
    // Messages are those of the records below the positions, no other.
    let messages: BTreeMap<String, usize> = world.outbox_sizes();
    for ((_, partition), next) in world.positions() {
        let stream = format!("misbehaving/{}/{partition}", world.incoming());
        let expected = usize::try_from(next).unwrap();
        assert_eq!(
            messages.get(&stream).copied().unwrap_or(0),
            expected,
            "{stream}"
        );
    }
    world.tidegate(&["verify"]).expect(0);
}
