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

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use uuid::Uuid;

use super::apply::{self, Applied, Applier, Failure, Generation, Part, Refusal};
use super::claim::{self, Waits};
use crate::codec::Decoder;
use crate::engine::isolation::{self, Next};
use crate::engine::{Class, backoff};
use crate::kafka::{Cluster, Fetched, Input, Inputs, Member, Polled, Queue};
use crate::projection::Projection;
use crate::store::position::{self, Claim, Claimed, Condition};
use crate::store::{self, Database};
use crate::types::{NextOffset, Record, TopicPartition};

/// How often a writer looks whether its claims are still the newest, and a waiting claim is tried again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Records of this many bytes close a batch.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// How batches are cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) batch_records_max: usize,
    pub(crate) batch_linger: Duration,
}

/// What a writer works with.
pub(super) struct Writer {
    pub(super) projection: Arc<Projection>,
    pub(super) decoder: Arc<Decoder>,
    pub(super) database: Database,
    pub(super) cluster: Cluster,
    pub(super) member: Member,
    pub(super) limits: Limits,
    pub(super) owner: String,
    /// Rings when a batch has put messages in the outbox.
    pub(super) outbox: Arc<Notify>,
}

struct Running {
    claim: Claim,
    next: NextOffset,
    queue: Arc<Queue>,
    held: VecDeque<Record>,
    /// Under suspicion: applied alone, at most this many records at a time.
    limit: Option<usize>,
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
            Self::Halted { claim } => Some(claim),
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
    /// When the oldest held record was taken, for lingering.
    held_since: Option<Instant>,
    looked: Instant,
    /// A batch whose COMMIT was not answered.
    unknown: Option<Uuid>,
    /// Rotates, so that no partition waits for another's backlog.
    turn: usize,
}

impl Writer {
    /// Works until the member has ended, which revokes everything first.
    pub(super) async fn run(self, inputs: Inputs, ended: CancellationToken) {
        let Inputs { mut inputs, wake } = inputs;
        let now = Instant::now();
        let mut work = Work {
            connection: None,
            partitions: BTreeMap::new(),
            generation: None,
            failures: 0,
            not_before: now,
            held_since: None,
            looked: now,
            unknown: None,
            turn: 0,
        };
        loop {
            loop {
                match inputs.try_recv() {
                    Ok(input) => self.take_input(&mut work, input).await,
                    Err(tokio::sync::mpsc::error::TryRecvError::Empty) => break,
                    Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => return,
                }
            }
            let idle_until = self.step(&mut work).await;
            let Some(idle_until) = idle_until else {
                // There is more to do at once; let others have the thread in between.
                tokio::task::yield_now().await;
                continue;
            };
            tokio::select! {
                // Inputs first: a revoke waits for us.
                biased;
                input = inputs.recv() => match input {
                    Some(input) => self.take_input(&mut work, input).await,
                    None => return,
                },
                () = ended.cancelled() => return,
                () = wake.notified() => {}
                () = tokio::time::sleep_until(idle_until.into()) => {}
            }
        }
    }

