//! Parked records are applied again, in whichever order things go wrong and right.

use serde_json::json;

use crate::dead_letters::{amounts, letter, letters, redrive, score, send, waiting};
use crate::harness::{LONG, World, wait_until};

// I6: headers are kept with every record that is parked, also with those of partitions whose records were taken before
// anybody knew that headers would be needed.
#[test]
fn records_taken_before_headers_were_needed_are_parked_with_theirs() {
    let world = score(2);
    let sender = world.sender();
    for partition in 0..2 {
        let account = format!("p{partition}");
        let poison = json!({ "account": account, "seq": 1, "amount": 5000 }).to_string();
        let headers: [(&str, &[u8]); 1] = [("trace", b"1")];
        sender.send_with_headers(
            partition,
            Some(account.as_bytes()),
            Some(poison.as_bytes()),
            &headers,
        );
    }
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    let kept: Vec<(String, Vec<Vec<u8>>)> = world
        .db
        .rows("SELECT entity, header_names FROM tidegate.dead_letter ORDER BY entity");
    let trace = vec![b"trace".to_vec()];
    assert_eq!(
        kept,
        [("p0".to_owned(), trace.clone()), ("p1".to_owned(), trace)]
    );
}

// A letter that turns out to be filtered does not leave its entity marked as waiting.
#[test]
fn an_entity_goes_on_behind_a_tombstone_that_is_filtered_at_last() {
    let mut world = score(1);
    let sender = world.sender();
    send(&sender, 0, "a", 1, 5);
    sender.send(0, Some(b"a"), None);
    send(&sender, 0, "a", 2, 6);
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(
        letters(&world, "a"),
        [
            letter(None, "undecodable", "waiting"),
            letter(2, "behind", "waiting")
        ]
    );
    process.stop();
    world.change_projections(
        "gate     = \"newest\"",
        "gate     = \"newest\"\ntombstones = \"filter\"",
    );
    let _process = world.start("b");
    redrive(&world, "score").expect(0);
    assert_eq!(amounts(&world), [("a".to_owned(), 6)]);
    send(&sender, 0, "a", 3, 7);
    sender.flush();
    world.wait_until_done(LONG);
    assert_eq!(
        (waiting(&world), amounts(&world)),
        (0, vec![("a".to_owned(), 7)])
    );
    world.tidegate(&["verify"]).expect(0);
}

// I4, I6: gate `next` from any: a first record whose sequence cannot be read says nothing about where its entity begins.
#[test]
fn an_entity_whose_first_record_has_no_readable_sequence_begins_with_the_next_one() {
    let mut world = score(1);
    world.change_projections(
        "gate     = \"newest\"",
        "gate     = \"next\"\nfirst    = \"any\"",
    );
    let sender = world.sender();
    sender.send(0, Some(b"together"), Some(b"{"));
    send(&sender, 0, "together", 7, 5);
    send(&sender, 0, "together", 8, 6);
    sender.send(0, Some(b"later"), Some(b"{"));
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    send(&sender, 0, "later", 3, 5);
    send(&sender, 0, "later", 4, 6);
    sender.flush();
    world.wait_until_done(LONG);
    assert_eq!(
        amounts(&world),
        [("later".to_owned(), 6), ("together".to_owned(), 6)]
    );
    assert_eq!(waiting(&world), 2);
    redrive(&world, "score").expect(70);
    send(&sender, 0, "later", 5, 7);
    sender.flush();
    world.wait_until_done(LONG);
    assert_eq!(amounts(&world)[0].1, 7);
    world.tidegate(&["verify"]).expect(0);
}

/// A record of which not even the entity can be read, and the record it should have been.
fn unreadable(world: &World, account: &str, seq: i64, amount: i64) {
    let sender = world.sender();
    sender.send(0, None, Some(b"{"));
    sender.flush();
    world.wait_until_done(LONG);
    let value = json!({ "account": account, "seq": seq, "amount": amount });
    let repaired = format!(
        "UPDATE tidegate.dead_letter SET key = '{account}', value = convert_to('{value}', 'UTF8') WHERE entity IS NULL"
    );
    world.db.run(&repaired);
}

// I4: what was parked without an entity passes the gate of the one that is read from it later.
#[test]
fn a_letter_whose_entity_can_be_read_at_last_passes_its_gate() {
    let world = score(1);
    let _process = world.start("a");
    unreadable(&world, "a", 1, 5);
    let sender = world.sender();
    send(&sender, 0, "a", 2, 6);
    sender.flush();
    world.wait_until_done(LONG);
    let done = redrive(&world, "score").expect(0);
    assert!(done.stdout.contains("applied 0, stale 1"), "{done:?}");
    assert_eq!(amounts(&world), [("a".to_owned(), 6)]);
    unreadable(&world, "a", 3, 7);
    let done = redrive(&world, "score").expect(0);
    assert!(done.stdout.contains("applied 1, stale 0"), "{done:?}");
    send(&sender, 0, "a", 4, 8);
    sender.flush();
    world.wait_until_done(LONG);
    assert_eq!(
        (waiting(&world), amounts(&world)),
        (0, vec![("a".to_owned(), 8)])
    );
    world.tidegate(&["verify"]).expect(0);
}

