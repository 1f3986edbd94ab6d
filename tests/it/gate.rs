//! Old events, copies, gaps: what passes the gate, and what is counted instead.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{LONG, World, wait_until};

/// Keeps the newest state of each account, and everything that was let through, in order.
fn newest() -> World {
    let projections = r#"
[projections.state]
topics   = ["@in@"]
entity   = "/account"
sequence = "/seq"
gate     = "newest"
setup    = "state.sql"
columns  = { account = "text", value = "text" }

[[projections.state.apply]]
sql = "INSERT INTO admitted (account, seq) SELECT account, _sequence FROM events ORDER BY _ref"

[[projections.state.apply]]
sql = """
INSERT INTO state AS s (account, seq, value) SELECT account, _sequence, value FROM latest
ON CONFLICT (account) DO UPDATE SET seq = excluded.seq, value = excluded.value"""
"#;
    let setup = "
        CREATE TABLE state (account text PRIMARY KEY, seq bigint NOT NULL, value text NOT NULL);
        CREATE TABLE admitted (
            place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account text NOT NULL, seq bigint NOT NULL
        );";
    World::new(2, projections, &[("state.sql", setup)])
}

fn event(account: &str, seq: i64) -> Value {
    json!({ "account": account, "seq": seq, "value": format!("v{seq}") })
}

/// Applied, stale, duplicate, filtered: summed over the partitions.
fn counts(world: &World, projection: &str) -> [i64; 4] {
    let rows: Vec<(i64, i64, i64, i64)> = world.db.rows(&format!(
        "SELECT sum(applied)::bigint, sum(stale)::bigint, sum(duplicate)::bigint, sum(filtered)::bigint
         FROM tidegate.position WHERE projection = '{projection}'"
    ));
    let (applied, stale, duplicate, filtered) = rows[0];
    [applied, stale, duplicate, filtered]
}

// Postgres compares entities as we do, byte by byte, whatever the database's collation.
#[test]
fn entities_that_look_alike_are_different_ones() {
    let world = newest();
    let sender = world.sender();
    let alike = ["O-1", "o-1", "o-1 ", "\u{e9}-1", "e\u{301}-1"];
    for account in alike {
        sender.send(0, None, Some(event(account, 1).to_string().as_bytes()));
    }
    // The first of them again: only that is stale.
    sender.send(1, None, Some(event(alike[0], 1).to_string().as_bytes()));
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    let gates: i64 = world.db.one("SELECT count(*) FROM state._gate");
    assert_eq!(gates, 5);
    assert_eq!(counts(&world, "state"), [5, 1, 0, 0]);
}

// I4, I6
#[test]
fn newest_drops_and_counts_what_is_not_newer() {
    let world = newest();
    let sender = world.sender();
    // Two copies side by side, an old one between newer ones, a gap, all likely in one batch.
    for seq in [5, 5, 9, 7, 9, 10, 1, 12] {
        sender.send_json(0, &event("a", seq));
    }
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    // And in a batch of their own.
    for seq in [12, 11, 13] {
        sender.send_json(1, &event("a", seq));
    }
    sender.flush();
    world.wait_until_done(LONG);
    let admitted: Vec<(i64,)> = world
        .db
        .rows("SELECT seq FROM state.admitted ORDER BY place");
    assert_eq!(admitted, [(5,), (9,), (10,), (12,), (13,)]);
    let value: String = world.db.one("SELECT value FROM state.state");
    assert_eq!(value, "v13");
    assert_eq!(counts(&world, "state"), [5, 6, 0, 0]);
    process.stop();
    let verified = world.tidegate(&["verify", "--json"]).expect(0).json();
    assert_eq!(verified["holds"], true);
}

// I4: an entity whose events are in two partitions, so with two writers at once.
#[test]
pub(crate) fn an_entity_in_two_partitions_never_goes_back() {
    let world = newest();
    let mut random = world.random();
    let sender = world.sender();
    let _process = world
        .launch("a")
        .env("TIDEGATE__APPLY__WRITERS", 2)
        .batch_records_max(5)
        .start();
    let mut sent = 0;
    for seq in 1..=400 {
        for account in ["a", "b", "c"] {
            for _ in 0..random.usize(1..=2) {
                sender.send_json(random.i32(0..2), &event(account, seq));
                sent += 1;
            }
        }
    }
    sender.flush();
    world.wait_until_done(LONG);
    let back: Vec<(String, i64)> = world.db.rows(
        "SELECT account, seq FROM (
             SELECT account, seq, lag(seq) OVER (PARTITION BY account ORDER BY place) AS before FROM state.admitted
         ) AS a WHERE before >= seq",
    );
    assert_eq!(back, []);
    let states: Vec<(String, i64, String)> = world.db.rows("SELECT * FROM state.state ORDER BY 1");
    let last = |account: &str| (account.to_owned(), 400, "v400".to_owned());
    assert_eq!(states, [last("a"), last("b"), last("c")]);
    let [applied, stale, ..] = counts(&world, "state");
    assert_eq!(applied + stale, sent);
    let admitted: i64 = world.db.one("SELECT count(*) FROM state.admitted");
    assert_eq!(admitted, applied);
}

