//! What the state of a process means: alive, able, getting on. Pure.
//!
//! | question | no means | who asks |
//! |---|---|---|
//! | alive? | only a restart helps | a supervisor, to restart it |
//! | able? | it cannot work now, for a reason outside of it, or not yet | a rollout, to wait |
//! | getting on? | something that should happen does not | a person, or an alert |
//!
//! Paused is what an operator wants, so it is none of these. Neither is a process without partitions ill.

use std::time::{Duration, Instant};

use super::board::{Dependency, Doing, Snapshot, View};
use crate::types::TopicPartition;

/// One reason for a no. The codes are a promise: scripts and alerts may compare them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) code: &'static str,
    pub(crate) projection: Option<String>,
    pub(crate) partition: Option<TopicPartition>,
    pub(crate) text: String,
    pub(crate) seconds: u64,
}

/// The answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    /// What may take its time is no reason until then.
    pub(crate) patience: Duration,
    /// A writer that has not come back for so long never will.
    pub(crate) silence_max: Duration,
}

impl Verdict {
    /// `transaction`: how long one may take until its connection is given up.
    pub(crate) fn new(transaction: Duration) -> Self {
        Self {
            patience: transaction + Duration::from_secs(10),
            silence_max: transaction * 4 + Duration::from_secs(120),
        }
    }

    /// Why a restart is needed; nothing if it is not.
    pub(crate) fn dead(&self, seen: &Snapshot) -> Vec<Reason> {
        let silent = seen.silent.iter();
        let silent = silent.filter(|(_, silent)| *silent > self.silence_max);
        silent
            .map(|(projection, silent)| Reason {
                code: "writer_stuck",
                projection: Some(projection.clone()),
                partition: None,
                text: "a writer does not come back from its work, perhaps from a handler that never awaits".to_owned(),
                seconds: silent.as_secs(),
            })
            .collect()
    }

    /// Why it cannot work; nothing if it can.
    pub(crate) fn unable(&self, seen: &Snapshot) -> Vec<Reason> {
        let whole = |code, text: String, since: Instant| Reason {
            code,
            projection: None,
            partition: None,
            text,
            seconds: seen.now.saturating_duration_since(since).as_secs(),
        };
        let mut reasons = Vec::new();
        if seen.stopping {
            reasons.push(whole(
                "stopping",
                "it was told to stop".to_owned(),
                seen.now,
            ));
        }
        for (what, (since, why)) in &seen.starting {
            let text = match why.contains(what) {
                true => why.clone(),
                false => format!("{what}: {why}"),
            };
            reasons.push(whole("starting", text, *since));
        }
        for (projection, out) in &seen.out_of_group {
            let text = "the live tables are of another definition than this process has".to_owned();
            let projection = Some(projection.clone());
            reasons.push(Reason {
                projection,
                ..whole("not_live", text, out.since)
            });
        }
        for (code, dependency) in [
            ("database_unreachable", &seen.database),
            ("kafka_unreachable", &seen.kafka),
        ] {
            if let Some(Dependency {
                up: false,
                since,
                why,
            }) = dependency
            {
                reasons.push(whole(code, why.clone(), *since));
            }
        }
        reasons
    }

    /// What does not get on; nothing if everything does.
    pub(crate) fn stalled(&self, seen: &Snapshot) -> Vec<Reason> {
        let late = |reason: &Reason| reason.seconds >= self.patience.as_secs();
        let unable = self.unable(seen).into_iter();
        let mut reasons: Vec<Reason> = unable
            .filter(|reason| reason.code == "starting" && late(reason))
            .collect();
        for (projection, out) in &seen.out_of_group {
            let seconds = out.unbuilt.map_or(0, |since| {
                seen.now.saturating_duration_since(since).as_secs()
            });
            let reason = Reason {
                code: "not_live",
                projection: Some(projection.clone()),
                partition: None,
                text: format!(
                    "the live tables are of another definition than this process has, and nobody gets on with building those of its own. If it is an old process, replace it; if it is a new one, `tidegate rebuild start {projection}` with its configuration builds them, and `tidegate rebuild status {projection}` says what is in the way"
                ),
                seconds,
            };
            reasons.extend(Some(reason).filter(late));
        }
        let detached = seen.figures.iter().flat_map(|figures| &figures.detached);
        let halted = detached.filter(|build| !build.trouble.is_empty());
        reasons.extend(halted.map(|build| Reason {
            code: "build_halted",
            projection: Some(build.projection.clone()),
            partition: None,
            text: format!("generation {}: {}", build.generation, build.trouble),
            seconds: seen.now.saturating_duration_since(build.since).as_secs(),
        }));
        for ((projection, partition), view) in &seen.partitions {
            if let Some((code, mut text, since)) = self.why_stalled(seen, view) {
                for lock in seen
                    .locks
                    .iter()
                    .filter(|lock| lock.projection == *projection)
                {
                    let pids: Vec<String> = lock.blocked_by.iter().map(i32::to_string).collect();
                    let (pids, since) = (pids.join(", "), lock.since.format("%H:%M:%S UTC"));
                    text.push_str(&format!(
                        "; waiting for a lock held by pid {pids}, last since {since}"
                    ));
                }
                reasons.push(Reason {
                    code,
                    projection: Some(projection.clone()),
                    partition: Some(partition.clone()),
                    text,
                    seconds: seen.now.saturating_duration_since(since).as_secs(),
                });
            }
        }
        reasons
    }

    fn why_stalled(&self, seen: &Snapshot, view: &View) -> Option<(&'static str, String, Instant)> {
        let since = match view.doing {
            Doing::Running => view.moved.max(view.since),
            Doing::Halted | Doing::Paused => view.since,
            // Whoever fails again and again goes through all of these, and does not move.
            Doing::Claiming | Doing::Waiting | Doing::Retrying => view.moved.min(view.since),
        };
        let late = seen.now.saturating_duration_since(since) >= self.patience;
        let cause = || view.cause.clone();
        match view.doing {
            Doing::Paused => None,
            Doing::Halted => Some(("halted", cause(), since)),
            Doing::Retrying if late => Some(("retrying", cause(), since)),
            Doing::Waiting if late => Some(("waiting", cause(), since)),
            Doing::Claiming if late => {
                let text = "the partition is claimed and not read".to_owned();
                Some(("claiming", text, since))
            }
            Doing::Running if late && view.lag().is_some_and(|lag| lag > 0) => {
                let text = "there are records, and the position does not move".to_owned();
                Some(("standing_still", text, since))
            }
            Doing::Retrying | Doing::Waiting | Doing::Claiming | Doing::Running => None,
        }
    }
}
