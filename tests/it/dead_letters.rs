//! Records that cannot be applied are kept, and only their entities wait.

use serde_json::json;

use crate::harness::{LONG, Output, Sender, World, wait_until};

pub(crate) const PROJECTIONS: &str = r#"
[projections.score]
topics   = ["@in@"]
entity   = "key"
sequence = "/seq"
gate     = "newest"
setup    = "score.sql"
columns  = { account = "text", amount = "bigint" }

[[projections.score.apply]]
sql = """
INSERT INTO score (account, amount, highest, total)
SELECT account, (array_agg(amount ORDER BY _ref DESC))[1], max(amount), sum(100 / amount) FROM events GROUP BY account
ON CONFLICT (account) DO UPDATE
SET amount = excluded.amount, highest = greatest(score.highest, excluded.highest), total = score.total + excluded.total"""

[[projections.score.emit]]
name  = "copy"
topic = "@out@"
sql   = "SELECT _ref, account AS key, jsonb_build_object('amount', amount) AS payload FROM events"
"#;

pub(crate) const SETUP: &str = "
    CREATE TABLE score (
        account text PRIMARY KEY, amount bigint NOT NULL, total bigint NOT NULL,
        highest bigint NOT NULL CONSTRAINT not_too_much CHECK (highest < 1000)
    )";

pub(crate) fn score(partitions: i32) -> World {
    World::new(partitions, PROJECTIONS, &[("score.sql", SETUP)])
}

pub(crate) fn send(sender: &Sender, partition: i32, account: &str, seq: i64, amount: i64) {
    sender.send_json(
        partition,
        &json!({ "account": account, "seq": seq, "amount": amount }),
    );
}

/// Sequence, reason and state of an entity's letters, in order.
pub(crate) fn letters(world: &World, entity: &str) -> Vec<(Option<i64>, String, String)> {
    world.db.rows(&format!(
        "SELECT sequence, reason, state FROM tidegate.dead_letter WHERE entity = '{entity}' ORDER BY number"
    ))
}

pub(crate) fn letter(
    sequence: impl Into<Option<i64>>,
    reason: &str,
    state: &str,
) -> (Option<i64>, String, String) {
    (sequence.into(), reason.to_owned(), state.to_owned())
}

pub(crate) fn waiting(world: &World) -> i64 {
    world
        .db
        .one("SELECT count(*) FROM tidegate.dead_letter WHERE state = 'waiting'")
}

pub(crate) fn amounts(world: &World) -> Vec<(String, i64)> {
    world
        .db
        .rows("SELECT account, amount FROM score.score ORDER BY 1")
}

pub(crate) fn redrive(world: &World, projection: &str) -> Output {
    world.tidegate(&["dead-letters", "redrive", projection])
}

