//! Every metric there is: the one table that docs, alerts and dashboards are compared with.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::warn;

/// How a metric is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric, its labels, and what it says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
}

pub(super) const RECORDS: &str = "tidegate_records_total";
pub(super) const PARKED: &str = "tidegate_records_parked_total";
pub(super) const MESSAGES: &str = "tidegate_messages_emitted_total";
pub(super) const BATCH_RECORDS: &str = "tidegate_batch_records";
pub(super) const BATCH_SECONDS: &str = "tidegate_batch_seconds";
pub(super) const BATCH_PHASE: &str = "tidegate_batch_phase_seconds";
pub(super) const RETRIED: &str = "tidegate_batch_retries_total";
pub(super) const REBALANCES: &str = "tidegate_rebalances_total";
pub(super) const REBALANCE_SECONDS: &str = "tidegate_rebalance_seconds";
pub(super) const REFUSED: &str = "tidegate_batches_refused_total";
pub(super) const UNKNOWN: &str = "tidegate_commits_unanswered_total";
pub(super) const LOST: &str = "tidegate_database_connections_lost_total";
pub(super) const HALTED: &str = "tidegate_halts_total";
pub(super) const CLAIMED: &str = "tidegate_claims_total";
pub(super) const FENCED: &str = "tidegate_fenced_total";
pub(super) const REVOKED: &str = "tidegate_partitions_revoked_total";
pub(super) const REVOKE_SECONDS: &str = "tidegate_revoke_seconds";
pub(super) const STRAGGLERS: &str = "tidegate_stragglers_ended_total";
pub(super) const STOOD_STILL: &str = "tidegate_partitions_stood_still_total";
pub(super) const NOT_MIRRORED: &str = "tidegate_mirror_failures_total";
pub(super) const SENT: &str = "tidegate_messages_sent_total";
pub(super) const REPEATED: &str = "tidegate_messages_repeated_total";
pub(super) const NOT_SENT: &str = "tidegate_send_failures_total";
pub(super) const REGISTRY: &str = "tidegate_schema_registry_requests_total";
pub(super) const QUARANTINED: &str = "tidegate_messages_quarantined_total";

const PROJECTION: &[&str] = &["projection"];
const PARTITION: &[&str] = &["projection", "topic", "partition"];

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    let kind = Kind::Counter;
    Metric {
        name,
        kind,
        labels,
        help,
    }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    let kind = Kind::Histogram;
    Metric {
        name,
        kind,
        labels,
        help,
    }
}

const fn of_now(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    let kind = Kind::Gauge;
    Metric {
        name,
        kind,
        labels,
        help,
    }
}

