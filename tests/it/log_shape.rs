//! Logs that are not what they were, and logs with holes in them.

use serde_json::json;

use crate::harness::{
    LONG, Sender, World, configure_topic, delete_records_before, end_offsets, make_anew, read_log,
    wait_until,
};

fn at(world: &World) -> i64 {
    let positions = world.positions();
    positions
        .get(&("journal".to_owned(), 0))
        .copied()
        .unwrap_or(0)
}

fn applied(world: &World) -> i64 {
    let is_there: bool = world
        .db
        .one("SELECT to_regclass('journal.journal') IS NOT NULL");
    match is_there {
        true => world.db.one("SELECT count(*) FROM journal.journal"),
        false => 0,
    }
}

#[track_caller]
fn assert_says(cause: &str, words: &[&str]) {
    for word in words {
        assert!(cause.contains(word), "{word:?} in {cause:?}");
    }
}

/// A journal of one partition that has applied 50 records, stopped.
fn fifty() -> World {
    let world = World::journal(1);
    world.stream().produce(50);
    let process = world.start("a");
    world.assert_exact();
    process.stop();
    world
}

// I2, I6: the offset asked for is in the new log too, so that nothing but the topic's identity tells.
#[test]
fn a_topic_made_anew_and_longer_halts_until_it_is_accepted() {
    let world = fifty();
    make_anew(world.incoming(), 1);
    world.stream().produce(120);
    let process = world.start("b");
    let cause = world.wait_until_halted("journal", 0);
    let accept = format!("tidegate accept-topic journal {}", world.incoming());
    assert_says(
        &cause,
        &[
            "was deleted and made again",
            "Nothing of it was applied",
            &accept,
        ],
    );
    assert_eq!((at(&world), applied(&world)), (50, 50));

    // Accepted while it runs: it is another log, read from its beginning, and the tables stay.
    let accept = ["accept-topic", "journal", world.incoming(), "--yes"];
    let accepted = world.tidegate(&accept).expect(0).stdout;
    assert_says(&accepted, &["50", "accepted (operation"]);
    world.wait_until_done(LONG);
    assert_eq!(applied(&world), 170);
    // The same command again, whose first answer may have been lost.
    let again = world.tidegate(&accept).expect(70).stderr;
    assert_says(&again, &["there is nothing to accept"]);
    let incarnation: i32 = world.db.one("SELECT incarnation FROM tidegate.position");
    assert_eq!(incarnation, 2);
    let recorded: Vec<(String, i64)> = world
        .db
        .rows("SELECT kind, (before -> 0 ->> 'next_offset')::bigint FROM tidegate.operation");
    assert_eq!(recorded, [("accept-topic".to_owned(), 50)]);
    world.tidegate(&["verify"]).expect(0);
    process.stop();
}

// I6: the same, under a running service. librdkafka would go on at the old offset without a word.
#[test]
fn a_topic_made_anew_while_it_is_read_halts() {
    let world = World::journal(1);
    world.stream().produce(50);
    let _process = world.start("a");
    world.assert_exact();
    make_anew(world.incoming(), 1);
    world.stream().produce(120);
    let cause = world.wait_until_halted("journal", 0);
    // Whichever is noticed first: another id, or an offset that is not there.
    assert!(
        cause.contains("was deleted and made again") || cause.contains("was made anew"),
        "{cause}"
    );
}

// I6: acknowledged records may be lost and others written in their place, in the very same topic.
#[test]
fn a_log_with_another_record_than_the_last_applied_one_halts() {
    let world = fifty();
    world
        .db
        .run("UPDATE tidegate.position SET anchor_digest = gen_random_uuid()");
    world.stream().produce(30);
    let _process = world.start("b");
    let cause = world.wait_until_halted("journal", 0);
    assert_says(&cause, &["another record at offset 49", "accept-topic"]);
    assert_eq!((at(&world), applied(&world)), (50, 50));

    let same = [
        "accept-topic",
        "journal",
        world.incoming(),
        "--same-log",
        "--yes",
    ];
    world.tidegate(&same).expect(0);
    world.assert_exact();
}

// I6: a topic that was made again with fewer partitions. To wait would help nobody.
#[test]
fn a_log_without_one_of_its_partitions_is_not_taken_for_the_same() {
    let world = World::journal(2);
    let sender = world.sender();
    sender.send_json(1, &json!({ "account": "a" }));
    sender.flush();
    let process = world.start("a");
    wait_until(LONG, "it is applied", || world.progress() == 1);
    process.stop();
    make_anew(world.incoming(), 1);
    let accept = ["accept-topic", "journal", world.incoming(), "--yes"];
    let same = [&accept[..], &["--same-log"]].concat();
    let refused = world.tidegate(&same).expect(70).stderr;
    let missing = format!("{}[1] stands at 1", world.incoming());
    assert_says(
        &refused,
        &[
            &missing,
            "no such partition, only 1",
            "give the topic its partitions",
        ],
    );
    assert!(!refused.contains("wait until"), "{refused}");
    world.tidegate(&accept).expect(0);
}

