//! The gate in the row: what its rows cannot carry, and who writes them at once.

use serde_json::Value;

use crate::dead_letters::{letter, letters, redrive, send, waiting};
use crate::harness::{LONG, World, wait_until};
use crate::rebuild::rebuild;

const SETUP: &str = "
    CREATE TABLE score (
        account text PRIMARY KEY, amount bigint NOT NULL CHECK (amount < 1000), events bigint NOT NULL,
        _sequence bigint NOT NULL, _previous bigint
    )";

const APPLY: &str = "
INSERT INTO score AS s (account, amount, events, _sequence, _previous)
SELECT account, sum(amount), count(*), max(_sequence), max(_previous) FROM events GROUP BY account ORDER BY account
ON CONFLICT (account) DO UPDATE
SET amount = s.amount + excluded.amount, events = s.events + excluded.events,
    _sequence = excluded._sequence, _previous = excluded._previous
WHERE s._sequence = excluded._previous";

fn projections(gate: &str, apply: &str) -> String {
    format!(
        r#"
[projections.score]
topics   = ["@in@"]
entity   = "/account"
sequence = "/seq"
gate     = "{gate}"
gate_in  = "score.account"
setup    = "score.sql"
columns  = {{ account = "text", amount = "bigint" }}

[[projections.score.apply]]
sql = """{apply}"""
"#
    )
}

fn score(partitions: i32, gate: &str) -> World {
    World::new(
        partitions,
        &projections(gate, APPLY),
        &[("score.sql", SETUP)],
    )
}

/// Account, amount, events and sequence of each.
fn scores(world: &World) -> Vec<(String, i64, i64, i64)> {
    world
        .db
        .rows("SELECT account, amount, events, _sequence FROM score.score ORDER BY account")
}

fn gates_apart(world: &World, projection: &str) -> i64 {
    world
        .db
        .one(&format!("SELECT count(*) FROM {projection}._gate"))
}

// I4, I6
#[test]
fn rows_carry_the_gate_and_nothing_else_does() {
    let world = score(1, "newest");
    let sender = world.sender();
    for seq in [3, 3, 5, 4] {
        send(&sender, 0, "a", seq, 1);
    }
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    for seq in [5, 7, 2] {
        send(&sender, 0, "a", seq, 10);
    }
    sender.flush();
    world.wait_until_done(LONG);
    assert_eq!(scores(&world), [("a".to_owned(), 12, 3, 7)]);
    assert_eq!(gates_apart(&world, "score"), 0);
    process.stop();
    let verified = world.tidegate(&["verify", "--json"]).expect(0).json();
    assert_eq!(verified["holds"], true);
    let explained = world
        .tidegate(&["explain", "score", "--entity", "a"])
        .expect(0);
    assert!(
        explained.stdout.contains("stands at sequence 7"),
        "{explained:?}"
    );
}

/// Of so many entities every event that counts as applied is in its row, once, up to this sequence; and no gate is apart.
fn folded_once(world: &World, table: &str, last: i64) -> usize {
    let projection = table.split('.').next().unwrap();
    let rows: Vec<(i64, i64, i64)> = world.db.rows(&format!(
        "SELECT amount, events::bigint, _sequence FROM {table}"
    ));
    let applied: i64 = world.db.one(&format!(
        "SELECT sum(applied)::bigint FROM tidegate.position WHERE projection = '{projection}'"
    ));
    let events = rows.iter().map(|(_, events, _)| events);
    assert_eq!(events.sum::<i64>(), applied);
    for (amount, events, sequence) in &rows {
        assert_eq!((amount, *sequence), (events, last));
    }
    assert_eq!(gates_apart(world, projection), 0);
    rows.len()
}

// I4: an entity whose events are in two partitions: two writers read one row, and one of them writes it first.
#[test]
fn two_writers_of_one_entity_fold_each_event_once() {
    let world = score(2, "newest");
    let mut random = world.random();
    let sender = world.sender();
    let _process = world
        .launch("a")
        .env("TIDEGATE__APPLY__WRITERS", 2)
        .batch_records_max(4)
        .start();
    for seq in 1..=400 {
        for account in ["a", "b", "c"] {
            for _ in 0..random.usize(1..=2) {
                send(&sender, random.i32(0..2), account, seq, 1);
            }
        }
    }
    sender.flush();
    world.wait_until_done(LONG);
    assert_eq!(folded_once(&world, "score.score", 400), 3);
    world.tidegate(&["verify"]).expect(0);
}

