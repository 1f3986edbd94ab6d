//! A writer: a task with its own Postgres connection that claims its partitions, takes their records
//! and applies batches.
//!
//! ```text
//!              claim waits or fails: again later
//!                 +-------+
//!                 v       |
//!  assigned --> Claiming -+--> Fetching --> Running --> Halted
//!                 ^                            |           |
//!                 +--- refused, fenced, connection lost ---+-- an operator's action
//! ```
//!
//! From any state: revoked, and the partition is gone. Everything that puts the records in doubt ends
//! in `Claiming`, which forgets them: they are fetched again from exactly the position that the claim
//! reads. A batch takes only records of its own claim.

mod batch;
mod bulk;
mod claiming;
mod draining;
mod failure;
mod showing;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use sqlx::PgConnection;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::debug;
use uuid::Uuid;

use self::bulk::{Stretch, TookIn};
use super::apply::Generation;
use super::claim::{Role, Waits};
use super::redrive::LETTERS_MAX;
use super::topic_watch::TopicIds;
use crate::codec::Decoder;
use crate::engine::parking::{Brake, Rejection};
use crate::engine::redact::Secrets;
use crate::failpoint;
use crate::health::{Board, Doing};
use crate::kafka::{Cluster, Fetched, Input, Inputs, Member, Queue};
use crate::projection::Projection;
use crate::store::position::{self, Claim, Claimed};
use crate::store::{self, Database};
use crate::telemetry;
use crate::types::{Anchor, NextOffset, Record, TopicPartition};

/// How often a writer looks whether its claims are still the newest, and a waiting claim is tried again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const BUILD_LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long saying goodbye to partitions may take.
const RELEASE_MAX: Duration = Duration::from_secs(2);
/// How long a partition stays halted at a gap before it looks again: the missing event may come through
/// another partition.
const GAP_LOOK_EVERY: Duration = Duration::from_secs(5);

/// How batches are cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) batch_records_max: usize,
    /// Records of so many bytes make a batch full.
    pub(crate) batch_bytes_max: usize,
    pub(crate) batch_linger: Duration,
    pub(crate) synchronous_commit: bool,
    /// Memory for what a build takes in before it writes.
    pub(crate) bulk_bytes_max: usize,
}

/// What a writer works with.
pub(super) struct Writer {
    pub(super) projection: Arc<Projection>,
    pub(super) role: Role,
    /// Where the live generation stands, for a build, which never passes it.
    pub(super) bounds: Option<watch::Receiver<Bounds>>,
    pub(super) decoder: Arc<Decoder>,
    pub(super) database: Database,
    pub(super) cluster: Cluster,
    pub(super) member: Member,
    pub(super) topic_ids: watch::Receiver<TopicIds>,
    pub(super) limits: Limits,
    pub(super) owner: String,
    pub(super) secrets: Arc<Secrets>,
    /// Rings when a batch has put messages in the outbox.
    pub(super) outbox: Arc<Notify>,
    /// What this writer does, for whoever asks.
    pub(super) board: Board,
}

/// Offsets that are not to be passed. What is not in it is not to be read yet.
pub(in crate::runtime) type Bounds = BTreeMap<TopicPartition, NextOffset>;

struct Running {
    claim: Claim,
    next: NextOffset,
    /// The time of the last applied record.
    applied_time: Option<DateTime<Utc>>,
    queue: Arc<Queue>,
    held: Held,
    /// The last applied record, which comes first, to be compared: then the log is still the one it was.
    anchor: Option<Anchor>,
    passed: Passed,
    /// Under suspicion: applied alone, at most this many records at a time.
    limit: Option<usize>,
    /// Nothing comes after what is held, for this reason: once that is applied, the partition halts.
    ended: Option<Ended>,
    /// Why the first held record cannot be applied: it is parked next, alone.
    condemned: Option<Rejection>,
    /// Attempts in a row that may pass later; the position row says so.
    retries: u32,
}

/// Why a log does not go on, and whether it is another one than was applied.
#[derive(Clone)]
struct Ended {
    why: String,
    is_another: bool,
}

/// How far a partition without records is: behind what is no record, such as the end of a transaction.
#[derive(Default)]
enum Passed {
    /// No record has come yet. What is known may be of an earlier fetch.
    #[default]
    Unknown,
    Askable,
    Asked(oneshot::Receiver<NextOffset>),
    /// All below this was handed over, or is no record.
    To(NextOffset),
}

/// Records fetched and not yet applied.
#[derive(Default)]
struct Held {
    records: VecDeque<Record>,
    bytes: usize,
}

impl Held {
    fn push(&mut self, record: Record) {
        self.bytes += record.size();
        self.records.push_back(record);
    }

    fn remove(&mut self, count: usize) {
        let removed: usize = self.records.drain(..count).map(|r| r.size()).sum();
        self.bytes -= removed;
    }

