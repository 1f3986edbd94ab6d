//! Operators' commands for messages that cannot be sent. How they come there, and leave, is in `relay_quarantine`.

use crate::harness::World;

/// Ten messages of one stream, all sent or in quarantine: number, topic, key, and what it waits for.
fn world(quarantined: &[(i64, &str, &str, Waits)]) -> World {
    let world = World::without_kafka();
    world.db.run(
        "INSERT INTO tidegate.stream (stream, emitted) VALUES ('p/in/0', 10);
         INSERT INTO tidegate.outbox (stream, number, id, topic, key, payload, type, source)
         SELECT 'p/in/0', n, gen_random_uuid(), 'out', 'k', convert_to('{\"n\": ' || n || '}', 'UTF8'), 'line', '/p'
         FROM generate_series(1, 10) AS n;
         UPDATE tidegate.relay SET sent_through = 10",
    );
    for (number, topic, key, waits) in quarantined {
        let holds = match waits {
            Waits::Topic(_) => format!("sha256('{topic}')"),
            Waits::Key(_) => format!("sha256('{topic}'::bytea || '\\x00' || '{key}')"),
        };
        let (Waits::Topic(reason) | Waits::Key(reason)) = waits;
        world.db.run(&format!(
            "UPDATE tidegate.outbox SET topic = '{topic}', key = '{key}' WHERE number = {number};
             INSERT INTO tidegate.quarantine (stream, number, reason, detail, holds, attempts)
             VALUES ('p/in/0', {number}, '{reason}', 'why {number}', {holds}, 1)"
        ));
    }
    world
}

/// What a message in quarantine holds, and its reason.
enum Waits {
    Topic(&'static str),
    Key(&'static str),
}

fn in_state(world: &World, state: &str) -> Vec<i64> {
    let rows: Vec<(i64,)> = world.db.rows(&format!(
        "SELECT number FROM tidegate.quarantine WHERE state = '{state}' ORDER BY number"
    ));
    rows.into_iter().map(|(number,)| number).collect()
}

// I9: in order per key, through the quarantine too.
#[test]
fn with_a_message_all_that_waits_of_its_key_is_released() {
    let world = world(&[
        (2, "out", "a", Waits::Key("too_large")),
        (3, "out", "b", Waits::Key("refused")),
        (5, "out", "a", Waits::Key("behind")),
        (8, "out", "b", Waits::Key("behind")),
    ]);
    let release = ["outbox", "release", "--stream", "p/in/0", "--number", "2"];
    world.tidegate(&release).expect(0);
    assert_eq!(in_state(&world, "released"), [2, 5]);
    assert_eq!(in_state(&world, "waiting"), [3, 8]);
    let recorded: String = world
        .db
        .one("SELECT before::text FROM tidegate.operation WHERE kind = 'release'");
    assert_eq!(recorded, r#"{"messages": {"p/in/0": [2]}}"#);
}

// I9
#[test]
fn nothing_is_released_past_an_earlier_message_of_its_key() {
    let world = world(&[
        (2, "out", "a", Waits::Key("too_large")),
        (4, "out", "b", Waits::Topic("no_permission")),
        (5, "out", "a", Waits::Topic("behind")),
        (6, "out", "c", Waits::Topic("behind")),
    ]);
    let command = ["outbox", "release", "--reason", "no_permission"];
    let output = world.tidegate(&command).expect(0);
    assert_eq!(in_state(&world, "released"), [4, 6]);
    assert!(
        output.stdout.contains("released 2 messages"),
        "{}",
        output.stdout
    );
    world.tidegate(&["outbox", "release", "--all"]).expect(0);
    assert_eq!(in_state(&world, "waiting"), [0; 0]);
}

#[test]
fn what_waits_behind_a_discarded_message_alone_is_sent() {
    let world = world(&[
        (2, "out", "a", Waits::Key("too_large")),
        (3, "out", "b", Waits::Key("too_large")),
        (5, "out", "a", Waits::Key("behind")),
        (6, "out", "b", Waits::Key("behind")),
        (7, "out", "b", Waits::Key("refused")),
    ]);
    for number in ["2", "3"] {
        let which = ["--stream", "p/in/0", "--number", number];
        let command = ["outbox", "discard", "--why", "told them", "--yes"];
        world.tidegate(&[&command[..], &which].concat()).expect(0);
    }
    assert_eq!(in_state(&world, "discarded"), [2, 3]);
    assert_eq!(in_state(&world, "released"), [5]);
    assert_eq!(
        in_state(&world, "waiting"),
        [6, 7],
        "7 cannot be sent either"
    );
    let why: i64 = world.db.one(
        "SELECT count(*) FROM tidegate.operation
         WHERE kind = 'discard' AND arguments ->> 'why' = 'told them'",
    );
    assert_eq!(why, 2);
}

#[test]
fn a_message_in_quarantine_is_shown_with_its_reason_and_its_bytes() {
    let world = world(&[
        (2, "out", "a", Waits::Key("too_large")),
        (5, "out", "a", Waits::Key("behind")),
    ]);
    let list = world.tidegate(&["outbox", "quarantine", "list"]).expect(0);
    for part in ["too_large", "behind", "why 2", "why 5"] {
        assert!(list.stdout.contains(part), "{part}: {}", list.stdout);
    }
    let show = ["outbox", "quarantine", "show", "p/in/0", "2"];
    let shown = world.tidegate(&show).expect(0);
    assert!(
        shown.stdout.contains(r#"payload      {"n": 2}"#),
        "{}",
        shown.stdout
    );
    let other = ["outbox", "quarantine", "show", "p/in/0", "3"];
    let refused = world.tidegate(&other).expect(64);
    assert!(
        refused.stderr.contains("not in quarantine"),
        "{}",
        refused.stderr
    );
    let status = world.tidegate(&["outbox", "status", "--json"]).expect(0);
    assert_eq!(status.json()[0]["quarantined"], 2);
    // Which ones is said, not assumed.
    world.tidegate(&["outbox", "release"]).expect(64);
}

// The quarantine refers to the outbox: what waits cannot be removed there.
#[test]
fn a_message_in_quarantine_cannot_leave_the_outbox() {
    let world = world(&[(2, "out", "a", Waits::Key("too_large"))]);
    let refused = world
        .db
        .session()
        .try_run("DELETE FROM tidegate.outbox WHERE number = 2");
    assert!(refused.unwrap_err().contains("quarantine"));
}

// What waits behind two of them is behind the other one still, once the first is gone.
#[test]
fn what_waited_behind_two_goes_with_the_last_of_them() {
    let of = || {
        world(&[
            (2, "out", "a", Waits::Key("too_large")),
            (4, "out", "b", Waits::Topic("unknown_topic")),
            (6, "out", "a", Waits::Key("behind")),
        ])
    };
    let which = |number| ["--stream", "p/in/0", "--number", number];
    let world = of();
    for (number, left) in [("2", &[4, 6][..]), ("4", &[])] {
        let command = [&["outbox", "release"][..], &which(number)].concat();
        world.tidegate(&command).expect(0);
        assert_eq!(in_state(&world, "waiting"), left, "after {number}");
    }
    let world = of();
    for (number, left) in [("2", &[4, 6][..]), ("4", &[])] {
        let discard = ["outbox", "discard", "--why", "test", "--yes"];
        let command = [&discard[..], &which(number)].concat();
        world.tidegate(&command).expect(0);
        assert_eq!(in_state(&world, "waiting"), left, "after {number}");
    }
    assert_eq!(in_state(&world, "released"), [6]);
}
