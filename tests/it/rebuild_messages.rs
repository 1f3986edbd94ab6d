//! Messages over rebuilds: none is lost, and none is sent twice.

use std::collections::BTreeSet;

use serde_json::json;
use uuid::Uuid;

use crate::harness::{LONG, World, message_id, wait_until};
use crate::rebuild::{copies, live, rebuild, send};

/// From division by zero to none, and back.
fn repair(world: &mut World) {
    world.change_projections("version = 1", "version = 2");
    world.change_projections("100 / amount FROM", "100 / nullif(amount, 0) FROM");
}

fn spoil(world: &mut World) {
    world.change_projections("version = 2", "version = 1");
    world.change_projections("100 / nullif(amount, 0) FROM", "100 / amount FROM");
}

/// Every record's message is there, once, but for those of some offsets.
#[track_caller]
fn assert_copied(world: &World, but: &[i64]) {
    let stream = format!("copies/{}/0", world.incoming());
    let found = world.outbox().remove(&stream).unwrap();
    let ids: BTreeSet<Uuid> = found.iter().map(|message| message.id).collect();
    assert_eq!(ids.len(), found.len(), "no id is there twice");
    let log = world.log();
    let of = log.iter().filter(|record| !but.contains(&record.offset));
    let expected: BTreeSet<Uuid> = of
        .map(|record| message_id("copies", 1, world.incoming(), record, "copy", 0))
        .collect();
    assert_eq!(ids, expected);
}

// I5: records that are parked in one generation and applied in another, one that is given up meanwhile, a rollback, what is
// parked after that, a cut-over again, and a reset at the end.
#[test]
fn a_message_is_sent_once_over_rebuild_cut_over_rollback_and_reset() {
    let mut world = copies();
    send(&world, &[1, 0, 2, 0, 3, 0, 4]);
    // This one neither of them can apply.
    let sender = world.sender();
    sender.send_json(0, &json!({ "amount": null }));
    sender.flush();
    let process = world.start("old");
    world.wait_until_done(LONG);
    assert_eq!(world.parked(), 4);
    assert_copied(&world, &[1, 3, 5, 7]);

    repair(&mut world);
    // A build that is given up leaves nothing.
    rebuild(&world, &["start", "copies"]).expect(0);
    let letters = || -> i64 {
        world
            .db
            .one("SELECT count(*) FROM tidegate.dead_letter WHERE generation = 2")
    };
    assert_eq!(letters(), 1);
    rebuild(&world, &["abandon", "copies", "--yes"]).expect(0);
    assert_eq!(letters(), 0);

    rebuild(&world, &["start", "copies"]).expect(0);
    let held: i64 = world.db.one("SELECT count(*) FROM copies__g3._held");
    assert_eq!(held, 3);
    assert_copied(&world, &[1, 3, 5, 7]);
    spoil(&mut world);
    let number: i64 = world
        .db
        .one("SELECT number FROM tidegate.dead_letter WHERE record_offset = 3");
    let number = number.to_string();
    world
        .tidegate(&[
            "dead-letters",
            "discard",
            "copies",
            "--number",
            &number,
            "--why",
            "test",
            "--yes",
        ])
        .expect(0);
    repair(&mut world);
    // What was made differs, as it should, and that needs a yes of its own.
    let refused = rebuild(&world, &["cut-over", "copies", "--yes"]).expect(70);
    assert!(
        refused.stdout.contains("copies, only built: "),
        "{}",
        refused.stdout
    );
    assert!(
        refused.stderr.contains("--accept-differences"),
        "{}",
        refused.stderr
    );
    assert_eq!(live(&world, "copies"), 1);
    let told = rebuild(
        &world,
        &["cut-over", "copies", "--yes", "--accept-differences"],
    )
    .expect(0);
    assert!(
        told.stdout.contains("2 messages of records"),
        "{}",
        told.stdout
    );
    assert_copied(&world, &[3, 7]);
    process.stop();
    let process = world.start("new");
    send(&world, &[5, 0]);
    world.wait_until_done(LONG);
    assert_copied(&world, &[3, 7]);

    // Back, with the old definition; what it parks now has a right to emit that the next cut-over spends.
    let back = ["rollback", "copies", "--to", "1", "--yes"];
    let refused = rebuild(&world, &back).expect(70);
    assert!(refused.stderr.contains("version 1"), "{}", refused.stderr);
    spoil(&mut world);
    rebuild(&world, &back).expect(0);
    assert_eq!(live(&world, "copies"), 1);
    assert_copied(&world, &[3, 7]);
    process.stop();
    let process = world.start("old again");
    send(&world, &[0, 6]);
    world.wait_until_done(LONG);
    assert_copied(&world, &[3, 7, 10]);
    // What waited here since before the first cut-over was sent in the other generation.
    world
        .tidegate(&["dead-letters", "redrive", "copies"])
        .expect(70);
    process.stop();

    repair(&mut world);
    rebuild(&world, &["rollback", "copies", "--to", "3", "--yes"]).expect(0);
    assert_eq!(live(&world, "copies"), 3);
    assert_copied(&world, &[3, 7]);
    let process = world.start("new again");
    world
        .tidegate(&["reset", "copies", "--to", "earliest", "--yes"])
        .expect(0);
    send(&world, &[7]);
    world.wait_until_done(LONG);
    assert_eq!(live(&world, "copies"), 4);
    assert_copied(&world, &[3, 7]);
    let rows: i64 = world.db.one("SELECT count(*) FROM copies.copies");
    assert_eq!(rows, 12);
    // Its right has outlived everything.
    process.stop();
    world.change_projections(
        "amount = \"bigint\"",
        "amount = { type = \"bigint\", nullable = true }",
    );
    world
        .tidegate(&["dead-letters", "redrive", "copies"])
        .expect(0);
    assert_copied(&world, &[3]);
    let rights: i64 = world.db.one("SELECT count(*) FROM tidegate.unemitted");
    assert_eq!(rights, 0);
    world.tidegate(&["verify"]).expect(0);
}