// I6: a topic of the same name in another cluster, or none of the name at all.
#[test]
fn accepting_asks_for_the_same_log_where_positions_are_kept() {
    let world = fifty();
    make_anew(world.incoming(), 1);
    world.stream().produce(20);
    let same = [
        "accept-topic",
        "journal",
        world.incoming(),
        "--same-log",
        "--yes",
    ];
    let refused = world.tidegate(&same).expect(70).stderr;
    assert_says(
        &refused,
        &[
            "stands at 50",
            "ends at 20",
            "wait until it ends at 50",
            "without --same-log",
        ],
    );
    let unknown = ["accept-topic", "journal", world.outgoing(), "--yes"];
    let refused = world.tidegate(&unknown).expect(70).stderr;
    assert_says(&refused, &["has no position in topic", "tidegate status"]);
    assert_eq!(at(&world), 50);
    world.stream().produce(40);
    delete_records_before(world.incoming(), 0, 55);
    let refused = world.tidegate(&same).expect(70).stderr;
    let skip = format!("tidegate skip journal {}/0 --to 55", world.incoming());
    assert_says(&refused, &["stands at 50", "begins at 55", &skip]);
    let skip = format!("{}/0", world.incoming());
    world
        .tidegate(&["skip", "journal", &skip, "--to", "55", "--yes"])
        .expect(0);
    world.tidegate(&same).expect(0);
    assert_eq!(at(&world), 55);
}

// I6: retention took records that were never applied. Going on without them is a choice, and a row.
#[test]
fn a_chosen_jump_is_recorded() {
    let world = fifty();
    world.stream().produce(50);
    delete_records_before(world.incoming(), 0, 60);
    let _process = world.start("b");
    let cause = world.wait_until_halted("journal", 0);
    let skip = format!("tidegate skip journal {}/0 --to 60", world.incoming());
    assert_says(&cause, &["below the log's beginning, 60", &skip]);

    let partition = format!("{}/0", world.incoming());
    let skip = |to: &str| world.tidegate(&["skip", "journal", &partition, "--to", to, "--yes"]);
    assert_says(&skip("50").expect(70).stderr, &["stands at 50 already"]);
    assert_says(&skip("101").expect(70).stderr, &["ends at 100"]);
    assert_says(&skip("start").expect(0).stdout, &["from 50 to 60"]);
    world.wait_until_done(LONG);
    assert_eq!(applied(&world), 90);
    let verified = world.tidegate(&["verify"]).expect(0).stdout;
    assert_says(
        &verified,
        &["skipped: journal", "offsets 50 to 59", "(tidegate skip)"],
    );
    let json = world.tidegate(&["verify", "--json"]).expect(0).json();
    assert_eq!(json["skipped"][0]["from_offset"], 50);
    assert_eq!(json["skipped"][0]["to_offset"], 60);
}

// I6: the end of a transaction takes an offset and is no record. A position that stayed below it would
// look like a loss once retention has removed the log's end.
#[test]
fn positions_pass_the_ends_of_transactions() {
    let world = World::journal(1);
    let sender = Sender::in_transactions(world.incoming());
    let process = world.start("a");
    let mut expected = 0;
    for is_kept in [true, false, true, false] {
        sender.begin();
        (0..10).for_each(|_| sender.send_json(0, &json!({ "account": "a" })));
        if is_kept {
            sender.commit();
            expected += 10;
        } else {
            sender.abort();
        }
    }
    // Twice: at once, and by a process that finds nothing but what stands there already.
    world.wait_until_done(LONG);
    assert_eq!((at(&world), applied(&world)), (44, expected));
    process.stop();
    delete_records_before(world.incoming(), 0, 44);
    let _again = world.start("b");
    world.stream().produce(30);
    world.wait_until_done(LONG);
    assert_eq!(applied(&world), expected + 30);
    world.tidegate(&["verify"]).expect(0);
}

