//! Records that can never be applied, and the bytes that must not get lost on the way.

use serde_json::json;

use crate::harness::{LONG, Sender, World, delete_records_before, end_offsets, wait_until};

const PROJECTIONS: &str = r#"
[projections.score]
topics   = ["@in@"]
entity   = "/account"
sequence = "/seq"
gate     = "newest"
on_failure = "halt"
setup    = "score.sql"
columns  = { account = "text", amount = "bigint", note = { type = "text", nullable = true } }

[[projections.score.apply]]
sql = """
INSERT INTO score (account, amount, share, note) SELECT account, amount, 100 / amount, note FROM latest
ON CONFLICT (account) DO UPDATE SET amount = excluded.amount, share = excluded.share, note = excluded.note"""

[[projections.score.emit]]
name  = "copy"
topic = "@out@"
sql   = "SELECT _ref, account AS key, jsonb_build_object('amount', amount) AS payload FROM events"
"#;

const SETUP: &str = "
    CREATE TABLE score (
        account text PRIMARY KEY, amount bigint NOT NULL CONSTRAINT not_too_much CHECK (amount < 1000),
        share bigint NOT NULL, note text
    )";

/// What is wrong, and what the cause must say.
const BAD: [(Option<&[u8]>, &[&str]); 13] = [
    (
        Some(br#"{"account": "bad", "seq": 1, "amo"#),
        &["not a JSON object"],
    ),
    (
        Some(br#"{"account": "bad", "seq": 1}"#),
        &["column `amount`", "missing"],
    ),
    (
        Some(br#"{"account": "bad", "seq": 1, "amount": "many"}"#),
        &["column `amount`", "expected an integer"],
    ),
    (None, &["tombstone", "filter"]),
    (
        Some(br#"{"account": "bad", "seq": 1, "amount": 5, "note": "a\u0000b"}"#),
        &["column `note`", "NUL"],
    ),
    (Some(b""), &["empty"]),
    (
        Some(br#"{"account": "bad", "seq": 1, "amount": 0}"#),
        &["apply 1", "division by zero", "22012"],
    ),
    (
        Some(br#"{"account": "bad", "seq": 1, "amount": 5000}"#),
        &["apply 1", "not_too_much", "23514"],
    ),
    (Some(br#"{"seq": 1, "amount": 5}"#), &["entity", "missing"]),
    (
        Some(br#"{"account": "bad", "amount": 5}"#),
        &["sequence", "missing"],
    ),
    (
        Some(br#"{"account": "bad", "seq": 9223372036854775808, "amount": 5}"#),
        &["sequence", "not an integer of 64 bits"],
    ),
    (Some(b"\xff\xfe{}"), &["not a JSON object"]),
    (
        Some(br#"[{"account": "bad", "seq": 1, "amount": 5}]"#),
        &["not a JSON object"],
    ),
];

// I1, I4, I6: everything before the bad record is applied, nothing after it, and nobody else waits.
#[test]
fn a_record_that_cannot_be_applied_halts_its_partition_and_no_other() {
    let good = i32::try_from(BAD.len()).unwrap();
    let world = World::new(good + 1, PROJECTIONS, &[("score.sql", SETUP)]);
    let sender = world.sender();
    let send = |partition: i32, place: usize| {
        let event = json!({ "account": format!("p{partition}-{place}"), "seq": 1, "amount": 7 });
        sender.send_json(partition, &event);
    };
    for (partition, (value, _)) in (0..).zip(BAD) {
        (0..5).for_each(|place| send(partition, place));
        sender.send(partition, Some(b"bad"), value);
        (6..9).for_each(|place| send(partition, place));
    }
    (0..200).for_each(|place| send(good, place));
    sender.flush();
    let process = world.start("a");

    for (partition, (_, says)) in (0..).zip(BAD) {
        let cause = world.wait_until_halted("score", partition);
        let place = format!("{}[{partition}] offset 5: ", world.incoming());
        for words in [&*place].iter().chain(says) {
            assert!(cause.contains(words), "{words:?} in {cause:?}");
        }
    }
    let status = world.status();
    for partition in status["projections"][0]["partitions"].as_array().unwrap() {
        let is_good = partition["partition"] == good;
        let (next, condition) = if is_good {
            (200, "running")
        } else {
            (5, "halted")
        };
        assert_eq!(partition["next_offset"], next, "{partition}");
        assert_eq!(partition["condition"], condition, "{partition}");
        assert_eq!(partition["consumed"], next, "{partition}");
    }
    let accounts: i64 = world.db.one("SELECT count(*) FROM score.score");
    assert_eq!(accounts, 5 * i64::from(good) + 200);
    let bad: i64 = world.db.one(
        "SELECT count(*) FROM score.score WHERE account = 'bad' OR account ~ '-[678]$' AND account NOT LIKE 'p13-%'",
    );
    assert_eq!(bad, 0);
    let messages: usize = world.outbox().values().map(Vec::len).sum();
    assert_eq!(i64::try_from(messages).unwrap(), accounts);

    // Nobody burns a processor while there is nothing to do.
    let load = process.load();
    assert!(load < 0.4, "{load} of a processor is used");

    // The log is what it was, so a restart finds the same, and a cause is not lost meanwhile.
    process.stop();
    world.tidegate(&["verify"]).expect(0);
    let _again = world.start("a");
    for partition in 0..good {
        world.wait_until_halted("score", partition);
    }
    let again: i64 = world.db.one("SELECT count(*) FROM score.score");
    assert_eq!(again, accounts);
}

// I6: a record that nobody wants is counted as such.
#[test]
fn a_tombstone_is_filtered_and_counted_where_that_is_said() {
    let mut world = World::new(1, PROJECTIONS, &[("score.sql", SETUP)]);
    world.change_projections(
        "gate     = \"newest\"",
        "gate = \"newest\"\ntombstones = \"filter\"",
    );
    let sender = world.sender();
    sender.send_json(0, &json!({ "account": "a", "seq": 1, "amount": 7 }));
    sender.send(0, Some(b"a"), None);
    sender.send_json(0, &json!({ "account": "a", "seq": 2, "amount": 8 }));
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    let status = world.partition_status("score", 0);
    assert_eq!(status["filtered"], 1);
    assert_eq!(status["applied"], 2);
    assert_eq!(status["consumed"], 3);
    let amount: i64 = world.db.one("SELECT amount FROM score.score");
    assert_eq!(amount, 8);
}

// I10: a bad deployment is nobody's fault but its own: nothing is skipped, and it goes on once repaired.
#[test]
fn a_missing_column_halts_and_skips_nothing() {
    let world = World::ledger(2);
    let mut stream = world.stream();
    stream.produce(100);
    let process = world.start("a");
    world.assert_exact();
    world
        .db
        .run("ALTER TABLE turnover.turnover RENAME COLUMN credit TO renamed");
    stream.produce(100);
    let at = |partition| world.positions()[&("turnover".to_owned(), partition)];
    let before = (at(0), at(1));
    wait_until(LONG, "turnover is halted", || {
        (0..2).any(|p| world.condition("turnover", p).0 == "halted")
    });
    let halted = (0..2)
        .find(|p| world.condition("turnover", *p).0 == "halted")
        .unwrap();
    let cause = world.condition("turnover", halted).1;
    assert!(
        cause.contains("42703") && cause.contains("credit"),
        "{cause}"
    );
    wait_until(LONG, "the others go on", || {
        let applied: i64 = world.db.one("SELECT count(*) FROM journal.journal");
        applied == 200
    });
    assert_eq!((at(0), at(1)), before, "nothing is skipped");

    world
        .db
        .run("ALTER TABLE turnover.turnover RENAME COLUMN renamed TO credit");
    process.stop();
    let _repaired = world.start("a");
    world.assert_exact();
}

// I6, I10: where records are parked, the code's fault still parks none, however much is behind it.
#[test]
fn a_missing_column_before_a_hundred_thousand_records_parks_nothing() {
    let world = World::journal(2);
    let mut stream = world.stream();
    stream.produce(100);
    let _process = world.start("a");
    world.assert_exact();
    world
        .db
        .run("ALTER TABLE journal.journal RENAME COLUMN record_offset TO renamed");
    stream.produce(100_000);
    for partition in 0..2 {
        let cause = world.wait_until_halted("journal", partition);
        assert!(cause.contains("42703"), "{cause}");
    }
    assert_eq!(world.progress(), 100);
    let parked: i64 = world.db.one("SELECT count(*) FROM tidegate.dead_letter");
    assert_eq!(parked, 0);
    world
        .db
        .run("ALTER TABLE journal.journal RENAME COLUMN renamed TO record_offset");
    world.tidegate(&["resume", "journal"]).expect(0);
    world.assert_exact();
    let parked: i64 = world.db.one("SELECT count(*) FROM tidegate.dead_letter");
    assert_eq!(parked, 0);
}

// I4, I6: what a producer has aborted was never there, and its offsets are no gap.
#[test]
fn aborted_records_are_not_applied() {
    let world = World::journal(1);
    let sender = Sender::in_transactions(world.incoming());
    let mut offset = 0;
    let mut committed: Vec<(i32, i64)> = Vec::new();
    let _process = world.launch("a").batch_records_max(7).start();
    for transaction in 0..12 {
        sender.begin();
        let is_kept = transaction % 3 != 1;
        for _ in 0..10 {
            sender.send_json(0, &json!({ "account": "a" }));
            committed.extend(is_kept.then_some((0, offset)));
            offset += 1;
        }
        match is_kept {
            true => sender.commit(),
            false => sender.abort(),
        }
        offset += 1; // the marker
    }
    let applied = || -> Vec<(i32, i64)> {
        world
            .db
            .rows("SELECT partition, record_offset FROM journal.journal ORDER BY 1, 2")
    };
    wait_until(LONG, "the last record is applied", || {
        let last = committed.last().map_or(0, |(_, at)| at + 1);
        // The end of its transaction takes an offset too, and is passed.
        world.positions().get(&("journal".to_owned(), 0)) >= Some(&last)
    });
    assert_eq!(applied(), committed);
    world.tidegate(&["verify"]).expect(0);
}

// I6: records that retention has taken before they were applied are not passed over in silence.
#[test]
fn records_lost_to_retention_halt_the_partition() {
    let world = World::journal(2);
    let mut stream = world.stream();
    stream.produce(100);
    let process = world.start("a");
    world.assert_exact();
    process.stop();
    let at = world.positions()[&("journal".to_owned(), 0)];
    stream.produce(100);
    delete_records_before(world.incoming(), 0, at + 5);
    let _process = world.start("a");
    let cause = world.wait_until_halted("journal", 0);
    for words in [
        &*format!("the next offset, {at}"),
        "retention",
        "Nothing was skipped",
    ] {
        assert!(cause.contains(words), "{words:?} in {cause:?}");
    }
    assert_eq!(world.positions()[&("journal".to_owned(), 0)], at);
    wait_until(LONG, "the other partition is done", || {
        let end = end_offsets(world.incoming(), 2)[&1];
        world.positions()[&("journal".to_owned(), 1)] == end
    });
}

// A client that was built without a codec would read nothing of what was written with it, at every start.
#[test]
fn records_are_read_however_they_were_compressed() {
    const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
    let world = World::journal(1);
    let process = world.start("a");
    for (written, codec) in CODECS.into_iter().enumerate() {
        let sender = Sender::compressing(world.incoming(), codec);
        // Long and dull: what does not become shorter is sent as it is.
        let record = json!({ "account": "a", "note": "dull ".repeat(10_000) });
        sender.send_json(0, &record);
        sender.flush();
        let read = i64::try_from(written + 1).unwrap();
        wait_until(LONG, codec, || world.progress() == read);
    }
    process.stop();
}