/// Cannot apply what divides by zero, and waits for what is missing.
const STEPS: &str = r#"
[projections.steps]
version  = 1
topics   = ["@in@"]
entity   = "/e"
sequence = "/s"
gate     = "next"
setup    = "steps.sql"
columns  = { e = "text", s = "bigint", d = "bigint" }

[[projections.steps.apply]]
sql = "INSERT INTO steps (e, s, d) SELECT e, s, 1 / d FROM events"

[[projections.steps.emit]]
name  = "step"
topic = "@out@"
sql   = "SELECT _ref, e AS key, jsonb_build_object('s', s) AS payload FROM events"
"#;

// I5: what a build parks and applies later keeps its message too, and an entity's messages come in the order of its events.
#[test]
fn what_waited_in_a_build_is_sent_in_order_at_the_cut_over() {
    let setup = "CREATE TABLE steps (e text, s bigint, d bigint)";
    let mut world = World::new(1, STEPS, &[("steps.sql", setup)]);
    let sender = world.sender();
    for (s, d) in [(1, 1), (3, 1), (2, 0)] {
        sender.send_json(0, &json!({ "e": "a", "s": s, "d": d }));
    }
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(world.parked(), 2);
    process.stop();
    world.change_projections("version  = 1", "version  = 2");
    world.change_projections("1 / d FROM", "1 / nullif(d, 0) FROM");
    let build = world.launch("rebuild").batch_records_max(1);
    build.output(&["rebuild", "start", "steps"]).expect(0);
    wait_until(LONG, "what waits is kept back too", || {
        // Whoever builds is told to drain by what it applies, or looks by itself.
        let held: i64 = world.db.one("SELECT count(*) FROM steps__g2._held");
        held == 2 || {
            rebuild(&world, &["verify", "steps"]).expect(70);
            false
        }
    });
    let command = ["cut-over", "steps", "--yes", "--accept-differences"];
    let told = rebuild(&world, &command).expect(0).stdout;
    assert!(told.contains("2 messages of records"), "{told}");
    let stream = format!("steps/{}/0", world.incoming());
    let steps: Vec<i64> = world.outbox()[&stream]
        .iter()
        .map(|message| message.payload["s"].as_i64().unwrap())
        .collect();
    assert_eq!(steps, [1, 2, 3]);
    let rows: Vec<(i64,)> = world.db.rows("SELECT s FROM steps.steps ORDER BY s");
    assert_eq!(rows, [(1,), (2,), (3,)]);
    world.tidegate(&["verify"]).expect(0);
}