// I6: records behind an open transaction are neither applied nor passed over, and status says why.
#[test]
fn an_open_transaction_holds_records_back_and_is_named() {
    let world = World::journal(1);
    let plain = world.sender();
    plain.send_json(0, &json!({ "account": "before" }));
    plain.flush();
    let open = Sender::in_transactions(world.incoming());
    open.begin();
    (0..3).for_each(|_| open.send_json(0, &json!({ "account": "open" })));
    open.flush();
    (0..20).for_each(|_| plain.send_json(0, &json!({ "account": "behind" })));
    plain.flush();
    let _process = world.start("a");
    wait_until(LONG, "what is before the transaction is applied", || {
        applied(&world) == 1
    });
    let status = world.tidegate(&["status"]).expect(0).stdout;
    assert_says(
        &status,
        &["has 23 more, held back by a producer's open transaction"],
    );
    assert_eq!(world.partition_status("journal", 0)["held_back"], 23);
    assert_eq!(world.partition_status("journal", 0)["lag"], 0);
    assert_eq!((at(&world), applied(&world)), (1, 1));
    open.commit();
    wait_until(LONG, "all is applied", || applied(&world) == 24);
    world.wait_until_done(LONG);
}

// I6: offsets that compaction has removed are no gap, neither under way nor where a position stands.
#[test]
fn holes_of_compaction_are_no_gap() {
    let world = World::journal(1);
    let topic = world.incoming();
    let sender = world.sender();
    let keyed = |key: &str, count: i32| {
        (0..count).for_each(|_| sender.send_json(0, &json!({ "account": key })));
        sender.flush();
    };
    keyed("a", 40);
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    // The last record applied is compacted away too.
    let settings = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "100"),
        ("min.cleanable.dirty.ratio", "0.001"),
    ];
    configure_topic(topic, &settings);
    keyed("b", 40);
    let compacted = || {
        keyed("a", 1); // a new segment begins with a record
        let first = read_log(topic, 1)[0].offset;
        first > 45
    };
    wait_until(LONG, "the log begins behind the position", compacted);
    let kept = read_log(topic, 1);
    let behind = kept.iter().filter(|record| record.offset >= 40).count();
    let _again = world.start("b");
    let end = end_offsets(topic, 1)[&0];
    wait_until(LONG, "the end is reached", || at(&world) == end);
    let applied = applied(&world) - 40;
    // More may have been compacted before it was read.
    assert!(
        applied >= 1 && applied <= i64::try_from(behind).unwrap(),
        "{applied} of {behind}"
    );
    world.tidegate(&["verify"]).expect(0);
}

// A lag is never negative, and a position beyond the end is said to be there.
#[test]
fn a_position_beyond_the_end_has_no_lag() {
    let world = fifty();
    world
        .db
        .run("UPDATE tidegate.position SET next_offset = 70");
    let status = world.partition_status("journal", 0);
    assert_eq!(status["lag"], serde_json::Value::Null);
    let status = world.tidegate(&["status"]).expect(0).stdout;
    assert_says(&status, &["beyond the end"]);
    let _process = world.start("b");
    let cause = world.wait_until_halted("journal", 0);
    assert_says(&cause, &["lies beyond the log's end, 50"]);
}

fn reset_new_log(topic: &str) -> [&str; 7] {
    [
        "reset",
        "journal",
        "--to",
        "earliest",
        "--new-log",
        topic,
        "--yes",
    ]
}

// The service learns a topic's new id a little later than an operator who has just made it anew.
#[test]
fn a_reset_right_after_a_topic_was_made_anew_halts_nobody() {
    let world = World::journal(1);
    world.stream().produce(50);
    let process = world.start("a");
    world.assert_exact();
    make_anew(world.incoming(), 1);
    world.tidegate(&reset_new_log(world.incoming())).expect(0);
    world.stream().produce(20);
    wait_until(LONG, "the new log is applied", || applied(&world) == 20);
    process.stop();
}

// I5: records that took the place of others send their messages after a reset, too.
#[test]
fn after_a_reset_records_of_another_log_send_their_messages() {
    let world = World::ledger(1);
    world.stream().produce(50);
    let process = world.start("a");
    world.assert_exact();
    process.stop();
    let messages = || -> usize {
        let sizes = world.outbox_sizes().into_iter();
        sizes
            .filter(|(s, _)| s.starts_with("journal/"))
            .map(|(_, n)| n)
            .sum()
    };
    let before = messages();
    make_anew(world.incoming(), 1);
    world.stream().produce(120);
    // As with brokers that give topics no ids.
    world.db.run("UPDATE tidegate.position SET topic_id = NULL");
    let _process = world.start("b");
    let cause = world.wait_until_halted("journal", 0);
    println!("{cause}");
    world.tidegate(&reset_new_log(world.incoming())).expect(0);
    wait_until(LONG, "the new log is applied", || applied(&world) == 120);
    println!("{before}");
    assert_eq!(messages() - before, 120);
}
