//! The process ends at the worst moment.

use std::thread;
use std::time::Duration;

use crate::harness::{LONG, Process, Watch, World, wait_until};

/// Ends the process at a crash point, in its first batch and then in a later one, and compares what is
/// committed with the fold up to the stored positions.
fn crash_at(point: &str, commits: bool) {
    let world = World::ledger(2);
    let mut stream = world.stream();
    stream.produce(400);
    let crash = |after: u32| {
        let mut process = world
            .launch("a")
            .comes_back()
            .batch_records_max(20)
            .failpoints(&format!("{point}={after}*off->return"))
            .start();
        let status = process.wait(LONG);
        assert_eq!(status.code(), None, "it ended at the crash point");
        assert!(process.has_logged(&[point]));
        world.assert_tables_are_at_the_positions();
    };

    crash(0);
    assert_eq!(world.progress() > 0, commits, "{:?}", world.positions());
    crash(4);
    assert!(world.progress() > 0);

    let _restarted = world.launch("a").comes_back().start();
    stream.produce(100);
    world.assert_exact();
}

// I1: effects and position commit together, or neither does.
#[test]
fn position_and_effects_commit_together_before_the_position_moves() {
    crash_at("apply-before-advance", false);
}

// I1
#[test]
fn position_and_effects_commit_together_before_commit() {
    crash_at("apply-before-commit", false);
}

// I1: what was committed is not applied again.
#[test]
fn position_and_effects_commit_together_after_commit() {
    crash_at("apply-after-commit", true);
}

// I1 to I5: whenever it ends, and with whatever batches it goes on.
#[test]
fn twenty_kills_in_a_row_leave_exact_totals() {
    let world = World::ledger(4);
    let mut random = world.random();
    let mut stream = world.stream();
    stream.produce(1_000);
    let feeder = stream.feed(600);
    let start = |name: &str, random: &mut fastrand::Rng| -> Process {
        let batches = [1, 7, 60, 1_000];
        let launch = world.launch(name).comes_back();
        launch
            .batch_records_max(batches[random.usize(..batches.len())])
            .env("TIDEGATE__RELAY__LEASE", "1s")
            .start()
    };
    let names = ["first", "second"];
    let mut processes = names.map(|name| start(name, &mut random));
    wait_until(LONG, "they have begun", || !world.positions().is_empty());
    let watch = Watch::over(&world.db);
    for _ in 0..20 {
        let target = world.progress() + random.i64(1..900);
        wait_until(LONG, "some more is applied", || world.progress() >= target);
        // Any moment of a batch, or between two.
        thread::sleep(Duration::from_millis(random.u64(..50)));
        let victim = random.usize(..2);
        let next = |random: &mut fastrand::Rng| start(names[victim], random);
        processes[victim].kill();
        processes[victim] = next(&mut random);
    }
    feeder.finish();
    world.assert_exact();
    watch.assert_only_grown();
}