// I4, I6: under `next` a copy is stale, in the same batch and in a later one; in the inbox it is a duplicate.
#[test]
fn copies_count_once() {
    let world = World::ledger(1);
    let sender = world.sender();
    let entry = |seq: i64| json!({ "id": format!("e{seq}"), "account": "a", "seq": seq, "amount": 10, "booked_at": "2026-01-05T00:00:00Z" });
    for seq in [1, 1, 2, 1, 2, 3] {
        sender.send_json(0, &entry(seq));
    }
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    for seq in [3, 2, 4, 4] {
        sender.send_json(0, &entry(seq));
    }
    sender.flush();
    world.assert_exact();
    assert_eq!(counts(&world, "balances"), [4, 6, 0, 0]);
    assert_eq!(counts(&world, "turnover"), [4, 0, 6, 0]);
    assert_eq!(counts(&world, "journal"), [10, 0, 0, 0]);
    let balance: i64 = world.db.one("SELECT amount FROM balances.balance");
    assert_eq!(balance, 40);
}

// I4, I6: what is missing is named, nothing is skipped, and nobody else waits.
#[test]
fn a_gap_halts_its_partition_and_no_other() {
    let mut world = World::ledger(3);
    halt_at_gaps(&mut world);
    let sender = world.sender();
    let entry = |account: &str, seq: i64| json!({ "id": format!("{account}/{seq}"), "account": account, "seq": seq, "amount": 1, "booked_at": "2026-01-05T00:00:00Z" });
    for seq in [1, 2, 4, 3] {
        sender.send_json(0, &entry("gap", seq));
    }
    for seq in [2, 3] {
        sender.send_json(1, &entry("no beginning", seq));
    }
    for seq in 1..=50 {
        sender.send_json(2, &entry("other", seq));
    }
    sender.flush();
    let process = world.start("a");

    let cause = world.wait_until_halted("balances", 0);
    let place = format!("{}[0] offset 2: ", world.incoming());
    for words in [&*place, "entity `gap`", "sequence 4", "3 is due"] {
        assert!(cause.contains(words), "{words:?} in {cause:?}");
    }
    let cause = world.wait_until_halted("balances", 1);
    let place = format!("{}[1] offset 0: ", world.incoming());
    for words in [&*place, "entity `no beginning`", "sequence 2", "1 is due"] {
        assert!(cause.contains(words), "{words:?} in {cause:?}");
    }
    wait_until(LONG, "the other partition is done", || {
        world.positions()[&("balances".to_owned(), 2)] == 50
    });
    // Projections without that gate do not care.
    wait_until(LONG, "the other projections are done", || {
        world.progress() == 2 + 50 + 56 + 56
    });
    world.assert_tables_are_at_the_positions();
    let status = world.partition_status("balances", 0);
    assert_eq!(status["next_offset"], 2);
    assert_eq!(status["lag"], 2);
    assert_eq!(status["condition"], "halted");
    // Still one process that works, and an account that is right.
    world.tidegate(&["verify"]).expect(0);
    sender.send_json(2, &entry("other", 51));
    sender.flush();
    wait_until(LONG, "the other partition goes on", || {
        world.positions()[&("balances".to_owned(), 2)] == 51
    });
    process.stop();
}

// I4, I10: what is missing may come through another partition, which has no reason to tell this one.
#[test]
fn a_gap_that_another_partition_fills_goes_on_by_itself() {
    let mut world = World::ledger(2);
    halt_at_gaps(&mut world);
    let sender = world.sender();
    let entry = |seq: i64| json!({ "id": format!("e{seq}"), "account": "a", "seq": seq, "amount": 10, "booked_at": "2026-01-05T00:00:00Z" });
    for seq in [1, 3, 4] {
        sender.send_json(0, &entry(seq));
    }
    sender.flush();
    let mut process = world.start("a");
    let cause = world.wait_until_halted("balances", 0);
    for words in ["sequence 3", "2 is due"] {
        assert!(cause.contains(words), "{words:?} in {cause:?}");
    }
    sender.send_json(1, &entry(2));
    sender.flush();
    world.wait_until_done(Duration::from_secs(20));
    let balance: (i64, i64) = world
        .db
        .rows("SELECT amount, entries FROM balances.balance")
        .remove(0);
    assert_eq!(balance, (40, 4));
    let running = ("running".to_owned(), String::new());
    assert_eq!(world.condition("balances", 0), running);
    assert!(process.is_running());
    world.tidegate(&["verify"]).expect(0);
}

// I4: one gap among many entities and partitions of one batch; what comes before it is applied.
#[test]
fn everything_before_a_gap_is_applied() {
    let mut world = World::ledger(1);
    halt_at_gaps(&mut world);
    let sender = world.sender();
    let mut random = world.random();
    let bad = random.i64(50..400);
    let mut seqs = [0; 20];
    for offset in 0..500 {
        let number = random.usize(..20);
        seqs[number] += 1;
        let skipped = i64::from(offset == bad);
        let seq = seqs[number] + skipped;
        sender.send_json(
            0,
            &json!({ "id": format!("{number}/{seq}"), "account": format!("a-{number}"), "seq": seq,
                     "amount": -1, "booked_at": "2026-01-05T00:00:00Z" }),
        );
    }
    sender.flush();
    let _process = world.start("a");
    let cause = world.wait_until_halted("balances", 0);
    assert!(cause.contains(&format!("[0] offset {bad}: ")), "{cause}");
    assert_eq!(world.positions()[&("balances".to_owned(), 0)], bad);
    wait_until(LONG, "the others are done", || {
        world.progress() == 1_000 + bad
    });
    world.assert_tables_are_at_the_positions();
}

fn halt_at_gaps(world: &mut World) {
    world.change_projections(
        "gate     = \"next\"",
        "gate     = \"next\"\non_failure = \"halt\"",
    );
}