// I1, I6: the record is kept with its bytes, its entity waits in order, others do not, and once what was
// wrong is repaired all of it is applied, with its messages.
#[test]
pub(crate) fn a_record_that_cannot_be_applied_holds_up_only_its_entity() {
    let world = score(1);
    let sender = world.sender();
    send(&sender, 0, "good", 1, 5);
    let headers: [(&str, &[u8]); 3] = [("k", b"1"), ("k", b"2"), ("bin", b"\xff\0")];
    let poison = br#"{"account": "bad", "seq": 2, "amount": 5000}"#;
    send(&sender, 0, "bad", 1, 7);
    sender.send_with_headers(0, Some(b"bad"), Some(poison), &headers);
    send(&sender, 0, "bad", 3, 9);
    send(&sender, 0, "bad", 1, 7); // a copy is stale, whatever waits
    send(&sender, 0, "good", 2, 6);
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(
        amounts(&world),
        [("bad".to_owned(), 7), ("good".to_owned(), 6)]
    );
    assert_eq!(
        letters(&world, "bad"),
        [
            letter(2, "database", "waiting"),
            letter(3, "behind", "waiting")
        ]
    );
    type Bytes = (Vec<u8>, Vec<u8>, Vec<Vec<u8>>, Vec<Vec<u8>>, String);
    let kept: Vec<Bytes> = world.db.rows(
        "SELECT key, value, header_names, header_values, sqlstate FROM tidegate.dead_letter WHERE sequence = 2",
    );
    let names: Vec<Vec<u8>> = headers
        .iter()
        .map(|(name, _)| name.as_bytes().to_vec())
        .collect();
    let values: Vec<Vec<u8>> = headers.iter().map(|(_, value)| value.to_vec()).collect();
    assert_eq!(
        kept,
        [(
            b"bad".to_vec(),
            poison.to_vec(),
            names,
            values,
            "23514".to_owned()
        )]
    );
    let status = world.partition_status("score", 0);
    assert_eq!(
        (&status["parked"], &status["applied"], &status["stale"]),
        (&json!(2), &json!(3), &json!(1))
    );
    world.tidegate(&["verify"]).expect(0);

    // Still wrong: it keeps its place, and what is behind it too.
    let again = redrive(&world, "score").expect(70);
    assert!(
        again.stdout.contains("failed again") && again.stdout.contains("not_too_much"),
        "{again:?}"
    );
    let attempts: Vec<(i32,)> = world
        .db
        .rows("SELECT attempts FROM tidegate.dead_letter ORDER BY number");
    assert_eq!(attempts, [(2,), (1,)]);
    assert_eq!(waiting(&world), 2);
    assert_eq!(amounts(&world)[0].1, 7);

    world
        .db
        .run("ALTER TABLE score.score DROP CONSTRAINT not_too_much");
    send(&sender, 0, "bad", 4, 11);
    sender.flush();
    wait_until(LONG, "the next one waits too", || waiting(&world) == 3);
    let dry = world
        .tidegate(&["dead-letters", "redrive", "score", "--dry-run"])
        .expect(0)
        .stdout;
    assert!(dry.contains("3 parked records; with an entity"), "{dry}");
    assert_eq!(waiting(&world), 3);
    assert_eq!(world.partition_status("score", 0)["waiting"], 3);
    redrive(&world, "score").expect(0);
    assert_eq!(waiting(&world), 0);
    let status = world.partition_status("score", 0);
    assert_eq!(
        (&status["waiting"], &status["parked"]),
        (&json!(0), &json!(3))
    );
    assert_eq!(
        amounts(&world),
        [("bad".to_owned(), 11), ("good".to_owned(), 6)]
    );
    send(&sender, 0, "bad", 5, 12);
    sender.flush();
    wait_until(LONG, "the entity goes on", || amounts(&world)[0].1 == 12);
    assert_eq!(
        world.outbox_sizes().into_values().sum::<usize>(),
        7,
        "a message for each that was applied"
    );
    world.tidegate(&["verify"]).expect(0);
    process.stop();
}

