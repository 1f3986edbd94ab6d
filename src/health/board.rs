//! What everybody in this process does at the moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::types::TopicPartition;

/// Whoever waits gives up now and then, and tries again: what it waited for is worth telling in between.
const LOCK_KEPT: Duration = Duration::from_secs(60);

/// What happens to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It is being claimed, or its first records are being fetched.
    Claiming,
    /// A claim waits for something: the cause says for what.
    Waiting,
    /// An operator has paused the projection.
    Paused,
    Running,
    /// What failed may pass, and is tried again.
    Retrying,
    /// A person is needed.
    Halted,
}

impl Doing {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Claiming => "claiming",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Halted => "halted",
        }
    }
}

/// What a writer says of one of its partitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share<'a> {
    pub(crate) partition: &'a TopicPartition,
    pub(crate) doing: Doing,
    pub(crate) cause: &'a str,
    pub(crate) next: Option<i64>,
    /// The time of the last applied record.
    pub(crate) applied_time: Option<DateTime<Utc>>,
}

/// What a partition's log held when Kafka was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) low: i64,
    /// The last stable offset: where a reader of committed records ends.
    pub(crate) end: i64,
    /// Records behind it, of producers' open transactions.
    pub(crate) held_back: i64,
}

/// What is known of a partition.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) doing: Doing,
    pub(crate) cause: String,
    /// Since when it does that.
    pub(crate) since: Instant,
    pub(crate) next: Option<i64>,
    /// When the position last moved, or was last seen at the end.
    pub(crate) moved: Instant,
    pub(crate) applied_time: Option<DateTime<Utc>>,
    pub(crate) log: Option<Log>,
    /// When it was last seen to have nothing to apply.
    pub(crate) caught_up: Option<Instant>,
}

impl View {
    /// Offsets that are still to be applied.
    pub(crate) fn lag(&self) -> Option<i64> {
        Some((self.log?.end - self.next?).max(0))
    }

    /// At least how long until retention takes a record that waits, if it keeps each for `kept`. None if what waits is
    /// of an unknown age.
    pub(crate) fn runway(&self, kept: Duration, clock: DateTime<Utc>) -> Option<Duration> {
        if self.lag()? == 0 {
            return Some(kept);
        }
        let waited = (clock - self.applied_time?).to_std().unwrap_or_default();
        Some(kept.saturating_sub(waited))
    }

    /// At most how old the oldest record is that waits. Whatever waits was written after the last applied one,
    /// and after the partition was last seen without any.
    pub(crate) fn lag_time(&self, now: Instant, clock: DateTime<Utc>) -> Option<Duration> {
        if self.lag()? == 0 {
            return Some(Duration::ZERO);
        }
        let since_applied = self
            .applied_time
            .map(|time| (clock - time).to_std().unwrap_or_default());
        let since_caught_up = self.caught_up.map(|at| now.duration_since(at));
        match (since_applied, since_caught_up) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// How far the rebuild of a projection is in one partition.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    pub(crate) projection: String,
    pub(crate) partition: TopicPartition,
    /// Offsets read.
    pub(crate) done: i64,
    /// Offsets left up to where the live generation stands.
    pub(crate) remaining: i64,
}

/// A build that was left to the service, and why it does not go on.
#[derive(Clone, Debug)]
pub(crate) struct Detached {
    pub(crate) projection: String,
    pub(crate) generation: i32,
    /// Empty if it does.
    pub(crate) trouble: String,
    /// When that was seen first.
    pub(crate) since: Instant,
}

/// Parked records of one projection and reason.
#[derive(Clone, Debug)]
pub(crate) struct Letters {
    pub(crate) projection: String,
    pub(crate) reason: String,
    pub(crate) waiting: i64,
    pub(crate) oldest: DateTime<Utc>,
}

/// What the database says of all processes together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) letters: Vec<Letters>,
    pub(crate) builds: Vec<Build>,
    pub(crate) detached: Vec<Detached>,
    /// Projections, and whether they are paused.
    pub(crate) paused: BTreeMap<String, bool>,
    pub(crate) unsent: i64,
    pub(crate) oldest_unsent: Option<DateTime<Utc>>,
    pub(crate) quarantined: i64,
}

/// A statement of this process that waits for somebody's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) projection: String,
    pub(crate) pid: i32,
    pub(crate) blocked_by: Vec<i32>,
    pub(crate) since: DateTime<Utc>,
}

/// Whether something outside answers, since when, and why not.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    pub(crate) up: bool,
    pub(crate) since: Instant,
    pub(crate) why: String,
}

/// A projection of whose group this process stays out, since the tables for its definition are not live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) since: Instant,
    /// Since when nobody gets on with building them; none while somebody does.
    pub(crate) unbuilt: Option<Instant>,
}