    /// How many of them are below a bound.
    fn below(&self, bound: NextOffset) -> usize {
        match self.records.back() {
            Some(last) if bound.admits(last.offset()) => self
                .records
                .partition_point(|record| record.offset() < bound.get()),
            _ => self.records.len(),
        }
    }

    /// The bytes of its first records.
    fn bytes_of(&self, count: usize) -> usize {
        match count == self.records.len() {
            true => self.bytes,
            false => self.records.iter().take(count).map(Record::size).sum(),
        }
    }

    fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

enum State {
    Claiming {
        not_before: Instant,
        /// Said once, not at every try.
        waits: Option<Waits>,
    },
    Fetching {
        claimed: Claimed,
        answer: oneshot::Receiver<Fetched>,
    },
    Running(Running),
    Halted {
        claim: Claim,
        /// How it is shown, and why.
        doing: Doing,
        why: String,
        /// When to try again, if what is missing may come by itself.
        again: Option<Instant>,
    },
}

impl State {
    fn claim_at(not_before: Instant) -> Self {
        Self::Claiming {
            not_before,
            waits: None,
        }
    }

    fn claim(&self) -> Option<&Claim> {
        match self {
            Self::Claiming { .. } => None,
            Self::Fetching { claimed, .. } => Some(&claimed.claim),
            Self::Running(running) => Some(&running.claim),
            Self::Halted { claim, .. } => Some(claim),
        }
    }
}

/// The changing part of a writer.
struct Work {
    connection: Option<PgConnection>,
    partitions: BTreeMap<TopicPartition, State>,
    generation: Option<Generation>,
    /// Failures in a row, and until when to wait for them.
    failures: u32,
    not_before: Instant,
    /// The last of them.
    trouble: String,
    /// Records of a batch, at most: fewer after one that took too long.
    batch_records_max: usize,
    /// The same for what is drained.
    letters_max: usize,
    /// When the oldest held record was taken, for lingering.
    held_since: Option<Instant>,
    looked: Instant,
    drained: Instant,
    /// A batch whose COMMIT was not answered.
    unknown: Option<Uuid>,
    /// Counts records that cannot be applied.
    brake: Brake,
    /// How often in a row a partition's next record had a schema that could not be asked for.
    schema_waits: BTreeMap<TopicPartition, u32>,
    /// Why the last fetch of a partition has failed, so that it is not said again and again.
    fetch_troubles: BTreeMap<TopicPartition, String>,
    /// Records are fetched with their headers.
    with_headers: bool,
    /// Positions have moved that a crash of Postgres may take back: not to be mirrored yet.
    unconfirmed: bool,
    /// What is taken in and not written.
    stretch: Option<Stretch>,
    /// Records that are applied batch by batch, before anything is taken in again.
    ordinary: usize,
    /// Records that a stretch ends before.
    stops: BTreeMap<TopicPartition, i64>,
    /// Rotates, so that no partition waits for another's backlog.
    turn: usize,
}

impl Writer {
    /// Works until the member has ended, which revokes everything first.
    pub(super) async fn run(self, inputs: Inputs, ended: CancellationToken) {
        let Inputs {
            mut inputs,
            wake,
            abort,
        } = inputs;
        let now = Instant::now();
        let parking = &self.projection.parking;
        let mut work = Work {
            connection: None,
            partitions: BTreeMap::new(),
            generation: None,
            failures: 0,
            not_before: now,
            trouble: String::new(),
            batch_records_max: self.limits.batch_records_max,
            letters_max: LETTERS_MAX,
            held_since: None,
            looked: now,
            drained: now,
            unknown: None,
            brake: Brake::new(parking.consecutive_max, parking.share_max),
            schema_waits: BTreeMap::new(),
            fetch_troubles: BTreeMap::new(),
            with_headers: self.projection.reads_headers(),
            unconfirmed: false,
            stretch: None,
            ordinary: 0,
            stops: BTreeMap::new(),
            turn: 0,
        };
        let beat = self.board.writer(&self.projection.name);
        loop {
            loop {
                match inputs.try_recv() {
                    Ok(input) => self.take_input(&mut work, input, &abort).await,
                    Err(tokio::sync::mpsc::error::TryRecvError::Empty) => break,
                    Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => return,
                }
            }
            let idle_until = tokio::select! {
                biased;
                idle_until = self.step(&mut work) => idle_until,
                () = abort.notified() => {
                    self.connection_lost(&mut work, "a revoke does not wait any longer");
                    None
                }
            };
            beat.beat();
            self.show(&work);
            let Some(idle_until) = idle_until else {
                // There is more to do at once; let others have the thread in between.
                tokio::task::yield_now().await;
                continue;
            };
            tokio::select! {
                // Inputs first: a revoke waits for us.
                biased;
                input = inputs.recv() => match input {
                    Some(input) => self.take_input(&mut work, input, &abort).await,
                    None => return,
                },
                () = ended.cancelled() => return,
                () = wake.notified() => {}
                () = tokio::time::sleep_until(idle_until.into()) => {}
            }
        }
    }

