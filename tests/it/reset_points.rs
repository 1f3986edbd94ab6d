//! A reset to any point: what each partition begins with, who may do without the rest, and what is sent.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde_json::json;
use uuid::Uuid;

use crate::harness::{LONG, Output, World, delete_records_before, message_id, wait_until};
use crate::rebuild::{COPIES, COPIES_FILE, live, rebuild, send};

fn copies(partitions: i32) -> World {
    let anywhere = COPIES.replace("version = 1", "version = 1\nbegins_anywhere = true");
    World::new(partitions, &anywhere, &[COPIES_FILE])
}

fn repair(world: &mut World) {
    world.change_projections("100 / amount FROM", "100 / nullif(amount, 0) FROM");
}

fn reset(world: &World, to: &str) -> Output {
    let done = world.tidegate(&["reset", "copies", "--to", to, "--yes"]);
    done.expect(0)
}

/// The offsets of partition 0 whose messages are in the outbox, each once.
fn copied(world: &World) -> BTreeSet<i64> {
    let outbox = world.outbox();
    let stream = format!("copies/{}/0", world.incoming());
    let messages = outbox.get(&stream).map_or(&[][..], Vec::as_slice);
    let offset = |payload: &serde_json::Value| payload["offset"].as_i64().unwrap();
    let offsets: Vec<i64> = messages.iter().map(|m| offset(&m.payload)).collect();
    let once: BTreeSet<i64> = offsets.iter().copied().collect();
    assert_eq!(once.len(), offsets.len(), "twice: {offsets:?}");
    once
}

fn rows(world: &World) -> Vec<i64> {
    let rows = "SELECT record_offset FROM copies.copies ORDER BY 1";
    let rows: Vec<(i64,)> = world.db.rows(rows);
    rows.into_iter().map(|(offset,)| offset).collect()
}

fn rights(world: &World) -> Vec<(i64, i64)> {
    let ranges = "SELECT from_offset, to_offset FROM tidegate.unemitted ORDER BY 1";
    world.db.rows(ranges)
}

// I5: what a reset leaves out has its message yet when a later one comes back to it, in pieces too; what was sent stays
// sent, and what was parked keeps its right however often it is passed over.
#[test]
fn what_a_reset_leaves_out_keeps_its_right_and_nothing_is_sent_twice() {
    let mut world = copies(1);
    send(&world, &[1, 2, 3, 0, 5, 6, 7, 8, 9, 10]);
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    let sent: BTreeSet<i64> = (0..10).filter(|offset| *offset != 3).collect();
    assert_eq!(copied(&world), sent);

    send(&world, &[1; 5]);
    let told = reset(&world, "latest").stdout;
    for words in [
        "5 never read are left out",
        "1 parked records are not read again",
    ] {
        assert!(told.contains(words), "{words:?} in {told}");
    }
    assert_eq!(rights(&world), [(3, 4), (10, 15)]);
    let process = world.start("a");
    send(&world, &[1; 3]);
    world.wait_until_done(LONG);
    let mut sent: BTreeSet<i64> = sent.into_iter().chain(15..18).collect();
    assert_eq!(
        (copied(&world), rows(&world)),
        (sent.clone(), vec![15, 16, 17])
    );

    // Back to a piece of it, from the middle.
    let told = reset(&world, "0=12").stdout;
    assert!(told.contains("12 older ones are left out"), "{told}");
    world.wait_until_done(LONG);
    sent.extend(12..15);
    assert_eq!(copied(&world), sent);
    assert_eq!(rights(&world), [(3, 4), (10, 12)]);

    // To the end, where nothing is left out that was not sent, and back to the other piece.
    reset(&world, "latest");
    assert_eq!(rights(&world), [(3, 4), (10, 12)]);
    reset(&world, "0=5");
    world.wait_until_done(LONG);
    sent.extend(10..12);
    assert_eq!(
        (copied(&world), rows(&world)),
        (sent.clone(), (5..18).collect())
    );

    // What was parked at first waits for this.
    process.stop();
    repair(&mut world);
    let process = world.start("a");
    reset(&world, "earliest");
    world.wait_until_done(LONG);
    sent.insert(3);
    assert_eq!(copied(&world), sent);
    assert_eq!(sent.len(), 18);
    assert_eq!(rights(&world), []);
    process.stop();
    let points: Vec<(String,)> = world
        .db
        .rows("SELECT arguments ->> 'to' FROM tidegate.operation WHERE kind = 'reset' ORDER BY at");
    let points: Vec<&str> = points.iter().map(|(to,)| &**to).collect();
    assert_eq!(
        points,
        ["latest", "offsets", "latest", "offsets", "earliest"]
    );
    world.tidegate(&["verify"]).expect(0);
}

