//! What happened to an event: asked of a record, or of an entity.

use serde_json::{Value, json};

use crate::harness::{LONG, Sender, World, delete_records_before, wait_until};

const PROJECTIONS: &str = r#"
[projections.score]
topics   = ["@in@"]
entity   = "key"
sequence = "/seq"
gate     = "newest"
history  = "1d"
tombstones = "filter"
setup    = "score.sql"
columns  = { account = "text", amount = "bigint" }

[[projections.score.apply]]
sql = """
INSERT INTO score (account, highest) SELECT account, max(amount) FROM events GROUP BY account
ON CONFLICT (account) DO UPDATE SET highest = greatest(score.highest, excluded.highest)"""
"#;

const SETUP: &str = "
    CREATE TABLE score (
        account text PRIMARY KEY, highest bigint NOT NULL CONSTRAINT not_too_much CHECK (highest < 1000)
    )";

fn score() -> World {
    World::new(1, PROJECTIONS, &[("score.sql", SETUP)])
}

fn send(sender: &Sender, account: &str, seq: i64, amount: i64) {
    sender.send_json(
        0,
        &json!({ "account": account, "seq": seq, "amount": amount }),
    );
}

/// What the command finds about a record of partition 0.
#[track_caller]
fn explain(world: &World, projection: &str, offset: i64) -> Value {
    let record = format!("{}/0@{offset}", world.incoming());
    world
        .tidegate(&["explain", projection, &record, "--json"])
        .expect(0)
        .json()
}

#[track_caller]
fn text(world: &World, arguments: &[&str]) -> String {
    let command: Vec<&str> = ["explain"].iter().chain(arguments).copied().collect();
    world.tidegate(&command).expect(0).stdout
}

#[track_caller]
fn check(world: &World, offset: i64, verdict: &str, says: &[&str]) -> Value {
    let found = explain(world, "score", offset);
    assert_eq!(found["verdict"], verdict, "{found:#}");
    let record = format!("{}/0@{offset}", world.incoming());
    let text = text(world, &["score", &record]);
    for words in says {
        assert!(text.contains(words), "{words:?} in:\n{text}");
    }
    found
}

// I6: each record is found as what it was counted as, with the reason.
#[test]
fn every_record_is_found_with_what_became_of_it() {
    let world = score();
    let sender = world.sender();
    send(&sender, "good", 3, 5);
    send(&sender, "good", 2, 6);
    send(&sender, "bad", 1, 5000);
    send(&sender, "bad", 2, 7);
    sender.send(0, Some(b"good"), None);
    send(&sender, "good", 4, 8);
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);

    let applied = check(
        &world,
        0,
        "applied",
        &["applied, 20", "in batch", "stands at sequence 4"],
    );
    assert_eq!(
        (&applied["entity"], &applied["sequence"]),
        (&json!("good"), &json!(3))
    );
    assert!(applied["batch"]["from_offset"] == 0, "{applied:#}");
    let stale = ["stale: its sequence is 2, and the gate of entity `good` stood at "];
    check(&world, 1, "stale", &stale);
    check(
        &world,
        2,
        "parked",
        &[
            "parked: database",
            "records: 1",
            "SQLSTATE 23514",
            "not_too_much",
            "tried once",
        ],
    );
    let behind = check(
        &world,
        3,
        "parked",
        &[
            "parked: behind",
            "behind 1 of its entity, the first of them ",
        ],
    );
    assert_eq!(behind["waits_behind"]["first"]["offset"], 2, "{behind:#}");
    check(
        &world,
        4,
        "filtered",
        &["filtered: the projection does not want it"],
    );
    check(&world, 5, "applied", &[]);
    check(&world, 6, "beyond_end", &["beyond the end of the log"]);

    let entity = text(&world, &["score", "--entity", "bad"]);
    for words in [
        "2 records of it wait",
        "waits for",
        "not_too_much",
        "redrive score --entity bad",
        "sequence 2",
    ] {
        assert!(entity.contains(words), "{words:?} in:\n{entity}");
    }

    // What operators decide is told with who and why.
    let discard = [
        "dead-letters",
        "discard",
        "score",
        "--reason",
        "database",
        "--why",
        "a typing error",
        "--yes",
    ];
    world.tidegate(&discard).expect(0);
    world
        .tidegate(&["dead-letters", "redrive", "score"])
        .expect(0);
    let who = "(tidegate dead-letters discard)";
    check(
        &world,
        2,
        "discarded",
        &["discarded, after it was parked, by ", who, "a typing error"],
    );
    check(&world, 3, "applied", &["after it was parked"]);
    let entity = text(&world, &["score", "--entity", "bad"]);
    for words in [
        "nothing of it waits; the gate stands at sequence 2",
        "was parked",
        "discarded",
    ] {
        assert!(entity.contains(words), "{words:?} in:\n{entity}");
    }
    let entity = text(&world, &["score", "--entity", "good"]);
    assert!(
        entity.contains("was dropped") && entity.contains("its sequence is 2"),
        "{entity}"
    );
    let nobody = text(&world, &["score", "--entity", "nobody"]);
    assert!(nobody.contains("nothing is known of it"), "{nobody}");

    // In another generation it is not reached yet, but was before.
    world.tidegate(&["pause", "score"]).expect(0);
    wait_until(LONG, "it is paused", || {
        process.has_logged(&["the projection is paused"])
    });
    world
        .tidegate(&["reset", "score", "--to", "earliest", "--yes"])
        .expect(0);
    let again = [
        "not reached yet: the position is 0, 5 before it",
        "the projection is paused",
        "generation 1: applied",
    ];
    let found = check(&world, 5, "not_reached", &again);
    assert_eq!(
        found["earlier"],
        json!([{ "generation": 1, "verdict": "applied" }]),
        "{found:#}"
    );
    check(
        &world,
        1,
        "not_reached",
        &["generation 1: stale: its sequence is 2"],
    );
    check(
        &world,
        2,
        "not_reached",
        &["generation 1: discarded, after it was parked"],
    );
}