    async fn take_input(&self, work: &mut Work, input: Input) {
        match input {
            Input::Assigned(partitions) => {
                for partition in partitions {
                    let state = State::claim_at(Instant::now());
                    work.partitions.insert(partition, state);
                }
            }
            Input::Revoked { partitions, done } => {
                let gone: Vec<(TopicPartition, State)> = partitions
                    .into_iter()
                    .filter_map(|partition| work.partitions.remove_entry(&partition))
                    .collect();
                self.release(work, &gone).await;
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
        let limit = self.database.timeouts.statement;
        if let Err(error) = store::within("releasing partitions", limit, release).await {
            debug!(projection = name, %error, "not released");
            work.connection = None;
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
        if now.duration_since(work.looked) >= LOOK_EVERY {
            work.looked = now;
            self.look(work).await;
        }
        self.claim_due(work).await;
        self.begin_fetched(work);
        if work.connection.is_none() {
            return Some(work.not_before);
        }
        self.take_records(work).await;
        if self.batch_is_due(work) {
            self.apply_batch(work).await;
            return None;
        }
        Some(self.next_wake(work))
    }

    fn next_wake(&self, work: &Work) -> Instant {
        let claims = work.partitions.values().filter_map(|state| match state {
            State::Claiming { not_before, .. } => Some(*not_before),
            _ => None,
        });
        let linger = work
            .held_since
            .map(|since| since + self.limits.batch_linger);
        claims
            .chain(linger)
            .chain([work.looked + LOOK_EVERY, Instant::now() + LOOK_EVERY])
            .min()
            .unwrap_or(work.looked)
    }

    /// Notices a fence while there is nothing to apply: a reset must not wait for the next record.
    async fn look(&self, work: &mut Work) {
        let (Some(connection), Some(generation)) = (&mut work.connection, &work.generation) else {
            return;
        };
        let (name, number) = (&self.projection.name, generation.number);
        let limit = self.database.timeouts.statement;
        let read = position::read(connection, name, number);
        let stored = match store::within("reading positions", limit, read).await {
            Ok(stored) => stored,
            Err(error) => return self.store_failed(work, &error),
        };
        for row in stored {
            let partition = TopicPartition::new(&*row.topic, row.partition);
            let Some(state) = work.partitions.get_mut(&partition) else {
                continue;
            };
            if state
                .claim()
                .is_some_and(|c| c.epoch != row.epoch || c.token != row.claim_token)
            {
                info!(projection = name, %partition, owner = row.owner, "fenced while idle; claiming again");
                // Jitter: two that believe they own it must not steal it from each other in step.
                *state = State::claim_at(Instant::now() + jitter(LOOK_EVERY));
            }
        }
    }

    async fn claim_due(&self, work: &mut Work) {
        let now = Instant::now();
        let due: Vec<TopicPartition> = work
            .partitions
            .iter()
            .filter(|(_, s)| matches!(s, State::Claiming { not_before, .. } if *not_before <= now))
            .map(|(partition, _)| partition.clone())
            .collect();
        for partition in due {
            let Some(connection) = &mut work.connection else {
                return;
            };
            let timeouts = &self.database.timeouts;
            let claim = claim::claim(
                connection,
                &self.projection,
                &partition,
                &self.owner,
                timeouts,
            );
            match store::within("claiming", timeouts.transaction(), claim).await {
                Ok(Ok((generation, claimed))) => {
                    self.claimed(work, &partition, generation, claimed)
                }
                Ok(Err(Waits::NewPartition { generation })) => {
                    self.add_partition(work, &partition, generation).await;
                }
                Ok(Err(waits)) => self.wait(work, &partition, waits),
                Err(error) => return self.store_failed(work, &error),
            }
        }
    }

    fn claimed(
        &self,
        work: &mut Work,
        partition: &TopicPartition,
        generation: Generation,
        claimed: Claimed,
    ) {
        let (projection, next) = (&self.projection.name, claimed.next);
        if work.unknown.is_some() && claimed.batch_id == work.unknown {
            info!(projection, %partition, %next, "the unanswered commit had happened: already committed by me");
        }
        info!(projection, %partition, generation = generation.number, epoch = claimed.claim.epoch, %next, "claimed");
        work.generation = Some(generation);
        self.member.mirror(partition, next);
        let answer = self.member.fetch(partition, next);
        let state = State::Fetching { claimed, answer };
        work.partitions.insert(partition.clone(), state);
    }

    fn wait(&self, work: &mut Work, partition: &TopicPartition, why: Waits) {
        let Some(State::Claiming { not_before, waits }) = work.partitions.get_mut(partition) else {
            return;
        };
        *not_before = Instant::now() + LOOK_EVERY + jitter(LOOK_EVERY);
        if waits.as_ref() != Some(&why) {
            warn!(projection = self.projection.name, %partition, why = %why, "not claimed; trying again");
            *waits = Some(why);
        }
    }

    /// A partition that appeared after the first start begins at its oldest record.
    async fn add_partition(&self, work: &mut Work, partition: &TopicPartition, generation: i32) {
        let projection = &self.projection.name;
        let log = match self.cluster.watermarks(partition).await {
            Ok(log) => log,
            Err(error) => {
                warn!(projection, %partition, %error, "a new partition's log cannot be read; trying again");
                return self.wait(work, partition, Waits::NewPartition { generation });
            }
        };
        let Some(connection) = &mut work.connection else {
            return;
        };
        let start = [(partition.clone(), log.low)];
        let limit = self.database.timeouts.statement;
        let insert = position::insert(connection, projection, generation, &start);
        match store::within("adding a partition", limit, insert).await {
            Ok(()) => info!(projection, %partition, next = log.low, "a new partition"),
            Err(error) => self.store_failed(work, &error),
        }
    }

    /// Partitions whose fetch was answered begin to run.
    fn begin_fetched(&self, work: &mut Work) {
        for (partition, state) in &mut work.partitions {
            let State::Fetching { claimed, answer } = state else {
                continue;
            };
            let fetched = match answer.try_recv() {
                Ok(fetched) => fetched,
                Err(oneshot::error::TryRecvError::Empty) => continue,
                // The poll thread has ended; so will this writer.
                Err(oneshot::error::TryRecvError::Closed) => Fetched::NotAssigned,
            };
            *state = match fetched {
                Fetched::Yes(queue) => State::Running(Running {
                    claim: claimed.claim.clone(),
                    next: claimed.next,
                    queue,
                    held: VecDeque::new(),
                    limit: None,
                }),
                Fetched::NotAssigned => State::claim_at(Instant::now() + LOOK_EVERY),
                Fetched::Failed(error) => {
                    warn!(projection = self.projection.name, %partition, %error, "kafka refused to fetch; claiming again");
                    State::claim_at(Instant::now() + LOOK_EVERY + jitter(LOOK_EVERY))
                }
            };
        }
    }

    /// Takes what the queues have, until a batch is full.
    async fn take_records(&self, work: &mut Work) {
        let running = |state: &State| match state {
            State::Running(running) => running.held.len(),
            _ => 0,
        };
        let mut held: usize = work.partitions.values().map(running).sum();
        let mut bytes: usize = 0;
        let count = work.partitions.len();
        let start = work.turn % count.max(1);
        let mut ended: Vec<(TopicPartition, String)> = Vec::new();
        let mut strange: Vec<TopicPartition> = Vec::new();
        for position in (start..count).chain(0..start) {
            let Some((partition, State::Running(running))) =
                work.partitions.iter_mut().nth(position)
            else {
                continue;
            };
            while held < self.limits.batch_records_max && bytes < BATCH_BYTES_MAX {
                match running.queue.poll() {
                    Polled::Record(record) => {
                        let expected = running
                            .held
                            .back()
                            .map_or(running.next, |last| NextOffset::after(last.offset()));
                        if !expected.admits(record.offset()) {
                            // Below the position: never to a handler (I4). And not what was asked for.
                            error!(projection = self.projection.name, %partition, %expected,
                                offset = record.offset(), "a record from before the position; fetching again");
                            strange.push(partition.clone());
                            break;
                        }
                        held += 1;
                        bytes += record.size();
                        running.held.push_back(record);
                    }
                    Polled::Nothing => break,
                    Polled::OutOfRange => {
                        let log = self.cluster.watermarks(partition).await;
                        let holds = log.map_or_else(
                            |error| format!("cannot be asked ({error})"),
                            |log| format!("holds {}..{}", log.low, log.high),
                        );
                        let why = format!(
                            "the next offset, {}, is not in the log, which {holds}: records that were not applied are gone (retention), or the topic was made anew. Nothing was skipped; `tidegate reset {} --to earliest` begins anew with what the log holds",
                            running.next, self.projection.name
                        );
                        ended.push((partition.clone(), why));
                        break;
                    }
                    Polled::Failed(error) => {
                        debug!(projection = self.projection.name, %partition, %error, "kafka");
                    }
                }
            }
        }
        // What was held may be gone with its partition; a time without records would wake us for ever.
        work.held_since = match held {
            0 => None,
            _ => work.held_since.or_else(|| Some(Instant::now())),
        };
        for partition in strange {
            let state = State::claim_at(Instant::now() + jitter(LOOK_EVERY));
            work.partitions.insert(partition, state);
        }
        for (partition, why) in ended {
            self.halt(work, &partition, &why).await;
        }
    }

    fn batch_is_due(&self, work: &Work) -> bool {
        let Some(since) = work.held_since else {
            return false;
        };
        let suspicion =
            |s: &State| matches!(s, State::Running(r) if r.limit.is_some() && !r.held.is_empty());
        let held: usize = work
            .partitions
            .values()
            .map(|state| match state {
                State::Running(running) => running.held.len(),
                _ => 0,
            })
            .sum();
        held > 0
            && (held >= self.limits.batch_records_max
                || since.elapsed() >= self.limits.batch_linger
                || work.partitions.values().any(suspicion))
    }

    /// Chooses the partitions of the next batch, in lock order, and how many records of each: one
    /// partition alone if it is under suspicion, otherwise all that are not.
    fn choose(work: &mut Work) -> Vec<(TopicPartition, usize)> {
        let ready: Vec<(&TopicPartition, &Running)> = work
            .partitions
            .iter()
            .filter_map(|(partition, state)| match state {
                State::Running(running) if !running.held.is_empty() => Some((partition, running)),
                _ => None,
            })
            .collect();
        if ready.is_empty() {
            return Vec::new();
        }
        let (first, head) = ready[work.turn % ready.len()];
        let chosen = match head.limit {
            Some(limit) => vec![(first.clone(), limit.min(head.held.len()))],
            None => ready
                .iter()
                .filter(|(_, r)| r.limit.is_none() && r.claim.generation == head.claim.generation)
                .map(|(partition, r)| ((*partition).clone(), r.held.len()))
                .collect(),
        };
        work.turn = work.turn.wrapping_add(1);
        chosen
    }

    async fn apply_batch(&self, work: &mut Work) {
        let chosen = Self::choose(work);
        work.held_since = None;
        let (Some(connection), Some(generation)) =
            (work.connection.take(), work.generation.clone())
        else {
            return;
        };
        for (partition, _) in &chosen {
            if let Some(State::Running(running)) = work.partitions.get_mut(partition) {
                running.held.make_contiguous();
            }
        }
        let parts: Vec<Part<'_>> = chosen
            .iter()
            .filter_map(|(partition, count)| match work.partitions.get(partition) {
                Some(State::Running(running)) => Some(Part {
                    partition,
                    claim: &running.claim,
                    from: running.next,
                    records: &running.held.as_slices().0[..*count],
                }),
                _ => None,
            })
            .collect();
        let applier = Applier {
            projection: &self.projection,
            decoder: &self.decoder,
            generation: &generation,
            timeouts: self.database.timeouts,
            owner: &self.owner,
        };
        let batch_id = Uuid::new_v4();
        let began = Instant::now();
        let (mut connection, result) = apply::apply(&applier, connection, batch_id, &parts).await;
        let result = match (result, &mut connection) {
            (Err(Failure::Refused), Some(connection)) => {
                let limit = self.database.timeouts.statement;
                let ask = apply::why_refused(connection, &self.projection.name, batch_id, &parts);
                match store::within("asking why", limit, ask).await {
                    Ok(refusal) => Err((Failure::Refused, Some(refusal))),
                    Err(error) => Err((Failure::Store(error), None)),
                }
            }
            (Err(failure), _) => Err((failure, None)),
            (Ok(applied), _) => Ok(applied),
        };
        let moved: Vec<(TopicPartition, usize, NextOffset)> = parts
            .iter()
            .map(|part| (part.partition.clone(), part.records.len(), part.to()))
            .collect();
        work.connection = connection;
        match result {
            Ok(applied) => {
                self.batch_applied(work, &moved, &applied, began.elapsed())
                    .await
            }
            Err((failure, refusal)) => {
                self.batch_failed(work, &moved, batch_id, failure, refusal)
                    .await;
            }
        }
    }

    async fn batch_applied(
        &self,
        work: &mut Work,
        moved: &[(TopicPartition, usize, NextOffset)],
        applied: &Applied,
        took: Duration,
    ) {
        for (partition, count, to) in moved {
            if let Some(State::Running(running)) = work.partitions.get_mut(partition) {
                running.held.drain(..*count);
                running.next = *to;
                running.limit = running.limit.and_then(|limit| {
                    isolation::after_success(limit, self.limits.batch_records_max)
                });
                if !running.held.is_empty() {
                    work.held_since.get_or_insert_with(Instant::now);
                }
            }
            self.member.mirror(partition, *to);
        }
        if applied.messages > 0 {
            self.outbox.notify_one();
        }
        debug!(projection = self.projection.name, ?took, messages = applied.messages, totals = ?applied.totals, "applied");
        if std::mem::take(&mut work.failures) > 0 {
            info!(projection = self.projection.name, "applying again");
            for (partition, ..) in moved {
                self.say(work, partition, Condition::Running, "").await;
            }
        }
    }

    async fn batch_failed(
        &self,
        work: &mut Work,
        moved: &[(TopicPartition, usize, NextOffset)],
        batch_id: Uuid,
        failure: Failure,
        refusal: Option<Refusal>,
    ) {
        let projection = &self.projection.name;
        match failure {
            Failure::Rejected { at, why } => self.isolate(work, moved, at, &why).await,
            Failure::Handler {
                class: Class::Transient,
                why,
                usable,
            } => {
                if usable {
                    self.retry_later(work, moved, &why).await;
                } else {
                    self.connection_lost(work, &why);
                }
            }
            Failure::Handler { why, .. } => {
                for (partition, ..) in moved {
                    self.halt(work, partition, &why).await;
                }
            }
            Failure::Store(error) if error.class() == Class::Halt => {
                let why = format!("tidegate's own statement failed: {error}");
                for (partition, ..) in moved {
                    self.halt(work, partition, &why).await;
                }
            }
            Failure::Store(error) if work.connection.is_some() => {
                self.retry_later(work, moved, &error.to_string()).await;
            }
            Failure::Store(error) => self.connection_lost(work, &error.to_string()),
            Failure::Unknown(error) => {
                work.unknown = Some(batch_id);
                let why =
                    format!("a commit was not answered, so the positions are read again: {error}");
                self.connection_lost(work, &why);
            }
            Failure::Refused => match refusal {
                Some(Refusal::TransactionEnded) => {
                    for (partition, ..) in moved {
                        let why = Refusal::TransactionEnded.to_string();
                        self.halt(work, partition, &why).await;
                    }
                }
                refusal => {
                    let why = refusal.map_or_else(|| "refused".to_owned(), |r| r.to_string());
                    for (partition, ..) in moved {
                        warn!(projection, %partition, why, "batch refused; claiming again");
                        let state = State::claim_at(Instant::now() + jitter(LOOK_EVERY / 4));
                        work.partitions.insert(partition.clone(), state);
                    }
                }
            },
        }
    }

    /// Goes on searching for the record at fault, or halts its partition.
    async fn isolate(
        &self,
        work: &mut Work,
        moved: &[(TopicPartition, usize, NextOffset)],
        at: Option<u32>,
        why: &str,
    ) {
        let mut first: usize = 0;
        let mut found: Option<TopicPartition> = None;
        for (partition, count, _) in moved {
            let share = first..first + count;
            first = share.end;
            let before = match at {
                Some(at) if share.contains(&(at as usize)) => Some(at as usize - share.start),
                Some(_) => continue,
                None => None,
            };
            let Some(State::Running(running)) = work.partitions.get_mut(partition) else {
                continue;
            };
            match isolation::after_failure(*count, moved.len() == 1, before) {
                Next::Try(limit) => running.limit = Some(limit),
                Next::Found => found = Some(partition.clone()),
            }
        }
        work.held_since = Some(Instant::now());
        if let Some(partition) = found {
            let offset = match work.partitions.get(&partition) {
                Some(State::Running(running)) => running.held.front().map(Record::offset),
                _ => None,
            };
            let why = format!("{partition} offset {}: {why}", offset.unwrap_or_default());
            self.halt(work, &partition, &why).await;
        }
    }

    /// Stops a partition until a person acts, if the claim is still the newest: a worker that is merely
    /// fenced has no opinion. Others go on.
    async fn halt(&self, work: &mut Work, partition: &TopicPartition, why: &str) {
        let projection = &self.projection.name;
        let Some(claim) = work
            .partitions
            .get(partition)
            .and_then(State::claim)
            .cloned()
        else {
            return;
        };
        self.member.unfetch(partition);
        if self.say(work, partition, Condition::Halted, why).await {
            error!(projection, %partition, why, "halted");
            work.partitions
                .insert(partition.clone(), State::Halted { claim });
        } else {
            let state = State::claim_at(Instant::now() + jitter(LOOK_EVERY));
            work.partitions.insert(partition.clone(), state);
        }
    }

    /// Stores how a partition fares. False if it could not, or if the claim is not the newest any more.
    async fn say(
        &self,
        work: &mut Work,
        partition: &TopicPartition,
        condition: Condition,
        why: &str,
    ) -> bool {
        let Some(claim) = work.partitions.get(partition).and_then(State::claim) else {
            return false;
        };
        let Some(connection) = &mut work.connection else {
            return false;
        };
        let (name, limit) = (&self.projection.name, self.database.timeouts.statement);
        let set = position::set_condition(connection, name, partition, claim, condition, why);
        match store::within("storing a condition", limit, set).await {
            Ok(newest) => newest,
            Err(error) => {
                self.store_failed(work, &error);
                false
            }
        }
    }

    /// The whole transaction again, later, with the records that are held.
    async fn retry_later(
        &self,
        work: &mut Work,
        moved: &[(TopicPartition, usize, NextOffset)],
        why: &str,
    ) {
        self.back_off(work);
        warn!(
            projection = self.projection.name,
            why,
            failures = work.failures,
            "batch failed; trying again"
        );
        work.held_since = Some(Instant::now());
        for (partition, ..) in moved {
            self.say(work, partition, Condition::Retrying, why).await;
        }
    }

    fn back_off(&self, work: &mut Work) {
        work.failures = work.failures.saturating_add(1);
        work.not_before = Instant::now() + backoff::delay(work.failures, fastrand::f64());
    }

    fn store_failed(&self, work: &mut Work, error: &store::Error) {
        if error.connection_is_usable() {
            self.back_off(work);
            warn!(projection = self.projection.name, %error, failures = work.failures, "trying again");
        } else {
            self.connection_lost(work, &error.to_string());
        }
    }

    /// Forgets everything that is held: what was committed is for the database to say.
    fn connection_lost(&self, work: &mut Work, why: &str) {
        self.back_off(work);
        warn!(
            projection = self.projection.name,
            why,
            failures = work.failures,
            "connection given up; claiming again"
        );
        work.connection = None;
        work.held_since = None;
        for state in work.partitions.values_mut() {
            *state = State::claim_at(work.not_before);
        }
    }
}

fn jitter(bound: Duration) -> Duration {
    bound.mul_f64(fastrand::f64())
}