// I5: a first start at the end leaves out what is older as a reset to there does: its messages are sent if a later one comes
// back to it.
#[test]
fn what_a_first_start_leaves_out_keeps_its_right() {
    let mut world = copies(1);
    world.change_projections("begins_anywhere = true", "start = \"latest\"");
    send(&world, &[1; 5]);
    let process = world.start("a");
    wait_until(LONG, "it has begun", || !world.positions().is_empty());
    send(&world, &[1; 3]);
    world.wait_until_done(LONG);
    process.stop();
    assert_eq!(copied(&world), (5..8).collect());
    assert_eq!(rights(&world), [(0, 5)]);
    reset(&world, "earliest");
    let process = world.start("b");
    world.wait_until_done(LONG);
    process.stop();
    assert_eq!(copied(&world), (0..8).collect());
    assert_eq!(rights(&world), []);
}

// I5: a build reads what a reset has left out, if the projection wants all there is, and its messages wait for the
// cut-over; one that may begin anywhere begins where the live generation did.
#[test]
fn a_build_sends_what_a_reset_has_left_out_at_its_cut_over() {
    let mut world = copies(1);
    send(&world, &[1; 5]);
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    send(&world, &[1, 1, 0, 1, 1]);
    reset(&world, "0=10");
    let process = world.start("a");
    send(&world, &[1; 2]);
    world.wait_until_done(LONG);
    let sent: BTreeSet<i64> = (0..5).chain(10..12).collect();
    assert_eq!(copied(&world), sent);

    world.change_projections("version = 1", "version = 2");
    let told = rebuild(&world, &["plan", "copies"]).expect(0).stdout;
    assert!(told.contains("2 offsets to read"), "{told}");
    world.change_projections("begins_anywhere = true", "begins_anywhere = false");
    rebuild(&world, &["start", "copies"]).expect(0);
    assert_eq!(copied(&world), sent);
    let cut_over = ["cut-over", "copies", "--yes", "--accept-differences"];
    rebuild(&world, &cut_over).expect(0);
    let sent: BTreeSet<i64> = (0..12).filter(|offset| *offset != 7).collect();
    assert_eq!(copied(&world), sent);
    // What waits there has it still.
    assert_eq!(rights(&world), [(7, 8)]);
    process.stop();
    repair(&mut world);
    world
        .tidegate(&["dead-letters", "redrive", "copies"])
        .expect(0);
    assert_eq!(copied(&world), (0..12).collect());
    assert_eq!(rights(&world), []);
}

// I5: resets to points at random, with two processes at work and records that come in, that fail, and that are repaired
// at the end.
#[test]
fn resets_to_random_points_under_load_send_each_message_once() {
    const ROUNDS: usize = 8;
    let mut world = copies(3);
    let mut random = world.random();
    let sender = world.sender();
    let start = |world: &World, name| world.launch(name).batch_records_max(20).start();
    let processes = [start(&world, "a"), start(&world, "b")];
    let mut ends = [0_i64; 3];
    for round in 0..ROUNDS {
        for _ in 0..150 {
            let partition = random.usize(0..3);
            let amount = i64::from(random.u8(0..25) > 0);
            sender.send_json(partition as i32, &json!({ "amount": amount }));
            ends[partition] += 1;
        }
        sender.flush();
        if random.bool() {
            let before = world.progress();
            wait_until(LONG, "some of it is applied", || {
                world.progress() != before
                    || world.positions().values().sum::<i64>() >= ends.iter().sum()
            });
        }
        let to = match random.u8(0..4) {
            0 => "latest".to_owned(),
            1 => "earliest".to_owned(),
            _ => {
                let offset = |p: usize| format!("{p}={}", random.i64(0..=ends[p]));
                (0..3).map(offset).collect::<Vec<_>>().join(",")
            }
        };
        eprintln!("round {round}: {to}");
        wait_until(LONG, "the projection is there", || {
            world
                .tidegate(&["reset", "copies", "--to", &to, "--yes"])
                .code
                == 0
        });
    }
    processes.into_iter().for_each(|process| process.stop());
    repair(&mut world);
    let process = start(&world, "c");
    reset(&world, "earliest");
    world.wait_until_done(LONG);
    process.stop();
    let outbox = world.outbox();
    let found: Vec<Uuid> = outbox.values().flatten().map(|m| m.id).collect();
    let once: BTreeSet<Uuid> = found.iter().copied().collect();
    assert_eq!(once.len(), found.len(), "no id is there twice");
    let log = world.log();
    let id = |record| message_id("copies", 1, world.incoming(), record, "copy", 0);
    let expected: BTreeSet<Uuid> = log.iter().map(id).collect();
    assert_eq!(once.len(), expected.len());
    assert_eq!(once, expected);
    assert_eq!(rights(&world), []);
    assert_eq!(rows(&world).len(), log.len());
    world.tidegate(&["verify"]).expect(0);
}