// I4: the same with a fold, which finds rows where it has read them, and inserts without looking. Another row of the
// table moves whenever one is inserted, so even alone a row is not always where it was.
#[test]
fn two_writers_of_one_entity_fold_each_event_once_wherever_rows_move() {
    let world = World::new(2, "", &[]);
    let mut random = world.random();
    let sender = world.sender();
    for seq in 1..=300 {
        // Half of the entities come later, beside others that have a row by then.
        for account in ["a", "b", "c", "d", "e", "f"]
            .iter()
            .take(3 + usize::from(seq > 150) * 3)
        {
            for _ in 0..random.usize(1..=2) {
                let (partition, sequence) = (random.i32(0..2), seq.to_string());
                let (key, value) = (Some(account.as_bytes()), Some(&br#"{"amount": 1}"#[..]));
                let headers = [("sequence", sequence.as_bytes())];
                sender.send_with_headers(partition, key, value, &headers);
            }
        }
    }
    sender.flush();
    let _process = crate::bulk::launch(&world, "a")
        .env("TABLE", "with the gate")
        .env("TIDEGATE__APPLY__WRITERS", 2)
        .batch_records_max(4)
        .start();
    world.wait_until_done(LONG);
    assert_eq!(folded_once(&world, "newest.sum", 300), 6);
}

// I10: a batch that must be alone waits for open ones for as long as they may take, and new ones wait for it.
#[test]
fn a_batch_that_parks_has_its_turn_beside_others_that_take_long() {
    let world = score(4, "newest");
    let sender = world.sender();
    send(&sender, 0, "bad", 1, 5000);
    for seq in 1..=200 {
        for partition in 0..4 {
            send(&sender, partition, &format!("a-{partition}"), seq, 1);
        }
    }
    sender.flush();
    let mut process = world
        .launch("a")
        .env("TIDEGATE__APPLY__WRITERS", 4)
        .env("TIDEGATE__POSTGRES__LOCK_TIMEOUT", "100ms")
        .batch_records_max(5)
        .failpoints("apply-after-gate=sleep(600)")
        .start();
    wait_until(LONG, "it is parked", || waiting(&world) == 1);
    let applied: i64 = world
        .db
        .one("SELECT sum(applied)::bigint FROM tidegate.position WHERE partition > 0");
    assert!(
        applied < 550,
        "not before the others were through: {applied}"
    );
    process.kill();
}

// I4, I6: batches of all writers that must be alone, and those of a build beside them, come one after the other.
#[test]
fn all_writers_park_at_once_beside_a_rebuild() {
    let world = score(4, "newest");
    let sender = world.sender();
    let mut bad = 0;
    for seq in 1..=200 {
        for partition in 0..4 {
            match seq % 10 == partition {
                true => {
                    bad += 1;
                    send(
                        &sender,
                        partition,
                        &format!("bad-{partition}-{seq}"),
                        1,
                        5000,
                    );
                }
                false => send(
                    &sender,
                    partition,
                    &format!("a-{}-{partition}", seq % 3),
                    seq.into(),
                    1,
                ),
            }
        }
    }
    sender.flush();
    let process = world
        .launch("a")
        .env("TIDEGATE__APPLY__WRITERS", 4)
        .batch_records_max(10)
        .start();
    wait_until(LONG, "some are parked", || waiting(&world) > 3);
    rebuild(&world, &["start", "score", "--cut-over", "--yes"]).expect(0);
    world.wait_until_done(LONG);
    let parked: i64 = world.db.one(
        "SELECT count(*) FROM tidegate.dead_letter WHERE state = 'waiting' AND generation = 2",
    );
    assert_eq!(parked, bad);
    let amounts: i64 = world.db.one("SELECT sum(amount)::bigint FROM score.score");
    assert_eq!(amounts, 800 - bad);
    world.tidegate(&["verify"]).expect(0);
    process.stop();
}

// I4, I6: what is parked makes a row in `_gate`, which has the last word from then on.
#[test]
fn an_entity_with_parked_records_waits_and_goes_on_behind_them() {
    let world = score(1, "newest");
    let sender = world.sender();
    send(&sender, 0, "a", 1, 5);
    send(&sender, 0, "new", 1, 5000);
    send(&sender, 0, "b", 1, 6);
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    send(&sender, 0, "a", 2, 5000);
    send(&sender, 0, "a", 3, 7);
    send(&sender, 0, "new", 2, 1);
    send(&sender, 0, "b", 2, 8);
    sender.flush();
    world.wait_until_done(LONG);
    let score = |name: &str, amount, events, seq| (name.to_owned(), amount, events, seq);
    assert_eq!(scores(&world), [score("a", 5, 1, 1), score("b", 14, 2, 2)]);
    assert_eq!(waiting(&world), 4);
    assert_eq!(
        letters(&world, "a"),
        [
            letter(2, "database", "waiting"),
            letter(3, "behind", "waiting")
        ]
    );
    assert_eq!(gates_apart(&world, "score"), 2, "those with parked records");

    world
        .db
        .run("ALTER TABLE score.score DROP CONSTRAINT score_amount_check");
    redrive(&world, "score").expect(0);
    let after = [
        score("a", 5012, 3, 3),
        score("b", 14, 2, 2),
        score("new", 5001, 2, 2),
    ];
    assert_eq!(scores(&world), after);
    // Copies are stale, and what is new passes, in the row and in `_gate` alike.
    for (account, seq) in [
        ("a", 3),
        ("a", 4),
        ("new", 2),
        ("new", 3),
        ("b", 2),
        ("b", 3),
    ] {
        send(&sender, 0, account, seq, 1);
    }
    sender.flush();
    world.wait_until_done(LONG);
    let after = [
        score("a", 5013, 4, 4),
        score("b", 15, 3, 3),
        score("new", 5002, 3, 3),
    ];
    assert_eq!(scores(&world), after);
    assert_eq!(waiting(&world), 0);
    world.tidegate(&["verify"]).expect(0);
}

// I4: gate `next`: given up in `_gate`, which the row cannot know.
#[test]
fn a_gap_that_is_accepted_and_a_record_that_is_discarded_move_the_gate() {
    let world = score(1, "next");
    let sender = world.sender();
    for seq in [1, 3] {
        send(&sender, 0, "gap", seq, 1);
    }
    for (seq, amount) in [(1, 1), (2, 5000), (3, 1)] {
        send(&sender, 0, "bad", seq, amount);
    }
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(waiting(&world), 3);
    let accept = ["gate", "accept-gap", "score", "gap", "--yes"];
    world.tidegate(&accept).expect(0);
    let discard = [
        "dead-letters",
        "discard",
        "score",
        "--reason",
        "database",
        "--why",
        "a test",
        "--yes",
    ];
    world.tidegate(&discard).expect(0);
    redrive(&world, "score");
    wait_until(LONG, "what waited has followed", || waiting(&world) == 0);
    for account in ["gap", "bad"] {
        for seq in [3, 4] {
            send(&sender, 0, account, seq, 1);
        }
    }
    sender.flush();
    world.wait_until_done(LONG);
    let score = |name: &str| (name.to_owned(), 3, 3, 4);
    assert_eq!(scores(&world), [score("bad"), score("gap")]);
    world.tidegate(&["verify"]).expect(0);
}

// I4: a statement that leaves an entity's row as it was would admit its events for ever.
#[test]
fn a_statement_that_does_not_write_every_row_halts() {
    let apply = APPLY.replace("FROM events", "FROM events WHERE amount <> 13");
    let world = World::new(1, &projections("newest", &apply), &[("score.sql", SETUP)]);
    let sender = world.sender();
    send(&sender, 0, "a", 1, 13);
    send(&sender, 0, "b", 1, 1);
    sender.flush();
    let _process = world.start("a");
    let cause = world.wait_until_halted("score", 0);
    for words in ["apply 1", "1 rows for 2 entities", "`_previous`"] {
        assert!(cause.contains(words), "{words:?} in {cause:?}");
    }
    assert_eq!(scores(&world), []);
}

#[test]
fn a_table_that_cannot_carry_the_gate_is_refused() {
    let check = |setup: &str, expected: &str| {
        let world = World::new(1, &projections("newest", APPLY), &[("score.sql", setup)]);
        let found = world.tidegate(&["check"]).expect(78);
        let said = format!("{}{}", found.stdout, found.stderr);
        assert!(said.contains(expected), "{expected:?} in {said}");
    };
    check(
        &SETUP.replace("account text", "account varchar"),
        "no column `account` of type text",
    );
    check(
        &SETUP.replace("_sequence bigint NOT NULL", "_sequence bigint"),
        "no column `_sequence bigint NOT NULL`",
    );
    check(
        &format!(
            "CREATE TABLE owner (id text PRIMARY KEY); {}",
            SETUP.replace(
                "account text",
                "account text REFERENCES owner ON DELETE CASCADE"
            )
        ),
        "ON DELETE CASCADE",
    );
    check(
        &SETUP.replace("PRIMARY KEY", "NOT NULL UNIQUE"),
        "not the primary key",
    );
}

// A rebuild moves the gate from rows of its own into those of the table, and back; what is stale stays stale.
#[test]
fn a_rebuild_moves_the_gate_into_the_row() {
    let plain = "
INSERT INTO score AS s (account, amount, events) SELECT account, sum(amount), count(*) FROM events GROUP BY account
ON CONFLICT (account) DO UPDATE SET amount = s.amount + excluded.amount, events = s.events + excluded.events";
    let apart = projections("newest", plain).replace("gate_in  = \"score.account\"\n", "");
    let setup = SETUP.replace(",\n        _sequence bigint NOT NULL, _previous bigint", "");
    let mut world = World::new(1, &apart, &[("score.sql", &setup)]);
    let sender = world.sender();
    for seq in 1..=5 {
        send(&sender, 0, "a", seq, 1);
    }
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    std::fs::write(world.folder().join("score.sql"), SETUP).unwrap();
    world.change_projections(&apart, &projections("newest", APPLY));
    let _process = world.start("b");
    rebuild(&world, &["start", "score", "--cut-over", "--yes"]).expect(0);
    for seq in [5, 6] {
        send(&sender, 0, "a", seq, 1);
    }
    sender.flush();
    world.wait_until_done(LONG);
    assert_eq!(scores(&world), [("a".to_owned(), 6, 6, 6)]);
    let status: Value = world.tidegate(&["verify", "--json"]).expect(0).json();
    assert_eq!(status["holds"], true);
}

// I4: a row that is made anew has its gate with it.
#[test]
fn an_entity_is_made_anew_with_the_gate_in_its_row() {
    let gate_in = "gate_in  = \"score.account\"\n";
    let with_rows = format!("{gate_in}entity_rows = \"score.account\"\n");
    let projections = projections("next", APPLY).replace(gate_in, &with_rows);
    let world = World::new(1, &projections, &[("score.sql", SETUP)]);
    let sender = world.sender();
    for seq in 1..=5 {
        send(&sender, 0, "a", seq, 1);
        send(&sender, 0, "b", seq, 1);
    }
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    // Its gate has gone back too: what it has had would be applied again.
    world
        .db
        .run("UPDATE score.score SET amount = 99, _sequence = 2 WHERE account = 'a'");
    rebuild(&world, &["entity", "score", "a", "--yes"]).expect(0);
    for seq in [3, 5, 6] {
        send(&sender, 0, "a", seq, 1);
    }
    sender.flush();
    world.wait_until_done(LONG);
    let rows = [("a".to_owned(), 6, 6, 6), ("b".to_owned(), 5, 5, 5)];
    assert_eq!(scores(&world), rows);

    // A gate that is beyond what the log has tells that something is missing.
    world
        .db
        .run("UPDATE score.score SET _sequence = 7 WHERE account = 'b'");
    let refused = rebuild(&world, &["entity", "score", "b", "--yes"]).expect(70);
    let words = "its events end at sequence 5 where the live gate stands at 7";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
    process.stop();
}
