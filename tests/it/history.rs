//! A projection can remember what became of each record.

use crate::harness::{LONG, World, wait_until};

const BATCHES: [&str; 2] = ["balances", "turnover"];

/// A ledger whose projections remember for two days, but for the journal.
fn remembering(partitions: i32) -> World {
    let mut world = World::ledger(partitions);
    for gate in ["gate     = \"next\"", "gate     = \"none\""] {
        world.change_projections(gate, &format!("{gate}\nhistory = \"48h\""));
    }
    world
}

// I1, I6: it is written with the batch or not at all: each offset is in one batch, and what was dropped is what was
// counted.
#[test]
fn a_history_has_every_record_once_whenever_the_process_ends() {
    let world = remembering(2);
    let mut stream = world.stream();
    stream.produce(400);
    for point in ["apply-before-commit", "apply-after-commit"] {
        let mut process = world
            .launch("a")
            .comes_back()
            .batch_records_max(20)
            .failpoints(&format!("{point}=6*off->return"))
            .start();
        process.wait(LONG);
        stream.produce(100);
    }
    let _process = world.launch("a").comes_back().batch_records_max(50).start();
    world.assert_exact();
    for projection in BATCHES {
        for partition in 0..2 {
            let one = format!("projection = '{projection}' AND partition = {partition}");
            let mut at: i64 = world.db.one(&format!(
                "SELECT first_offset FROM tidegate.position WHERE {one}"
            ));
            let batches: Vec<(i64, i64, i64)> = world.db.rows(&format!(
                "SELECT from_offset, to_offset, records FROM tidegate.history_batch WHERE {one} ORDER BY 1"
            ));
            let mut records = 0;
            for (from, to, count) in batches {
                assert_eq!(from, at, "{one}");
                at = to;
                records += count;
            }
            let (next, consumed, dropped): (i64, i64, i64) = world
                .db
                .rows(&format!(
                    "SELECT next_offset, consumed, stale + duplicate + filtered FROM tidegate.position WHERE {one}"
                ))
                .remove(0);
            assert_eq!((at, records), (next, consumed), "{one}");
            let remembered: i64 = world.db.one(&format!(
                "SELECT count(*) FROM tidegate.history_dropped WHERE {one}"
            ));
            assert_eq!(remembered, dropped, "{one}");
            assert!(dropped > 0, "{one}: nothing to remember");
        }
    }
    let unexplained: i64 = world.db.one(
        "SELECT count(*) FROM tidegate.history_dropped
         WHERE NOT coalesce(outcome = 'stale' AND projection = 'balances' AND gate_sequence >= sequence, false)
           AND NOT (outcome = 'duplicate' AND projection = 'turnover' AND gate_sequence IS NULL)",
    );
    assert_eq!(unexplained, 0);
    let of_others: i64 = world.db.one(
        "SELECT (SELECT count(*) FROM tidegate.history_batch WHERE projection = 'journal')
              + (SELECT count(*) FROM tidegate.history_dropped WHERE projection = 'journal')",
    );
    assert_eq!(of_others, 0);
}

#[test]
fn a_history_is_forgotten_when_its_time_is_over() {
    let world = remembering(1);
    world.stream().produce(100);
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    let kept: i64 = world.db.one("SELECT count(*) FROM tidegate.history_batch");
    assert!(kept > 0);
    // Of a projection that nobody runs any more, and more than goes at once.
    world.db.run(
        "INSERT INTO tidegate.history_batch
         SELECT 'gone', 1, 't', 1, 0, n, n + 1, 1, gen_random_uuid(), now(), now() - interval '1 minute'
         FROM generate_series(1, 2500) n;
         INSERT INTO tidegate.history_dropped
         SELECT 'gone', 1, 't', 1, 0, n, NULL, NULL, 'filtered', NULL, now(), now() - interval '1 minute'
         FROM generate_series(1, 2500) n",
    );
    let _process = world.start("a");
    let left = |table: &str| -> i64 {
        world.db.one(&format!(
            "SELECT count(*) FROM tidegate.history_{table} WHERE projection = 'gone'"
        ))
    };
    wait_until(LONG, "what is too old is gone", || {
        left("batch") + left("dropped") == 0
    });
    let still: i64 = world.db.one("SELECT count(*) FROM tidegate.history_batch");
    assert_eq!(still, kept);
}