// A time is a record's timestamp: the end where all are older, the beginning where there is nothing.
#[test]
fn a_reset_to_a_time_begins_each_partition_with_what_is_not_older() {
    let world = copies(4);
    let sender = world.sender();
    let now = Utc::now();
    let ago = |hours| now - TimeDelta::hours(hours);
    let send = |partition, at: DateTime<Utc>| {
        sender.send_at(partition, &json!({ "amount": 1 }), at.timestamp_millis());
    };
    for hours in [5, 4, 3, 2] {
        send(0, ago(hours));
        send(1, ago(hours + 10));
    }
    // Out of order: the first that is not older counts.
    for hours in [9, 1, 8, 7] {
        send(2, ago(hours));
    }
    sender.flush();
    let mut process = world.start("a");
    world.wait_until_done(LONG);

    let point = ago(3).to_rfc3339_opts(SecondsFormat::Millis, true);
    let before = world.positions();
    let told = world.tidegate(&["reset", "copies", "--to", &point, "--dry-run"]);
    let told = told.expect(0).stdout;
    for words in ["This empties all tables", "copies (", "nothing was changed"] {
        assert!(told.contains(words), "{words:?} in {told}");
    }
    assert_eq!((world.positions(), live(&world, "copies")), (before, 1));

    process.kill();
    let told = reset(&world, &point).stdout;
    let begins: BTreeMap<i32, i64> = world
        .db
        .rows::<(i32, i64)>(
            "SELECT partition, first_offset FROM tidegate.position WHERE generation = 2",
        )
        .into_iter()
        .collect();
    assert_eq!(begins, [(0, 2), (1, 4), (2, 1), (3, 0)].into(), "{told}");
    let row = |partition: i32| {
        let name = format!("{}[{partition}]", world.incoming());
        let line = told.lines().find(|line| line.contains(&name)).unwrap();
        line.split_whitespace()
            .skip(1)
            .take(3)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(row(0), ["4", "2", "2"], "{told}");
    assert_eq!(row(1), ["4", "4", "0"], "{told}");
    assert_eq!(row(3)[..], ["0", "0", "0"], "{told}");
    let at: String = world
        .db
        .one("SELECT arguments ->> 'to' FROM tidegate.operation");
    assert_eq!(
        DateTime::parse_from_rfc3339(&at).unwrap(),
        DateTime::parse_from_rfc3339(&point).unwrap()
    );

    for (point, words) in [
        ("2026-03-01T08:00:00", "with its zone"),
        ("yesterday", "neither `earliest`"),
        ("@nowhere", "nowhere cannot be read"),
    ] {
        let refused = world.tidegate(&["reset", "copies", "--to", point, "--yes"]);
        let told = refused.expect(64).stderr;
        assert!(told.contains(words), "{words:?} in {told}");
    }
}

// Deltas and tables that need all there is are not begun in the middle, whichever way that is said; the beginning is
// the beginning however it is said.
#[test]
fn a_reset_to_the_middle_is_for_those_that_say_so() {
    let mut world = World::ledger(2);
    world.stream().produce(200);
    let process = world.start("a");
    world.assert_exact();
    process.stop();
    let refuse = |world: &World, projection: &str, to: &str, words: &str| {
        for yes in ["--yes", "--dry-run"] {
            let refused = world.tidegate(&["reset", projection, "--to", to, yes]);
            let told = refused.expect(70).stderr;
            assert!(told.contains(words), "{words:?} in {told}");
        }
    };
    let tomorrow = (Utc::now() + TimeDelta::days(1)).to_rfc3339();
    for to in ["latest", "0=1,1=0", &tomorrow] {
        refuse(&world, "balances", to, "begins_anywhere = true");
        refuse(&world, "journal", to, "begins_anywhere = true");
    }
    for name in ["balances", "journal"] {
        let section = format!("[projections.{name}]");
        world.change_projections(&section, &format!("{section}\nbegins_anywhere = true"));
    }
    refuse(&world, "balances", "latest", "`first = \"any\"`");
    let topic = world.incoming().to_owned();
    refuse(
        &world,
        "journal",
        "0=5",
        &format!("no offset is given for {topic}[1]"),
    );
    refuse(
        &world,
        "journal",
        "0=5,1=5,2=5",
        &format!("for {topic}[2], which `journal` does not read"),
    );
    refuse(&world, "journal", "0=5,1=1000000", "and ends at");
    delete_records_before(&topic, 0, 7);
    wait_until(LONG, "the beginning is gone", || {
        let planned = world.tidegate(&["reset", "journal", "--to", "0=5,1=5", "--dry-run"]);
        planned.code == 70
    });
    refuse(
        &world,
        "journal",
        "0=5,1=5",
        "its log holds offsets from 7 on",
    );
    let told = world.tidegate(&["reset", "journal", "--to", "earliest", "--dry-run"]);
    let told = told.expect(0).stdout;
    assert!(told.contains("older records are gone"), "{told}");
    let operations: i64 = world.db.one("SELECT count(*) FROM tidegate.operation");
    assert_eq!(operations, 0);

    // `balances` needs its beginning, and this is it.
    for to in ["0=7,1=0", "2001-01-01T00:00:00+02:00", "earliest"] {
        world
            .tidegate(&["reset", "balances", "--to", to, "--dry-run"])
            .expect(0);
    }
}