// Written when somebody asks, from what is known then.
pub(crate) const PARTITION_STATE: Metric = of_now(
    "tidegate_partition_state",
    &["projection", "topic", "partition", "state"],
    "1 for the state that a partition of this process is in",
);
pub(crate) const POSITION_NEXT_OFFSET: Metric = of_now(
    "tidegate_position_next_offset",
    PARTITION,
    "The first offset not yet applied",
);
pub(crate) const LAG_RECORDS: Metric = of_now(
    "tidegate_lag_records",
    PARTITION,
    "Offsets between the position and the last stable offset",
);
pub(crate) const LAG_SECONDS: Metric = of_now(
    "tidegate_lag_seconds",
    PARTITION,
    "At most how old the oldest record is that waits to be applied; 0 if none does",
);
pub(crate) const HELD_BACK_RECORDS: Metric = of_now(
    "tidegate_held_back_records",
    PARTITION,
    "Records that a producer's open transaction holds back",
);
pub(crate) const LOG_START_DISTANCE_RECORDS: Metric = of_now(
    "tidegate_log_start_distance_records",
    PARTITION,
    "Offsets between the log's beginning and the position: below 0, retention has taken records that were not applied",
);
pub(crate) const RETENTION_RUNWAY_SECONDS: Metric = of_now(
    "tidegate_retention_runway_seconds",
    PARTITION,
    "At least how long until retention by time removes a record that is not applied; none where a topic keeps everything",
);
pub(crate) const PROJECTION_PAUSED: Metric = of_now(
    "tidegate_projection_paused",
    PROJECTION,
    "1 if an operator has paused the projection",
);
pub(crate) const REBUILD_DONE_RECORDS: Metric = of_now(
    "tidegate_rebuild_done_records",
    PARTITION,
    "Offsets that a rebuild under way has read",
);
pub(crate) const REBUILD_LEFT_RECORDS: Metric = of_now(
    "tidegate_rebuild_left_records",
    PARTITION,
    "Offsets that it has yet to read, up to where the live tables stand",
);
pub(crate) const REBUILD_HALTED: Metric = of_now(
    "tidegate_rebuild_halted",
    PROJECTION,
    "1 if a rebuild that was left to the service does not go on by itself, 0 if it does",
);
pub(crate) const OUT_OF_GROUP: Metric = of_now(
    "tidegate_out_of_group",
    PROJECTION,
    "1 if this process stays out of the group, since the tables for its definition are not live",
);
pub(crate) const PARKED_RECORDS: Metric = of_now(
    "tidegate_parked_records",
    &["projection", "reason"],
    "Records that are parked now, by reason",
);
pub(crate) const PARKED_OLDEST_AGE_SECONDS: Metric = of_now(
    "tidegate_parked_oldest_age_seconds",
    PROJECTION,
    "How long the oldest parked record has waited",
);
pub(crate) const OUTBOX_UNSENT_MESSAGES: Metric = of_now(
    "tidegate_outbox_unsent_messages",
    &[],
    "Messages that are not sent yet, those in quarantine aside",
);
pub(crate) const OUTBOX_OLDEST_UNSENT_AGE_SECONDS: Metric = of_now(
    "tidegate_outbox_oldest_unsent_age_seconds",
    &[],
    "How long the oldest of them has waited; 0 if there is none",
);
pub(crate) const OUTBOX_QUARANTINED_MESSAGES: Metric = of_now(
    "tidegate_outbox_quarantined_messages",
    &[],
    "Messages in quarantine, and released ones that are not sent yet",
);
pub(crate) const READY: Metric = of_now(
    "tidegate_ready",
    &[],
    "1 if this process is able to work, as /readyz says",
);
pub(crate) const STALLED: Metric = of_now(
    "tidegate_stalled",
    &[],
    "1 if something of this process does not get on, as /progress says",
);
pub(crate) const DATABASE_UP: Metric = of_now(
    "tidegate_database_up",
    &[],
    "1 if Postgres answered when it was last asked",
);
pub(crate) const KAFKA_UP: Metric = of_now(
    "tidegate_kafka_up",
    &[],
    "1 if Kafka answered when it was last asked",
);
pub(crate) const BUILD_INFO: Metric = of_now(
    "tidegate_build_info",
    &["version"],
    "1, with the version of this binary",
);
pub(crate) const PROCESS_RESIDENT_MEMORY_BYTES: Metric = of_now(
    "process_resident_memory_bytes",
    &[],
    "Memory that the process has",
);
pub(crate) const PROCESS_OPEN_FDS: Metric =
    of_now("process_open_fds", &[], "File descriptors that it has open");
pub(crate) const PROCESS_MAX_FDS: Metric = of_now(
    "process_max_fds",
    &[],
    "File descriptors that it may have open",
);
pub(crate) const PROCESS_START_TIME_SECONDS: Metric = of_now(
    "process_start_time_seconds",
    &[],
    "When it began, in seconds since 1970",
);
pub(crate) const PROCESS_THREADS: Metric = of_now("process_threads", &[], "Its threads");
pub(crate) const PROCESS_CPU_SECONDS_TOTAL: Metric = counter(
    "process_cpu_seconds_total",
    &[],
    "Processor time that it has used",
);