// I4, I6: what nobody may read yet, and what is no record.
#[test]
fn records_of_transactions_are_told_apart() {
    let world = score();
    let sender = Sender::in_transactions(world.incoming());
    let process = world.start("a");
    wait_until(LONG, "it has begun", || !world.positions().is_empty());
    sender.begin();
    send(&sender, "a", 1, 5);
    sender.flush();
    let held_back = || explain(&world, "score", 0)["verdict"] == "held_back";
    wait_until(LONG, "the record is in the log", held_back);
    check(
        &world,
        0,
        "held_back",
        &[
            "held back: a producer's transaction is open",
            "1 more are held back",
        ],
    );
    sender.commit();
    let next = || world.positions().get(&("score".to_owned(), 0)).copied();
    wait_until(LONG, "the transaction's end is passed", || {
        next() == Some(2)
    });
    check(&world, 0, "applied", &[]);
    check(&world, 1, "no_record", &["no record"]);
    process.stop();
    sender.begin();
    send(&sender, "a", 2, 5);
    sender.abort();
    check(&world, 2, "no_record", &["passed over"]);
}

// Without a history the totals tell, and say so where they are not enough.
#[test]
fn without_a_history_it_is_told_what_can_be_told() {
    let mut world = score();
    world.change_projections("history  = \"1d\"\n", "");
    let sender = world.sender();
    send(&sender, "a", 1, 5);
    send(&sender, "a", 2, 5);
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    check(
        &world,
        0,
        "applied",
        &["applied: so was every record of this partition"],
    );
    send(&sender, "a", 1, 5);
    sender.flush();
    world.wait_until_done(LONG);
    let found = check(
        &world,
        2,
        "consumed",
        &[
            "consumed: applied, or dropped as stale. Set `history`",
            "a, sequence 1",
            "stands at sequence 2",
        ],
    );
    assert_eq!(found["may_be"], json!(["applied", "stale"]));
    // Kafka is not needed for that.
    let record = format!("{}[0]@2", world.incoming());
    let offline = ["explain", "score", &record, "--json", "--offline"];
    let unanswered = "warning: not everything was asked of kafka";
    for (command, warning) in [(&offline[..], ""), (&offline[..4], unanswered)] {
        let away = world
            .launch("away")
            .env("TIDEGATE__KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
            .output(command)
            .expect(0);
        assert!(away.stderr.contains(warning), "{away:?}");
        let away = away.json();
        assert_eq!(away["verdict"], "consumed");
        assert_eq!(
            (&away["entity"], &away["log"]),
            (&Value::Null, &Value::Null)
        );
    }
    let left: i64 = world.db.one("SELECT count(*) FROM tidegate.history_batch");
    assert_eq!(left, 0);
}

#[test]
fn a_duplicate_is_found_by_its_id() {
    let mut world = World::ledger(1);
    world.change_projections(
        "gate     = \"none\"",
        "gate     = \"none\"\nhistory = \"1h\"",
    );
    let sender = world.sender();
    let entry = json!({ "id": "e", "account": "a", "seq": 1, "amount": 10, "booked_at": "2026-01-05T00:00:00Z" });
    sender.send_json(0, &entry);
    sender.send_json(0, &entry);
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    let found = explain(&world, "turnover", 1);
    assert_eq!(
        (&found["verdict"], &found["event_id"]),
        (&json!("duplicate"), &json!("e")),
        "{found:#}"
    );
    assert!(found["taken_in"].is_string(), "{found:#}");
    assert_eq!(explain(&world, "turnover", 0)["verdict"], "applied");
}

// Gate `next`: what is missing is named, and the command that does without it.
#[test]
fn an_entity_says_which_events_it_waits_for() {
    let world = World::ledger(1);
    let sender = world.sender();
    for seq in [1, 6, 4] {
        let entry = json!({ "id": seq.to_string(), "account": "a", "seq": seq, "amount": 10, "booked_at": "2026-01-05T00:00:00Z" });
        sender.send_json(0, &entry);
    }
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    let entity = text(&world, &["balances", "--entity", "a"]);
    for words in [
        "2 records of it wait",
        "stands at sequence 1",
        "sequences 2 to 3, which have not come",
        "accept-gap balances a",
        "sequence 4 (dead letter 2, behind)\n",
        "sequence 6 (dead letter 1, gap)\n",
    ] {
        assert!(entity.contains(words), "{words:?} in:\n{entity}");
    }
    // They will be applied by their numbers, not as they came.
    let found = explain(&world, "balances", 2);
    assert_eq!(
        (&found["verdict"], &found["waits_behind"]),
        (&json!("parked"), &Value::Null)
    );
    let found = explain(&world, "balances", 1);
    assert_eq!(found["waits_behind"]["first"]["offset"], 2, "{found:#}");
}

// I6: what was left out, by whom, and where it began.
#[test]
fn a_record_that_was_left_out_is_found_as_such() {
    let mut world = World::journal(1);
    world.change_projections(
        "gate    = \"none\"",
        "gate    = \"none\"\nstart = \"latest\"",
    );
    let mut stream = world.stream();
    stream.produce(10);
    let process = world.start("a");
    wait_until(LONG, "it has begun", || !world.positions().is_empty());
    stream.produce(10);
    world.wait_until_done(LONG);
    process.stop();
    let found = explain(&world, "journal", 9);
    assert_eq!(found["verdict"], "before_beginning", "{found:#}");
    assert!(
        found["says"].as_str().unwrap().contains("at offset 10"),
        "{found:#}"
    );
    stream.produce(10);
    delete_records_before(world.incoming(), 0, 25);
    assert_eq!(explain(&world, "journal", 22)["verdict"], "removed");
    let partition = format!("{}/0", world.incoming());
    world
        .tidegate(&["skip", "journal", &partition, "--to", "25", "--yes"])
        .expect(0);
    let found = explain(&world, "journal", 22);
    assert_eq!(found["verdict"], "skipped", "{found:#}");
    let says = found["says"].as_str().unwrap();
    assert!(
        says.contains("(tidegate skip)") && says.contains("with offsets 20 to 24"),
        "{says}"
    );
    assert_eq!(explain(&world, "journal", 25)["verdict"], "not_reached");

    // A partition that is not there, a projection that never started, and a record that is none.
    let elsewhere = format!("{}/7@1", world.incoming());
    world
        .tidegate(&["explain", "journal", &elsewhere, "--offline"])
        .expect(70);
    world
        .tidegate(&["explain", "nobody", &elsewhere])
        .expect(64);
    world
        .tidegate(&["explain", "journal", "topic/1"])
        .expect(64);
    world.tidegate(&["explain", "journal"]).expect(64);
}
