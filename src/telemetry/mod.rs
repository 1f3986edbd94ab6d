//! What is counted, by name. Whoever embeds Tidegate installs a recorder of the `metrics` crate; without
//! one, counting costs next to nothing.

use metrics::counter;

/// Batches that the database refused, by outcome.
const REFUSED: &str = "tidegate_batches_refused_total";
/// Partitions claimed.
const CLAIMED: &str = "tidegate_claims_total";
/// Partitions whose COMMIT was not answered, by what had become of it.
const UNKNOWN: &str = "tidegate_commits_unanswered_total";
/// Positions that could not be copied to the consumer group.
const NOT_MIRRORED: &str = "tidegate_mirror_failures_total";
/// Transactions of stopped workers that were ended.
const STRAGGLERS: &str = "tidegate_stragglers_ended_total";

/// Records parked, by reason.
const PARKED: &str = "tidegate_records_parked_total";

pub(crate) fn parked(projection: &str, reason: &'static str) {
    counter!(PARKED, "projection" => projection.to_owned(), "reason" => reason).increment(1);
}

/// Partitions that stood still although there were records, and were fetched again.
const STOOD_STILL: &str = "tidegate_partitions_stood_still_total";

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

/// Messages that the broker has acknowledged.
const SENT: &str = "tidegate_messages_sent_total";
/// Of the messages handed over, those that had been before, since something had failed.
const REPEATED: &str = "tidegate_messages_repeated_total";
/// Attempts to send a message that failed, by reason.
const NOT_SENT: &str = "tidegate_send_failures_total";
/// Messages put in quarantine, by reason.
const QUARANTINED: &str = "tidegate_messages_quarantined_total";

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

/// Questions to the schema registry, by outcome.
const REGISTRY: &str = "tidegate_schema_registry_requests_total";

pub(crate) fn registry_asked(outcome: &'static str) {
    counter!(REGISTRY, "outcome" => outcome).increment(1);
}