// I4: under gate `next` it is what the later ones of its entity wait for, or waits itself.
#[test]
fn a_letter_whose_entity_can_be_read_at_last_takes_its_place_in_the_queue() {
    let mut world = score(1);
    world.change_projections("gate     = \"newest\"", "gate     = \"next\"");
    let _process = world.start("a");
    unreadable(&world, "a", 1, 5);
    let sender = world.sender();
    send(&sender, 0, "a", 2, 6);
    sender.flush();
    world.wait_until_done(LONG);
    assert_eq!(letters(&world, "a"), [letter(2, "gap", "waiting")]);
    redrive(&world, "score").expect(0);
    assert_eq!(
        (waiting(&world), amounts(&world)),
        (0, vec![("a".to_owned(), 6)])
    );

    unreadable(&world, "b", 2, 9);
    redrive(&world, "score").expect(0);
    assert_eq!(letters(&world, "b"), [letter(2, "behind", "waiting")]);
    send(&sender, 0, "b", 1, 4);
    sender.flush();
    wait_until(LONG, "b has come on", || {
        amounts(&world).contains(&("b".to_owned(), 9))
    });
    world.tidegate(&["verify"]).expect(0);
}

// I4: only the gate it waits at is locked, so a letter that is read as another entity's is not applied.
#[test]
fn a_letter_that_is_read_as_another_entitys_keeps_its_place() {
    let world = score(1);
    let sender = world.sender();
    send(&sender, 0, "b", 9, 3);
    send(&sender, 0, "a", 1, 5000);
    send(&sender, 0, "a", 2, 6);
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    let value = json!({ "account": "b", "seq": 1, "amount": 4 });
    world.db.run(&format!(
        "UPDATE tidegate.dead_letter SET key = 'b', value = convert_to('{value}', 'UTF8') WHERE sequence = 1"
    ));
    let again = redrive(&world, "score").expect(70);
    assert!(
        again
            .stdout
            .contains("parked for entity `a` and is read as of entity `b`"),
        "{again:?}"
    );
    assert_eq!(amounts(&world), [("b".to_owned(), 3)]);
    let expected = [
        letter(1, "undecodable", "waiting"),
        letter(2, "behind", "waiting"),
    ];
    assert_eq!(letters(&world, "a"), expected);
}

// Gate `next`: what is due is found and tried, also where records that are not due were parked before it.
#[test]
fn a_redrive_finds_what_fails_behind_records_that_are_not_due() {
    let mut world = score(1);
    world.change_projections("gate     = \"newest\"", "gate     = \"next\"");
    let sender = world.sender();
    send(&sender, 0, "a", 1, 5);
    send(&sender, 0, "a", 5, 9); // early
    send(&sender, 0, "a", 2, 5000);
    send(&sender, 0, "a", 3, 6000);
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(
        letters(&world, "a"),
        [
            letter(5, "gap", "waiting"),
            letter(2, "database", "waiting"),
            letter(3, "behind", "waiting")
        ]
    );
    let again = redrive(&world, "score").expect(70);
    assert!(again.stdout.contains("failed again"), "{again:?}");
    // The first one is repaired, the one behind it is not.
    world.db.run(
        "ALTER TABLE score.score DROP CONSTRAINT not_too_much;
         ALTER TABLE score.score ADD CONSTRAINT not_too_much CHECK (highest < 5500)",
    );
    redrive(&world, "score").expect(70);
    assert_eq!(amounts(&world), [("a".to_owned(), 5000)]);
    let expected = [
        letter(5, "gap", "waiting"),
        letter(2, "database", "applied"),
        letter(3, "database", "waiting"),
    ];
    assert_eq!(letters(&world, "a"), expected);
}

// Gate `next`: what waits is applied in smaller steps if all of it at once takes too long, in one statement or in many.
#[test]
fn what_waits_is_drained_in_smaller_steps_if_it_takes_too_long() {
    for (per_event, sleep) in [(false, "0.03"), (true, "0.15")] {
        let mut world = score(1);
        world.change_projections("gate     = \"newest\"", "gate     = \"next\"");
        world.change_projections(
            "[[projections.score.emit]]",
            &format!(
                "[[projections.score.apply]]\nper_event = {per_event}\nsql = \"SELECT pg_sleep({sleep}) FROM events\"\n\n[[projections.score.emit]]"
            ),
        );
        let sender = world.sender();
        for seq in 2..60 {
            send(&sender, 0, "a", seq, seq);
        }
        sender.flush();
        let _process = world
            .launch("a")
            .env("TIDEGATE__POSTGRES__STATEMENT_TIMEOUT", "700ms")
            .start();
        world.wait_until_done(LONG);
        assert_eq!(waiting(&world), 58);
        send(&sender, 0, "a", 1, 1);
        sender.flush();
        wait_until(LONG, "nothing waits", || waiting(&world) == 0);
        assert_eq!(amounts(&world), [("a".to_owned(), 59)]);
    }
}

// I6: gate `next`: what was given up is not missing any more, in whichever order records are given up and repaired.
#[test]
fn a_record_discarded_before_its_turn_is_not_missing_later() {
    let mut world = score(1);
    world.change_projections("gate     = \"newest\"", "gate     = \"next\"");
    let sender = world.sender();
    send(&sender, 0, "a", 1, 5);
    send(&sender, 0, "a", 2, 5000);
    send(&sender, 0, "a", 3, 6000);
    send(&sender, 0, "a", 4, 7);
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    let number: i64 = world
        .db
        .one("SELECT number FROM tidegate.dead_letter WHERE sequence = 3");
    let number = number.to_string();
    world
        .tidegate(&[
            "dead-letters",
            "discard",
            "score",
            "--number",
            &number,
            "--why",
            "test",
            "--yes",
        ])
        .expect(0);
    world.db.run(
        "ALTER TABLE score.score DROP CONSTRAINT not_too_much;
         ALTER TABLE score.score ADD CONSTRAINT not_too_much CHECK (highest < 5500)",
    );
    redrive(&world, "score").expect(0);
    wait_until(LONG, "the entity goes on", || {
        amounts(&world) == [("a".to_owned(), 7)]
    });
}