    async fn take_input(&self, work: &mut Work, input: Input, abort: &Notify) {
        match input {
            Input::Assigned(partitions) => {
                for partition in partitions {
                    let state = State::claim_at(Instant::now());
                    work.partitions.insert(partition, state);
                }
            }
            Input::Revoked { partitions, done } => {
                let began = Instant::now();
                let name = &self.projection.name;
                tokio::select! {
                    biased;
                    () = self.write_stretch(work) => {}
                    () = abort.notified() => {
                        self.connection_lost(work, "a revoke does not wait any longer");
                    }
                }
                self.board.left(name, partitions.iter());
                let count = partitions.len();
                let gone: Vec<(TopicPartition, State)> = partitions
                    .into_iter()
                    .filter_map(|partition| work.partitions.remove_entry(&partition))
                    .collect();
                failpoint::reach(failpoint::REVOKE_BEFORE_RELEASE);
                self.release(work, &gone).await;
                telemetry::revoked(name, count, began.elapsed());
                failpoint::reach(failpoint::REVOKE_AFTER_RELEASE);
                // It may have rung while there was nothing left to abort.
                let _ = abort.notified().now_or_never();
                drop(done);
            }
        }
    }

    /// Says that nobody works on these now. Only courtesy: the next owner claims in any case.
    async fn release(&self, work: &mut Work, gone: &[(TopicPartition, State)]) {
        let (Some(connection), Some(generation)) = (&mut work.connection, &work.generation) else {
            return;
        };
        let claims: Vec<(&TopicPartition, &Claim)> = gone
            .iter()
            .filter_map(|(partition, state)| Some((partition, state.claim()?)))
            .collect();
        if claims.is_empty() {
            return;
        }
        let name = &self.projection.name;
        let release = position::release(connection, name, generation.number, &claims);
        if let Err(error) = store::within("releasing partitions", RELEASE_MAX, release).await {
            debug!(projection = name, %error, "not released");
            work.connection = None;
        }
    }

    /// The offset that a partition's position is not to pass: none but for a build.
    fn bound(&self, partition: &TopicPartition) -> NextOffset {
        match &self.bounds {
            None => NextOffset::from_raw(i64::MAX),
            Some(bounds) => {
                let bound = bounds.borrow().get(partition).copied();
                bound.unwrap_or(NextOffset::from_raw(0))
            }
        }
    }

    /// How often to look. The end of a build is waited for.
    fn look_every(&self) -> Duration {
        match self.role {
            Role::Live => LOOK_EVERY,
            Role::Build(_) => BUILD_LOOK_EVERY,
        }
    }

    /// Does what is due. Returns until when there is nothing more to do, or none if there is.
    async fn step(&self, work: &mut Work) -> Option<Instant> {
        let now = Instant::now();
        if work.partitions.is_empty() {
            return Some(now + LOOK_EVERY);
        }
        if now < work.not_before {
            return Some(work.not_before);
        }
        if work.connection.is_none() {
            self.forget_stretch(work, "its connection is lost");
            match self
                .database
                .connect(&format!("tidegate {}", self.owner))
                .await
            {
                Ok(connection) => work.connection = Some(connection),
                Err(error) => {
                    self.connection_lost(work, &error.to_string());
                    return Some(work.not_before);
                }
            }
        }
        if now.duration_since(work.looked) >= self.look_every() {
            work.looked = now;
            self.look(work).await;
            // What drains moves gates, which are in memory then.
            if work.stretch.is_none() {
                self.drain_due(work).await;
            }
        }
        self.claim_due(work).await;
        self.begin_fetched(work);
        if work.connection.is_none() {
            return Some(work.not_before);
        }
        self.take_records(work).await;
        match self.take_in(work).await {
            TookIn::Some => return None,
            TookIn::NothingUntil(until) => return Some(until),
            TookIn::Nothing => {}
        }
        if self.batch_is_due(work) {
            let chosen = self.choose(work);
            self.apply_batch(work, &chosen).await;
            return None;
        }
        if let Some(passed) = self.passed(work) {
            self.apply_batch(work, &[passed]).await;
            return None;
        }
        Some(self.next_wake(work))
    }

    fn next_wake(&self, work: &Work) -> Instant {
        let claims = work.partitions.values().filter_map(|state| match state {
            State::Claiming { not_before, .. } => Some(*not_before),
            State::Halted { again, .. } => *again,
            State::Fetching { .. } | State::Running(_) => None,
        });
        let linger = work
            .held_since
            .map(|since| since + self.limits.batch_linger);
        claims
            .chain(linger)
            .chain([work.looked + self.look_every(), Instant::now() + LOOK_EVERY])
            .min()
            .unwrap_or(work.looked)
    }
}

fn jitter(bound: Duration) -> Duration {
    bound.mul_f64(fastrand::f64())
}
