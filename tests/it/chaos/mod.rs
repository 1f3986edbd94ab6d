//! Servers and processes are killed, stopped, cut off and multiplied at random, and every total is exact.
//!
//! The plan is a function of the seed, and is printed with it; what the machine makes of it in which
//! microsecond is not. `deploy/local/chaos` runs it for as long as one likes.

mod plan;
mod run;
mod servers;

use std::time::Duration;

use plan::{Fault, Length, Manner};
use run::{Kills, Run, Stage, Tally};

use crate::harness::Watch;

/// All of them read the same topic; `balances` and `journal` send messages.
const PROJECTIONS: [&str; 5] = ["balances", "turnover", "newest", "journal", "lines"];
/// So many that there is work at any moment, and few enough to keep up with.
const ENTRIES_PER_SECOND: usize = 1_200;

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    let value = text.parse().ok();
    Some(value.unwrap_or_else(|| panic!("{name} is not a number: {text}")))
}

/// One round, or what the environment asks for.
fn length() -> Length {
    let minutes: Option<f64> = setting("TIDEGATE_CHAOS_MINUTES");
    match (setting("TIDEGATE_CHAOS_KILLS"), minutes) {
        (Some(kills), _) => Length::Kills(kills),
        (None, Some(minutes)) => Length::Time(Duration::from_secs_f64(minutes * 60.0)),
        (None, None) => Length::Rounds(1),
    }
}

// I1 to I6, I9, I10: all faults at once, over each other, under load.
#[test]
fn chaos_leaves_every_total_exact() {
    let faults = match std::env::var("TIDEGATE_CHAOS_FAULTS") {
        Ok(list) => Fault::parse(&list),
        Err(_) => Fault::all(),
    };
    let mut stage = Stage::build();
    let seed = stage.world.seed;
    let (manner, plan) = (Manner::of(seed), plan::plan(seed, length(), &faults));
    eprintln!("seed {seed}: {} actions; {manner}", plan.len());
    for step in &plan {
        eprintln!("  after {:.1} s: {}", step.after.as_secs_f64(), step.action);
    }
    let watch = Watch::over(&stage.world.db);
    let mut run = Run::begin(&mut stage, manner, ENTRIES_PER_SECOND);
    for step in plan {
        run.step(step);
    }
    // A long run leaves a long backlog behind its last reset.
    let (stream, tally) = run.finish(Duration::from_secs(300));

    let world = &stage.world;
    world.assert_exact();
    let repeats = crate::relay::assert_sent(world);
    if manner.synchronous_commit {
        watch.assert_only_grown(); // I2
    }
    let records = world.positions().values().sum::<i64>() / PROJECTIONS.len() as i64;
    let messages: usize = world.outbox_sizes().values().sum();
    eprintln!("{}", summary(&tally));
    eprintln!(
        "exact: {records} records in {} partitions, {} of them copies, applied by {} projections; \
         {messages} messages sent, {repeats} of them more than once; seed {seed}",
        world.partitions(),
        stream.copies(),
        PROJECTIONS.len(),
    );
    // Otherwise the plan is no test.
    let Kills {
        amid_batch,
        with_records_left,
        idle,
        ..
    } = tally.kills;
    assert!(
        amid_batch >= (with_records_left + idle) / 2,
        "most kills hit nothing: {tally:?}"
    );
}

fn summary(tally: &Tally) -> String {
    let mut lines: Vec<String> = tally
        .actions
        .iter()
        .map(|(kind, count)| format!("{count:6} x {kind}"))
        .collect();
    let Kills {
        amid_batch,
        with_records_left,
        idle,
        during_outage,
    } = tally.kills;
    lines.push(format!(
        "of the workers killed, {amid_batch} were amid a batch's transaction, {with_records_left} between batches with \
         records left, {idle} idle, {during_outage} without Kafka or Postgres; {} connections were cut",
        tally.cuts
    ));
    lines.join("\n")
}