// I6: what is wrong in a record itself, one record each, in the middle of a large batch.
#[test]
fn each_kind_of_poison_is_parked_alone_with_its_reason() {
    let world = score(1);
    let sender = world.sender();
    let poison: [(Option<&[u8]>, &str, &str); 8] = [
        (
            Some(br#"{"account": "x", "seq": 1, "amo"#),
            "undecodable",
            "not a JSON object",
        ),
        (Some(b"\xff\xfe"), "undecodable", "not a JSON object"),
        (Some(b""), "undecodable", "empty"),
        (None, "undecodable", "tombstone"),
        (
            Some(br#"{"account": "x\u0000", "seq": 1, "amount": 2}"#),
            "undecodable",
            "NUL",
        ),
        (
            Some(br#"{"account": "x", "seq": 9223372036854775808, "amount": 2}"#),
            "undecodable",
            "64 bits",
        ),
        (
            Some(br#"{"account": "x", "seq": 1, "amount": 0}"#),
            "database",
            "division by zero",
        ),
        (
            Some(br#"{"account": "x", "seq": 1, "amount": 7000}"#),
            "database",
            "not_too_much",
        ),
    ];
    for (place, (value, ..)) in (0..).zip(&poison) {
        for good in 0..100 {
            send(&sender, 0, &format!("g{place}-{good}"), 1, 1 + good);
        }
        sender.send(0, Some(format!("p{place}").as_bytes()), *value);
    }
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(amounts(&world).len(), 800);
    for (place, (_, reason, says)) in (0..).zip(&poison) {
        let found: Vec<(String, String)> = world.db.rows(&format!(
            "SELECT reason, detail FROM tidegate.dead_letter WHERE entity = 'p{place}'"
        ));
        assert_eq!(found.len(), 1, "p{place}");
        assert_eq!(found[0].0, *reason, "p{place}");
        assert!(found[0].1.contains(says), "{says:?} in {found:?}");
    }
    world.tidegate(&["verify"]).expect(0);
    // What cannot be read goes on waiting, without holding up the others.
    redrive(&world, "score").expect(70);
    assert_eq!(waiting(&world), 8);
}

const LEDGER_ENTRY: &str = "2026-01-05T00:00:00Z";

pub(crate) fn entry(sender: &Sender, partition: i32, account: &str, seq: i64) {
    sender.send_json(
        partition,
        &json!({ "id": format!("{account}/{seq}"), "account": account, "seq": seq, "amount": 10,
                 "booked_at": LEDGER_ENTRY }),
    );
}

fn balance(world: &World, account: &str) -> Option<(i64, i64)> {
    let rows: Vec<(i64, i64)> = world.db.rows(&format!(
        "SELECT amount, entries FROM balances.balance WHERE account = '{account}'"
    ));
    rows.into_iter().next()
}

// I4, I6: gate `next`: an event that is early waits, the missing one passes, also through another partition,
// and what waited follows by itself.
#[test]
fn an_early_event_waits_until_the_missing_one_has_come() {
    let world = World::ledger(2);
    let sender = world.sender();
    for seq in [1, 3, 5, 4] {
        entry(&sender, 0, "a", seq);
    }
    entry(&sender, 0, "late", 2);
    entry(&sender, 0, "other", 1);
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(balance(&world, "a"), Some((10, 1)));
    assert_eq!(balance(&world, "late"), None);
    assert_eq!(balance(&world, "other"), Some((10, 1)));
    let expected = [
        letter(3, "gap", "waiting"),
        letter(5, "behind", "waiting"),
        letter(4, "behind", "waiting"),
    ];
    assert_eq!(letters(&world, "a"), expected);
    world.tidegate(&["verify"]).expect(0);

    entry(&sender, 1, "a", 2);
    entry(&sender, 1, "late", 1);
    sender.flush();
    wait_until(LONG, "all of it is applied", || {
        balance(&world, "a") == Some((50, 5)) && balance(&world, "late") == Some((20, 2))
    });
    wait_until(LONG, "nothing waits", || waiting(&world) == 0);
    entry(&sender, 0, "a", 6);
    sender.flush();
    wait_until(LONG, "it goes on", || balance(&world, "a") == Some((60, 6)));
    world.wait_until_done(LONG);
    world.tidegate(&["verify"]).expect(0);
    process.stop();
}

// I6: an operator decides that the missing event will not come.
#[test]
fn an_accepted_gap_lets_the_entity_go_on() {
    let world = World::ledger(1);
    let sender = world.sender();
    for seq in [1, 4, 5] {
        entry(&sender, 0, "a", seq);
    }
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    let accept =
        |entity: &str| world.tidegate(&["gate", "accept-gap", "balances", entity, "--yes"]);
    let refused = accept("nobody").expect(70).stderr;
    assert!(
        refused.contains("does not wait for a missing event"),
        "{refused}"
    );
    let accepted = accept("a").expect(0).stdout;
    assert!(accepted.contains("after 1 comes 4"), "{accepted}");
    wait_until(LONG, "what waited is applied", || {
        balance(&world, "a") == Some((30, 3))
    });
    // Should they come after all, they are stale.
    entry(&sender, 0, "a", 2);
    entry(&sender, 0, "a", 6);
    sender.flush();
    wait_until(LONG, "it goes on", || balance(&world, "a") == Some((40, 4)));
    world.tidegate(&["verify"]).expect(0);
    let kinds: Vec<(String,)> = world.db.rows("SELECT kind FROM tidegate.operation");
    assert_eq!(kinds, [("accept-gap".to_owned(),)]);
}

// I5, I6: what is given up is not missing any more, and its reason is on record.
#[test]
fn a_discarded_record_lets_the_ones_behind_it_go_on() {
    let world = World::ledger(1);
    let sender = world.sender();
    entry(&sender, 0, "a", 1);
    let poison = json!({ "id": "a/2", "account": "a", "seq": 2, "amount": "many", "booked_at": LEDGER_ENTRY });
    sender.send_json(0, &poison);
    entry(&sender, 0, "a", 3);
    sender.flush();
    let _process = world
        .launch("a")
        .argument("--only")
        .argument("balances")
        .start();
    world.wait_until_done(LONG);
    assert_eq!(
        letters(&world, "a"),
        [
            letter(2, "undecodable", "waiting"),
            letter(3, "behind", "waiting")
        ]
    );
    let discard = [
        "dead-letters",
        "discard",
        "balances",
        "--reason",
        "undecodable",
        "--why",
        "a test entry",
        "--yes",
    ];
    let done = world.tidegate(&discard).expect(0).stdout;
    assert!(done.contains("discarded 1"), "{done}");
    wait_until(LONG, "the next one is applied", || {
        balance(&world, "a") == Some((20, 2))
    });
    assert_eq!(
        letters(&world, "a"),
        [
            letter(2, "undecodable", "discarded"),
            letter(3, "behind", "applied")
        ]
    );
    let why: String = world
        .db
        .one("SELECT arguments ->> 'why' FROM tidegate.operation");
    assert_eq!(why, "a test entry");
    world.tidegate(&["verify"]).expect(0);
}

// I10: many failures look like a bad deployment: nothing more is parked, and nothing is skipped.
#[test]
fn too_many_failures_halt_instead_of_parking_the_world() {
    let mut world = score(1);
    world.change_projections(
        "gate     = \"newest\"",
        "gate     = \"newest\"\nfailed_consecutive_max = 5",
    );
    let sender = world.sender();
    send(&sender, 0, "good", 1, 5);
    for number in 0..200 {
        send(&sender, 0, &format!("bad-{number}"), 1, 5000);
    }
    sender.flush();
    let _process = world.start("a");
    let cause = world.wait_until_halted("score", 0);
    for words in [
        "more than 5 records in a row",
        "bad deployment",
        "not_too_much",
    ] {
        assert!(cause.contains(words), "{words:?} in {cause:?}");
    }
    assert_eq!(waiting(&world), 5);
    assert_eq!(world.progress(), 6);
    world
        .db
        .run("ALTER TABLE score.score DROP CONSTRAINT not_too_much");
    world.tidegate(&["resume", "score"]).expect(0);
    world.wait_until_done(LONG);
    redrive(&world, "score").expect(0);
    assert_eq!(amounts(&world).len(), 201);
    world.tidegate(&["verify"]).expect(0);
}

// I6: at a limit the partition halts; what is parked already stays as it is.
#[test]
fn an_entity_with_too_many_waiting_records_halts_its_partition() {
    let mut world = score(1);
    world.change_projections(
        "gate     = \"newest\"",
        "gate     = \"newest\"\nparked_entity_max = 3",
    );
    let sender = world.sender();
    send(&sender, 0, "bad", 1, 5000);
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    for seq in 2..10 {
        send(&sender, 0, "bad", seq, 5);
        sender.flush();
        send(&sender, 0, "good", seq, 5);
    }
    sender.flush();
    let cause = world.wait_until_halted("score", 0);
    for words in [
        "records of one entity would be parked; 3 are allowed",
        "tidegate dead-letters list score",
    ] {
        assert!(cause.contains(words), "{words:?} in {cause:?}");
    }
    assert!(waiting(&world) <= 3);
    world.tidegate(&["verify"]).expect(0);
}

// I5: the right to send belongs to the record: parked before a reset and applied after it, it sends once;
// applied before and parked after, it has sent already.
#[test]
fn a_parked_record_keeps_its_right_to_send_over_a_reset() {
    let world = score(1);
    let sender = world.sender();
    send(&sender, 0, "a", 1, 5);
    send(&sender, 0, "b", 1, 5000);
    send(&sender, 0, "b", 2, 6);
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    let messages = || world.outbox_sizes().into_values().sum::<usize>();
    assert_eq!((messages(), waiting(&world)), (1, 2));
    world
        .db
        .run("ALTER TABLE score.score DROP CONSTRAINT not_too_much");
    world
        .tidegate(&["reset", "score", "--to", "earliest", "--yes"])
        .expect(0);
    wait_until(LONG, "it is filled again", || amounts(&world).len() == 2);
    world.wait_until_done(LONG);
    assert_eq!(
        messages(),
        3,
        "what was parked sends now, what was sent does not"
    );
    let left: i64 = world.db.one("SELECT count(*) FROM tidegate.unemitted");
    assert_eq!(left, 0);

    // The other way round: sent in the first pass, parked in the second, redriven.
    world
        .db
        .run("ALTER TABLE score.score ADD CONSTRAINT not_five CHECK (highest <> 5) NOT VALID");
    world
        .tidegate(&["reset", "score", "--to", "earliest", "--yes"])
        .expect(0);
    wait_until(LONG, "it is filled again", || amounts(&world).len() == 1);
    world.wait_until_done(LONG);
    world
        .db
        .run("ALTER TABLE score.score DROP CONSTRAINT not_five");
    redrive(&world, "score").expect(0);
    assert_eq!(amounts(&world).len(), 2);
    assert_eq!(messages(), 3);
    world.tidegate(&["verify"]).expect(0);
}

// No secret and no end of text gets into a dead letter, and writing it never fails.
#[test]
fn the_text_of_an_error_is_cut_and_holds_no_secret() {
    let mut world = score(1);
    world.change_projections(
        "FROM events GROUP BY account\nON CONFLICT",
        "FROM events WHERE public.complain(account) GROUP BY account\nON CONFLICT",
    );
    world.db.run(
        "CREATE FUNCTION public.complain(account text) RETURNS boolean LANGUAGE plpgsql AS $$
         BEGIN
            IF account = 'bad' THEN
                RAISE EXCEPTION 'no: % %', 'correct horse', repeat('é', 2500000);
            END IF;
            RETURN true;
         END $$",
    );
    let sender = world.sender();
    send(&sender, 0, "bad", 1, 5);
    sender.flush();
    let _process = world
        .launch("a")
        .option("sasl.password", "correct horse")
        .start();
    world.wait_until_done(LONG);
    let detail: String = world.db.one("SELECT detail FROM tidegate.dead_letter");
    assert!(detail.contains("no: *** éé"), "{detail}");
    assert!(detail.chars().count() <= 2000);
    assert!(!detail.contains("horse"));
    let list = world.tidegate(&["dead-letters", "list"]).expect(0).stdout;
    assert!(
        list.contains("database") && !list.contains("horse"),
        "{list}"
    );
}

// A code of the database's may mean something else to one projection.
#[test]
fn an_sqlstate_can_be_moved_to_another_class() {
    let mut world = score(1);
    world.change_projections(
        "gate     = \"newest\"",
        "gate     = \"newest\"\nsqlstates = { \"23514\" = \"halt\" }",
    );
    let sender = world.sender();
    send(&sender, 0, "bad", 1, 5000);
    sender.flush();
    let _process = world.start("a");
    let cause = world.wait_until_halted("score", 0);
    assert!(cause.contains("not_too_much"), "{cause}");
    assert_eq!(waiting(&world), 0);
}

// I1, I4, I6: whatever fails, restarts and is redriven in between, the tables are the fold of the log.
#[test]
pub(crate) fn redriven_under_load_and_over_restarts_the_tables_are_the_fold() {
    let world = score(2);
    let mut random = world.random();
    let sender = world.sender();
    let mut seqs = [0_i64; 12];
    let mut last = std::collections::BTreeMap::new();
    let mut totals = std::collections::BTreeMap::new();
    let mut process = world.launch("a").batch_records_max(20).start();
    for round in 0..6 {
        for _ in 0..150 {
            let number = random.usize(..seqs.len());
            seqs[number] += 1;
            let account = format!("e{number}");
            // Too much now and then: repaired before the end.
            let amount = if random.u8(..) < 20 {
                2_000
            } else {
                random.i64(1..100)
            };
            let partition = i32::from(number % 2 == 1);
            send(&sender, partition, &account, seqs[number], amount);
            if random.u8(..) < 30 {
                send(&sender, partition, &account, seqs[number], 1); // a copy that is not one
            }
            last.insert(account.clone(), amount);
            *totals.entry(account).or_insert(0) += 100 / amount;
        }
        sender.flush();
        let target = 150 * (round + 1) / 2;
        wait_until(LONG, "it works", || world.progress() >= target);
        match round % 3 {
            0 => {
                process.kill();
                process = world.launch("a").batch_records_max(20).start();
            }
            1 => {
                let _ = redrive(&world, "score");
            }
            _ => {}
        }
    }
    wait_until(LONG, "some wait", || waiting(&world) > 0);
    world
        .db
        .run("ALTER TABLE score.score DROP CONSTRAINT not_too_much");
    wait_until(LONG, "nothing waits", || {
        let _ = redrive(&world, "score");
        let ends: i64 = crate::harness::end_offsets(world.incoming(), 2)
            .values()
            .sum();
        waiting(&world) == 0 && world.progress() == ends
    });
    let rows: Vec<(String, i64, i64)> = world
        .db
        .rows("SELECT account, amount, total FROM score.score");
    for (account, amount, total) in &rows {
        assert_eq!(Some(total), totals.get(account), "{account}");
        assert_eq!(Some(amount), last.get(account), "{account}");
    }
    assert_eq!(rows.len(), last.len());
    world.tidegate(&["verify"]).expect(0);
    let applied: i64 = world
        .db
        .one("SELECT sum(applied)::bigint FROM tidegate.position");
    let redriven: i64 = world
        .db
        .one("SELECT count(*) FROM tidegate.dead_letter WHERE state = 'applied'");
    let messages: usize = world.outbox_sizes().into_values().sum();
    assert_eq!(applied + redriven, 900);
    assert_eq!(messages, 900, "each event has sent once");
}