/// What was written on the board, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) now: Instant,
    pub(crate) clock: DateTime<Utc>,
    /// What has not started yet, since when, and why.
    pub(crate) starting: BTreeMap<String, (Instant, String)>,
    pub(crate) stopping: bool,
    pub(crate) out_of_group: BTreeMap<String, Out>,
    pub(crate) partitions: BTreeMap<(String, TopicPartition), View>,
    /// None until it was asked for the first time.
    pub(crate) database: Option<Dependency>,
    pub(crate) kafka: Option<Dependency>,
    pub(crate) figures: Option<Figures>,
    pub(crate) locks: Vec<Lock>,
    /// How long each writer has not come back, by projection.
    pub(crate) silent: Vec<(String, Duration)>,
    /// How long topics keep a record, where that is by time.
    pub(crate) kept: BTreeMap<String, Duration>,
    pub(crate) began: Instant,
}

#[derive(Debug)]
struct Seen {
    starting: BTreeMap<String, (Instant, String)>,
    stopping: bool,
    out_of_group: BTreeMap<String, Out>,
    /// By projection, so that writers find theirs without a new name.
    partitions: BTreeMap<String, BTreeMap<TopicPartition, View>>,
    database: Option<Dependency>,
    kafka: Option<Dependency>,
    figures: Option<Figures>,
    /// And when each was last seen.
    locks: Vec<(Lock, Instant)>,
    beats: Vec<(String, Weak<AtomicU64>)>,
    kept: BTreeMap<String, Duration>,
}

/// Shared by all of a process.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    seen: Arc<Mutex<Seen>>,
    began: Instant,
    read: bool,
}

/// A writer's sign of life.
#[derive(Debug)]
pub(crate) struct Beat {
    last: Arc<AtomicU64>,
    began: Instant,
}

impl Beat {
    pub(crate) fn beat(&self) {
        self.last.store(millis_since(self.began), Ordering::Relaxed);
    }
}

