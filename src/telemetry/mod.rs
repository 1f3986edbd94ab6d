//! What is measured, by name. Whoever embeds Tidegate installs a recorder of the `metrics` crate; without
//! one, counting costs next to nothing. `tidegate run` installs one when it serves HTTP.
//!
//! Counters and histograms are counted where things happen, once per batch and never per record. Gauges are
//! not stored at all: they are written from what is known when somebody asks (`http/exposition.rs`), so that a
//! partition that has left takes its series along. No label holds anything that an event can choose: names of
//! projections, topics and partitions come from the configuration, all others are from fixed sets.

mod phases;
mod process;
#[cfg(feature = "opentelemetry")]
pub(crate) mod spans;
pub(crate) mod table;

use std::time::Duration;

use metrics::{counter, histogram};

pub(crate) use phases::{Phase, Phases};
pub(crate) use process::process;
use table::{
    BATCH_PHASE, BATCH_RECORDS, BATCH_SECONDS, CLAIMED, FENCED, HALTED, LOST, MESSAGES,
    NOT_MIRRORED, NOT_SENT, PARKED, QUARANTINED, REBALANCE_SECONDS, REBALANCES, RECORDS, REFUSED,
    REGISTRY, REPEATED, RETRIED, REVOKE_SECONDS, REVOKED, SENT, STOOD_STILL, STRAGGLERS, UNKNOWN,
};
pub(crate) use table::{Metric, recorder};

/// What became of the records of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcomes {
    pub(crate) applied: i64,
    pub(crate) stale: i64,
    pub(crate) duplicate: i64,
    pub(crate) filtered: i64,
    pub(crate) parked: i64,
}

/// A batch has committed.
pub(crate) fn applied(
    projection: &str,
    outcomes: Outcomes,
    messages: usize,
    took: Duration,
    phases: &Phases,
) {
    let projection = projection.to_owned();
    let outcomes = [
        ("applied", outcomes.applied),
        ("stale", outcomes.stale),
        ("duplicate", outcomes.duplicate),
        ("filtered", outcomes.filtered),
        ("parked", outcomes.parked),
    ];
    let mut records = 0;
    for (outcome, count) in outcomes {
        let count = u64::try_from(count).unwrap_or(0);
        records += count;
        if count > 0 {
            counter!(RECORDS, "projection" => projection.clone(), "outcome" => outcome)
                .increment(count);
        }
    }
    if messages > 0 {
        counter!(MESSAGES, "projection" => projection.clone()).increment(messages as u64);
    }
    for (phase, took) in phases.took() {
        histogram!(BATCH_PHASE, "projection" => projection.clone(), "phase" => phase).record(took);
    }
    histogram!(BATCH_RECORDS, "projection" => projection.clone()).record(records as f64);
    histogram!(BATCH_SECONDS, "projection" => projection).record(took);
}

pub(crate) fn parked(projection: &str, reason: &'static str) {
    counter!(PARKED, "projection" => projection.to_owned(), "reason" => reason).increment(1);
}

/// A batch is tried again.
pub(crate) fn retried(projection: &str) {
    counter!(RETRIED, "projection" => projection.to_owned()).increment(1);
}

/// A connection to the database was given up.
pub(crate) fn connection_lost(projection: &str) {
    counter!(LOST, "projection" => projection.to_owned()).increment(1);
}

pub(crate) fn halted(projection: &str) {
    counter!(HALTED, "projection" => projection.to_owned()).increment(1);
}

/// A claim was found not to be the newest any more.
pub(crate) fn fenced(projection: &str) {
    counter!(FENCED, "projection" => projection.to_owned()).increment(1);
}

/// Partitions were taken away, and given up in this time.
pub(crate) fn revoked(projection: &str, partitions: usize, took: Duration) {
    counter!(REVOKED, "projection" => projection.to_owned()).increment(partitions as u64);
    histogram!(REVOKE_SECONDS, "projection" => projection.to_owned()).record(took);
}

/// The group has assigned; `took` is how long that was waited for, if it was.
pub(crate) fn rebalanced(group: &str, took: Option<Duration>) {
    counter!(REBALANCES, "group" => group.to_owned()).increment(1);
    if let Some(took) = took {
        histogram!(REBALANCE_SECONDS, "group" => group.to_owned()).record(took);
    }
}

pub(crate) fn batch_refused(projection: &str, outcome: &'static str) {
    counter!(REFUSED, "projection" => projection.to_owned(), "outcome" => outcome).increment(1);
}

pub(crate) fn claimed(projection: &str) {
    counter!(CLAIMED, "projection" => projection.to_owned()).increment(1);
}

pub(crate) fn unanswered_commit(projection: &str, outcome: &'static str) {
    counter!(UNKNOWN, "projection" => projection.to_owned(), "outcome" => outcome).increment(1);
}

pub(crate) fn not_mirrored(group: &str) {
    counter!(NOT_MIRRORED, "group" => group.to_owned()).increment(1);
}

pub(crate) fn stood_still(projection: &str) {
    counter!(STOOD_STILL, "projection" => projection.to_owned()).increment(1);
}

pub(crate) fn straggler_ended(projection: &str) {
    counter!(STRAGGLERS, "projection" => projection.to_owned()).increment(1);
}

pub(crate) fn sent(messages: u64, repeated: u64) {
    counter!(SENT).increment(messages);
    counter!(REPEATED).increment(repeated);
}

pub(crate) fn not_sent(reason: &'static str) {
    counter!(NOT_SENT, "reason" => reason).increment(1);
}

pub(crate) fn quarantined(reason: &'static str, messages: usize) {
    counter!(QUARANTINED, "reason" => reason).increment(messages as u64);
}

/// The schema registry was asked.
pub(crate) fn registry_asked(outcome: &'static str) {
    counter!(REGISTRY, "outcome" => outcome).increment(1);
}

#[cfg(test)]
mod tests;