/// All of them, in the order in which they are explained.
pub(crate) const ALL: &[Metric] = &[
    counter(
        RECORDS,
        &["projection", "outcome"],
        "Records of committed batches, by what became of them",
    ),
    counter(
        PARKED,
        &["projection", "reason"],
        "Records that were parked, by reason",
    ),
    counter(
        MESSAGES,
        PROJECTION,
        "Messages that batches have put in the outbox",
    ),
    histogram(BATCH_RECORDS, PROJECTION, "Records of a committed batch"),
    histogram(
        BATCH_SECONDS,
        PROJECTION,
        "Time of a committed batch, from the first record decoded to the answer to COMMIT",
    ),
    histogram(
        BATCH_PHASE,
        &["projection", "phase"],
        "The same time by what it was used for",
    ),
    counter(
        RETRIED,
        PROJECTION,
        "Batches that are tried again after a failure that may pass",
    ),
    counter(
        REFUSED,
        &["projection", "outcome"],
        "Batches that the database refused, by reason",
    ),
    counter(
        UNKNOWN,
        &["projection", "outcome"],
        "Partitions whose COMMIT was not answered, by what had become of it",
    ),
    counter(
        LOST,
        PROJECTION,
        "Connections to the database that were given up",
    ),
    counter(HALTED, PROJECTION, "Partitions that were halted"),
    counter(CLAIMED, PROJECTION, "Partitions claimed"),
    counter(
        FENCED,
        PROJECTION,
        "Claims that were found not to be the newest any more",
    ),
    counter(
        REVOKED,
        PROJECTION,
        "Partitions that the group has taken away",
    ),
    histogram(
        REVOKE_SECONDS,
        PROJECTION,
        "Time to finish, or abort, and give up revoked partitions",
    ),
    counter(
        REBALANCES,
        &["group"],
        "Assignments that a consumer group has given to this process",
    ),
    histogram(
        REBALANCE_SECONDS,
        &["group"],
        "Time from joining the group, or from a revoke, to the next assignment",
    ),
    counter(
        STRAGGLERS,
        PROJECTION,
        "Transactions of stopped workers that were ended",
    ),
    counter(
        STOOD_STILL,
        PROJECTION,
        "Partitions that stood still although there were records, and were fetched again",
    ),
    counter(
        NOT_MIRRORED,
        &["group"],
        "Positions that could not be copied to the consumer group",
    ),
    counter(SENT, &[], "Messages that the broker has acknowledged"),
    counter(
        REPEATED,
        &[],
        "Of the messages handed over, those that had been before, since something had failed",
    ),
    counter(
        NOT_SENT,
        &["reason"],
        "Attempts to send a message that failed, by reason",
    ),
    counter(
        QUARANTINED,
        &["reason"],
        "Messages put in quarantine, by reason",
    ),
    counter(
        REGISTRY,
        &["outcome"],
        "Questions to the schema registry, by outcome",
    ),
    PARTITION_STATE,
    POSITION_NEXT_OFFSET,
    LAG_RECORDS,
    LAG_SECONDS,
    HELD_BACK_RECORDS,
    LOG_START_DISTANCE_RECORDS,
    RETENTION_RUNWAY_SECONDS,
    PROJECTION_PAUSED,
    REBUILD_DONE_RECORDS,
    REBUILD_LEFT_RECORDS,
    REBUILD_HALTED,
    OUT_OF_GROUP,
    PARKED_RECORDS,
    PARKED_OLDEST_AGE_SECONDS,
    OUTBOX_UNSENT_MESSAGES,
    OUTBOX_OLDEST_UNSENT_AGE_SECONDS,
    OUTBOX_QUARANTINED_MESSAGES,
    READY,
    STALLED,
    DATABASE_UP,
    KAFKA_UP,
    BUILD_INFO,
    PROCESS_RESIDENT_MEMORY_BYTES,
    PROCESS_CPU_SECONDS_TOTAL,
    PROCESS_OPEN_FDS,
    PROCESS_MAX_FDS,
    PROCESS_START_TIME_SECONDS,
    PROCESS_THREADS,
];

/// Upper bounds of batches' and revokes' times, in seconds, and of batches' records.
const SECONDS: [f64; 15] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
const COUNTS: [f64; 10] = [
    1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0, 100_000.0,
];
/// How often samples are folded into buckets; until then each one takes memory.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Counts from now on. None if the embedding program counts already, with a recorder of its own.
pub(crate) fn recorder() -> Option<PrometheusHandle> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .and_then(|b| b.set_buckets_for_metric(Matcher::Suffix("_records".to_owned()), &COUNTS));
    match builder.and_then(PrometheusBuilder::install_recorder) {
        Ok(handle) => {
            describe();
            let upkeep = handle.clone();
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(UPKEEP_EVERY).await;
                    upkeep.run_upkeep();
                }
            });
            Some(handle)
        }
        Err(error) => {
            warn!(%error, "counters are not served: the program counts with a recorder of its own");
            None
        }
    }
}

/// Tells the recorder what the counters and histograms mean.
pub(crate) fn describe() {
    for metric in ALL {
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
            Kind::Histogram => metrics::describe_histogram!(metric.name, metric.help),
            Kind::Gauge => {}
        }
    }
}