fn millis_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Board {
    /// A process that has not done anything yet. `read`: whether anybody may ask.
    pub(crate) fn new(read: bool) -> Self {
        let began = Instant::now();
        let service = (
            "service".to_owned(),
            (began, "it has just begun".to_owned()),
        );
        Self {
            seen: Arc::new(Mutex::new(Seen {
                starting: BTreeMap::from([service]),
                stopping: false,
                out_of_group: BTreeMap::new(),
                partitions: BTreeMap::new(),
                database: None,
                kafka: None,
                figures: None,
                locks: Vec::new(),
                beats: Vec::new(),
                kept: BTreeMap::new(),
            })),
            began,
            read,
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has not started yet, for this reason.
    pub(crate) fn starting(&self, what: &str, why: &str) {
        let mut seen = self.seen();
        let entry = seen.starting.entry(what.to_owned());
        let (_, text) = entry.or_insert_with(|| (Instant::now(), String::new()));
        why.clone_into(text);
    }

    pub(crate) fn started(&self, what: &str) {
        self.seen().starting.remove(what);
    }

    pub(crate) fn stopping(&self) {
        self.seen().stopping = true;
    }

    /// The tables for this process' definition are not live; until they are it does nothing.
    pub(crate) fn out_of_group(&self, projection: &str) {
        let since = Instant::now();
        let unbuilt = Some(since);
        self.seen()
            .out_of_group
            .insert(projection.to_owned(), Out { since, unbuilt });
    }

    /// Whether somebody gets on with building the tables for whose definition this process stays out.
    pub(crate) fn is_built(&self, projection: &str, yes: bool) {
        if let Some(out) = self.seen().out_of_group.get_mut(projection) {
            out.unbuilt = (!yes).then(|| out.unbuilt.unwrap_or_else(Instant::now));
        }
    }

    pub(crate) fn in_group(&self, projection: &str) {
        self.seen().out_of_group.remove(projection);
    }

    /// A writer of this projection lives as long as what is returned.
    pub(crate) fn writer(&self, projection: &str) -> Beat {
        let last = Arc::new(AtomicU64::new(millis_since(self.began)));
        let mut seen = self.seen();
        seen.beats.retain(|(_, beat)| beat.strong_count() > 0);
        seen.beats
            .push((projection.to_owned(), Arc::downgrade(&last)));
        Beat {
            last,
            began: self.began,
        }
    }

    /// A writer says what it does with its partitions.
    pub(crate) fn show<'a>(&self, projection: &str, shares: impl Iterator<Item = Share<'a>>) {
        if !self.read {
            return;
        }
        let now = Instant::now();
        let mut seen = self.seen();
        if !seen.partitions.contains_key(projection) {
            seen.partitions
                .insert(projection.to_owned(), BTreeMap::new());
        }
        let Some(views) = seen.partitions.get_mut(projection) else {
            return;
        };
        for share in shares {
            let Some(view) = views.get_mut(share.partition) else {
                let view = View {
                    doing: share.doing,
                    cause: share.cause.to_owned(),
                    since: now,
                    next: share.next,
                    moved: now,
                    applied_time: share.applied_time,
                    log: None,
                    caught_up: None,
                };
                views.insert(share.partition.clone(), view);
                continue;
            };
            if view.doing != share.doing {
                if matches!(view.doing, Doing::Paused | Doing::Halted) {
                    // It could not move before.
                    view.moved = now;
                }
                view.doing = share.doing;
                view.since = now;
            }
            if view.cause != share.cause {
                share.cause.clone_into(&mut view.cause);
            }
            if share.next.is_some() && view.next != share.next {
                view.next = share.next;
                view.moved = now;
            }
            view.applied_time = share.applied_time.or(view.applied_time);
        }
    }

    /// Partitions that are not this process's any more.
    pub(crate) fn left<'a>(
        &self,
        projection: &str,
        partitions: impl Iterator<Item = &'a TopicPartition>,
    ) {
        let mut seen = self.seen();
        if let Some(views) = seen.partitions.get_mut(projection) {
            for partition in partitions {
                views.remove(partition);
            }
        }
    }

    /// The process is no member of this projection's group any more.
    pub(crate) fn left_group(&self, projection: &str) {
        self.seen().partitions.remove(projection);
    }

    /// How far a projection's writers are, which may be further than what they have committed.
    pub(crate) fn next_offsets(&self, projection: &str) -> Vec<(TopicPartition, i64)> {
        let seen = self.seen();
        let views = seen.partitions.get(projection).into_iter().flatten();
        views
            .filter_map(|(partition, view)| Some((partition.clone(), view.next?)))
            .collect()
    }

    /// The partitions of this process, by projection.
    pub(crate) fn partitions(&self) -> Vec<(String, TopicPartition)> {
        let seen = self.seen();
        let all = seen.partitions.iter();
        all.flat_map(|(projection, views)| {
            views
                .keys()
                .map(|partition| (projection.clone(), partition.clone()))
        })
        .collect()
    }

    /// Kafka was asked at `asked` what a log holds.
    pub(crate) fn log(
        &self,
        projection: &str,
        partition: &TopicPartition,
        log: Log,
        asked: Instant,
    ) {
        let mut seen = self.seen();
        let views = seen.partitions.get_mut(projection);
        let Some(view) = views.and_then(|views| views.get_mut(partition)) else {
            return;
        };
        view.log = Some(log);
        if view.next.is_some_and(|next| next >= log.end) {
            view.caught_up = Some(asked);
            view.moved = asked;
        }
    }

    /// Kafka was asked how long a topic keeps a record.
    pub(crate) fn kept(&self, topic: &str, kept: Option<Duration>) {
        let mut seen = self.seen();
        match kept {
            Some(kept) => seen.kept.insert(topic.to_owned(), kept),
            None => seen.kept.remove(topic),
        };
    }

    pub(crate) fn database(&self, answer: Result<Vec<Lock>, String>) {
        let mut seen = self.seen();
        let now = Instant::now();
        let answer = answer.map(|locks| {
            seen.locks.retain(|(known, at)| {
                now.duration_since(*at) < LOCK_KEPT
                    && !locks.iter().any(|lock| lock.projection == known.projection)
            });
            seen.locks.extend(locks.into_iter().map(|lock| (lock, now)));
        });
        turn(&mut seen.database, answer);
    }

    pub(crate) fn kafka(&self, answer: Result<(), String>) {
        turn(&mut self.seen().kafka, answer);
    }

    pub(crate) fn figures(&self, mut figures: Figures) {
        let mut seen = self.seen();
        for new in &mut figures.detached {
            let mut known = seen.figures.iter().flat_map(|figures| &figures.detached);
            let same = |old: &&Detached| {
                old.projection == new.projection && old.trouble.is_empty() == new.trouble.is_empty()
            };
            if let Some(old) = known.find(same) {
                new.since = old.since;
            }
        }
        seen.figures = Some(figures);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let seen = self.seen();
        let silent = seen.beats.iter().filter_map(|(projection, beat)| {
            let last = Duration::from_millis(beat.upgrade()?.load(Ordering::Relaxed));
            Some((
                projection.clone(),
                self.began.elapsed().saturating_sub(last),
            ))
        });
        let partitions = seen.partitions.iter().flat_map(|(projection, views)| {
            let key = |partition: &TopicPartition| (projection.clone(), partition.clone());
            views
                .iter()
                .map(move |(partition, view)| (key(partition), view.clone()))
        });
        Snapshot {
            now: Instant::now(),
            clock: Utc::now(),
            starting: seen.starting.clone(),
            stopping: seen.stopping,
            out_of_group: seen.out_of_group.clone(),
            partitions: partitions.collect(),
            database: seen.database.clone(),
            kafka: seen.kafka.clone(),
            figures: seen.figures.clone(),
            locks: seen.locks.iter().map(|(lock, _)| lock.clone()).collect(),
            silent: silent.collect(),
            kept: seen.kept.clone(),
            began: self.began,
        }
    }
}

fn turn(dependency: &mut Option<Dependency>, answer: Result<(), String>) {
    let up = answer.is_ok();
    let since = match dependency {
        Some(before) if before.up == up => before.since,
        _ => Instant::now(),
    };
    let why = answer.err().unwrap_or_default();
    *dependency = Some(Dependency { up, since, why });
}
