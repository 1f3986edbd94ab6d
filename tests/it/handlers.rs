//! Handlers that do what they must not: `examples/misbehaving.rs`.

use std::collections::BTreeMap;

use crate::harness::{LONG, World, wait_until};

/// What a record makes the handler do, what the cause must say, and whether the record itself can be
/// named, so that everything before it is applied.
const MISBEHAVIOURS: [(&str, &[&str], bool); 9] = [
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
        (
            "emit too much",
            &["emit `huge`", "1000000 are allowed"],
            true,
        ),
    ]);
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
    let mut process = world
        .launch("a")
        .example("misbehaving")
        .env("INCOMING_TOPIC", world.incoming())
        .env("OUTGOING_TOPIC", world.outgoing())
        .env("TIDEGATE__APPLY__WRITERS", partitions + 1)
        .start();

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
