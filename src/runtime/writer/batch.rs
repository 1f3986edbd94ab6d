//! Takes records, cuts a batch, applies it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tracing::field::Empty;
use tracing::{Instrument as _, Span, debug, error, info, info_span, warn};
use uuid::Uuid;

use super::claiming::what_next;
use super::{Ended, LOOK_EVERY, Passed, Running, State, Work, Writer, jitter};
use crate::engine::isolation;
use crate::engine::parking::Rejection;
use crate::kafka::{ClusterError, Polled};
use crate::runtime::apply::{self, Applied, Applier, Failure, Part};
use crate::runtime::claim::Role;
use crate::runtime::refusal;
use crate::runtime::stragglers::ending_stragglers;
use crate::store;
use crate::store::position::{Claimed, Condition};
use crate::telemetry;
use crate::types::{Anchor, NextOffset, Record, TopicPartition, TraceContext};

/// Partitions, and traces, that a batch's span names.
const SHOWN_MAX: usize = 8;
/// Records of each partition that are asked for their traces.
const LOOKED_AT_MAX: usize = 100;

/// A partition's share of the next batch: its first records, and the position behind them.
pub(super) struct Chosen {
    pub(super) partition: TopicPartition,
    pub(super) count: usize,
    pub(super) to: NextOffset,
}

impl Writer {
    /// Once for a reason, not for each record; and without the errors' texts, which may quote a value.
    fn tell_parked(&self, applied: &Applied) {
        let projection = &self.projection.name;
        let mut reasons: BTreeMap<&'static str, (usize, &Rejection, String)> = BTreeMap::new();
        for (partition, offset, rejection) in &applied.parked {
            let reason = rejection.reason.name();
            if self.role == Role::Live {
                telemetry::parked(projection, reason);
            }
            let first = || (0, rejection, format!("{partition}@{offset}"));
            reasons.entry(reason).or_insert_with(first).0 += 1;
        }
        for (reason, (records, rejection, first)) in reasons {
            match rejection.reason.is_failure() {
                true => {
                    let sqlstate = rejection.sqlstate.as_deref().unwrap_or_default();
                    warn!(projection, reason, sqlstate, records, first, "parked");
                }
                false => debug!(projection, reason, records, first, "parked"),
            }
        }
    }

    /// Takes what the queues have, until a batch is full.
    pub(super) async fn take_records(&self, work: &mut Work) {
        let (mut records, mut bytes) = self.held(work);
        let with_headers = work.with_headers;
        let count = work.partitions.len();
        let start = work.turn % count.max(1);
        let mut again: Vec<TopicPartition> = Vec::new();
        let mut without_anchor: Vec<TopicPartition> = Vec::new();
        let mut ended: Vec<(TopicPartition, Ended)> = Vec::new();
        for position in (start..count).chain(0..start) {
            let Some((partition, State::Running(running))) =
                work.partitions.iter_mut().nth(position)
            else {
                continue;
            };
            let bound = self.bound(partition);
            let mut taken = Vec::new().into_iter();
            // What is taken is held, all of it. What is behind the bound is left in the queue, but for a few where the log has
            // gaps.
            while running.ended.is_none()
                && (taken.len() > 0
                    || expected(running) < bound
                        && records < work.batch_records_max
                        && bytes < self.limits.batch_bytes_max)
            {
                let Some(polled) = taken.next() else {
                    let below = bound.get().saturating_sub(expected(running).get());
                    let below = usize::try_from(below).unwrap_or(usize::MAX);
                    let room = (work.batch_records_max - records).min(below);
                    taken = running.queue.take(room, with_headers).into_iter();
                    continue;
                };
                match polled {
                    Polled::Record(record) => {
                        if matches!(running.passed, Passed::Unknown) {
                            running.passed = Passed::Askable;
                        }
                        let anchor = running.anchor.take();
                        if !running.next.admits(record.offset()) {
                            running.ended = match anchor {
                                Some(anchor) if record.anchor() == anchor => {
                                    // What stands between it and the position was no record. Whether the log
                                    // still reaches as far shows only at its end.
                                    let next = running.next;
                                    match NextOffset::after(anchor.offset) == next {
                                        true => None,
                                        false => self
                                            .why_out_of_range(partition, next)
                                            .await
                                            .ok()
                                            .flatten(),
                                    }
                                }
                                anchor => Some(another_log(
                                    &self.projection.name,
                                    partition,
                                    anchor,
                                    &record,
                                )),
                            };
                            continue;
                        }
                        let expected = expected(running);
                        if !expected.admits(record.offset()) {
                            // Below the position: never to a handler (I4). And not what was asked for.
                            error!(projection = self.projection.name, %partition, %expected,
                                offset = record.offset(), "a record from before the position; fetching again");
                            again.push(partition.clone());
                            break;
                        }
                        records += 1;
                        bytes += record.size();
                        running.held.push(record);
                    }
                    Polled::Nothing => break,
                    Polled::StandsStill { end } => {
                        let next = expected(running);
                        telemetry::stood_still(&self.projection.name);
                        warn!(projection = self.projection.name, %partition, %next, end,
                            "the partition stands still although there are records; fetching again");
                        again.push(partition.clone());
                        break;
                    }
                    // The last applied record is gone, which says nothing about the position.
                    Polled::OutOfRange if running.anchor.is_some() => {
                        without_anchor.push(partition.clone());
                        break;
                    }
                    Polled::OutOfRange => {
                        let next = expected(running);
                        running.ended = self.out_of_range(partition, next).await;
                        if running.ended.is_none() {
                            again.push(partition.clone());
                        }
                        break;
                    }
                    // What comes after a batch that cannot be read is not what comes next.
                    Polled::Unreadable(error) => {
                        running.ended = Some(Ended {
                            is_another: false,
                            why: format!(
                                "offset {} and what follows cannot be read from kafka: {error}. Nothing was skipped",
                                expected(running)
                            ),
                        });
                    }
                    // I10: librdkafka takes the error for a record, and would go on behind the one that it could not fetch,
                    // and say that it was passed.
                    Polled::Failed(error) => {
                        let trouble = error.to_string();
                        if work.fetch_troubles.get(partition) != Some(&trouble) {
                            warn!(projection = self.projection.name, %partition, trouble, "kafka; fetching again");
                            work.fetch_troubles.insert(partition.clone(), trouble);
                        }
                        again.push(partition.clone());
                        break;
                    }
                }
            }
            // What is taken in is written before.
            let all_applied = running.held.is_empty() && work.stretch.is_none();
            if let (Some(end), true) = (&running.ended, all_applied) {
                ended.push((partition.clone(), end.clone()));
            }
        }
        // What was held may be gone with its partition; a time without records would wake us for ever.
        work.held_since = match self.held(work).0 {
            0 => None,
            _ => work.held_since.or_else(|| Some(Instant::now())),
        };
        for partition in without_anchor {
            self.fetch_without_anchor(work, &partition);
        }
        for partition in again {
            let state = State::claim_at(Instant::now() + LOOK_EVERY + jitter(LOOK_EVERY));
            work.partitions.insert(partition, state);
        }
        for (partition, Ended { why, is_another }) in ended {
            match is_another {
                true => self.halt_in_doubt(work, &partition, &why).await,
                false => self.halt(work, &partition, &why, None).await,
            }
        }
    }

    /// Fetches from the position itself.
    fn fetch_without_anchor(&self, work: &mut Work, partition: &TopicPartition) {
        if let Some(State::Running(running)) = work.partitions.get(partition) {
            let claimed = Claimed {
                claim: running.claim.clone(),
                next: running.next,
                batch_id: None,
                anchor: None,
            };
            let answer = self.member.fetch(partition, claimed.next);
            let state = State::Fetching { claimed, answer };
            work.partitions.insert(partition.clone(), state);
        }
    }

    /// Why the log cannot go on from here; none if it may after all: a broker that lags behind after a
    /// failover, or one that does not answer, is no verdict.
    async fn out_of_range(&self, partition: &TopicPartition, next: NextOffset) -> Option<Ended> {
        let projection = &self.projection.name;
        let why = self.why_out_of_range(partition, next).await;
        match &why {
            Ok(Some(_)) => {}
            Ok(None) => {
                warn!(projection, %partition, %next, "kafka had no such offset a moment ago; claiming again");
            }
            Err(error) => {
                warn!(projection, %partition, %next, %error, "kafka has no such offset, and does not say which it has; claiming again");
            }
        }
        why.ok().flatten()
    }

    /// What is wrong with a position, if the log does not have it.
    async fn why_out_of_range(
        &self,
        partition: &TopicPartition,
        next: NextOffset,
    ) -> Result<Option<Ended>, ClusterError> {
        let projection = &self.projection.name;
        let log = self.cluster.watermarks(partition).await?;
        if (log.low..=log.high).contains(&next.get()) {
            return Ok(None);
        }
        let (low, high) = (log.low, log.high);
        let reset = format!(
            "`tidegate reset {projection} --to earliest` empties the tables and begins anew with what the log holds"
        );
        let is_another = next.get() > high;
        if self.role != Role::Live {
            let why = format!(
                "the next offset, {next}, is not in the log, which holds {low} to {high}. What is built cannot go on; `tidegate rebuild abandon {projection}` gives it up, and `tidegate rebuild start {projection}` begins anew with what the log holds"
            );
            return Ok(Some(Ended { why, is_another }));
        }
        let why = if is_another {
            format!(
                "the next offset, {next}, lies beyond the log's end, {high}: the topic was made anew, or records were lost. {}",
                what_next(projection, partition.topic())
            )
        } else {
            format!(
                "the next offset, {next}, is below the log's beginning, {low}: retention has removed what was between. If that was records, they were never applied. Nothing was skipped. `tidegate skip {projection} {}/{} --to {low}` goes on without them, on record; {reset}",
                partition.topic(),
                partition.partition()
            )
        };
        Ok(Some(Ended { why, is_another }))
    }

    pub(super) fn batch_is_due(&self, work: &Work) -> bool {
        let Some(since) = work.held_since else {
            return false;
        };
        let hurried = |state: &State| match state {
            State::Running(running) => {
                !running.held.is_empty() && (running.limit.is_some() || running.ended.is_some())
            }
            _ => false,
        };
        let (records, bytes) = self.held(work);
        records > 0
            && (records >= work.batch_records_max
                || bytes >= self.limits.batch_bytes_max
                || since.elapsed() >= self.limits.batch_linger
                || work.partitions.values().any(hurried))
    }

    /// Chooses the partitions of the next batch, in lock order, and how many records of each: one
    /// partition alone if it is under suspicion, otherwise all that are not, up to a full batch.
    pub(super) fn choose(&self, work: &mut Work) -> Vec<Chosen> {
        let ready: Vec<(&TopicPartition, &Running)> = work
            .partitions
            .iter()
            .filter_map(|(partition, state)| match state {
                State::Running(running) if running.held.below(self.bound(partition)) > 0 => {
                    Some((partition, running))
                }
                _ => None,
            })
            .collect();
        if ready.is_empty() {
            return Vec::new();
        }
        let (first, head) = ready[work.turn % ready.len()];
        let mut room = work.batch_records_max;
        let chosen = match head.limit {
            Some(limit) => vec![self.share(head, first, limit.min(room))],
            None => ready
                .iter()
                .filter(|(_, r)| r.limit.is_none() && r.claim.generation == head.claim.generation)
                .map(|(partition, running)| {
                    let chosen = self.share(running, partition, room);
                    room -= chosen.count;
                    chosen
                })
                .filter(|chosen| chosen.count > 0)
                .collect(),
        };
        work.turn = work.turn.wrapping_add(1);
        chosen
    }

    /// A partition's first records, at most `max`.
    pub(super) fn share(
        &self,
        running: &Running,
        partition: &TopicPartition,
        max: usize,
    ) -> Chosen {
        let count = running.held.below(self.bound(partition)).min(max);
        let last = count
            .checked_sub(1)
            .and_then(|last| running.held.records.get(last));
        Chosen {
            partition: partition.clone(),
            count,
            to: last.map_or(running.next, |last| NextOffset::after(last.offset())),
        }
    }

    /// Records and bytes that are held for all partitions, and may be applied now.
    fn held(&self, work: &Work) -> (usize, usize) {
        let held = work
            .partitions
            .iter()
            .filter_map(|(partition, state)| match state {
                State::Running(running) => {
                    let below = running.held.below(self.bound(partition));
                    Some((below, running.held.bytes_of(below)))
                }
                _ => None,
            });
        held.fold((0, 0), |(n, b), (records, bytes)| (n + records, b + bytes))
    }

    pub(super) async fn apply_batch(&self, work: &mut Work, chosen: &[Chosen]) {
        let span = span(&self.projection.name, work, chosen);
        self.apply_chosen(work, chosen).instrument(span).await;
    }

    async fn apply_chosen(&self, work: &mut Work, chosen: &[Chosen]) {
        work.held_since = None;
        let (Some(connection), Some(generation)) =
            (work.connection.take(), work.generation.clone())
        else {
            return;
        };
        for Chosen { partition, .. } in chosen {
            if let Some(State::Running(running)) = work.partitions.get_mut(partition) {
                running.held.records.make_contiguous();
            }
        }
        let parts: Vec<Part<'_>> = chosen
            .iter()
            .filter_map(|chosen| match work.partitions.get(&chosen.partition) {
                Some(State::Running(running)) => Some(Part {
                    partition: &chosen.partition,
                    claim: &running.claim,
                    from: running.next,
                    records: &running.held.records.as_slices().0[..chosen.count],
                    to: chosen.to,
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
            synchronous_commit: self.limits.synchronous_commit,
            secrets: &self.secrets,
            with_headers: work.with_headers,
            brake: &work.brake,
        };
        let found = match chosen {
            [one] => match work.partitions.get(&one.partition) {
                Some(State::Running(running)) if one.count == 1 => running.condemned.clone(),
                _ => None,
            },
            _ => None,
        };
        let batch_id = Uuid::new_v4();
        let began = Instant::now();
        let unanswered = work.unknown.replace(batch_id);
        let apply = apply::apply(&applier, connection, batch_id, &parts, found);
        let (mut connection, result) =
            ending_stragglers(&self.database, &self.owner, &self.projection.name, apply).await;
        work.unknown = unanswered;
        let result = match (result, &mut connection) {
            (Err(Failure::Refused), Some(connection)) => {
                let limit = self.database.timeouts.statement;
                let ask = refusal::why_refused(connection, &self.projection.name, batch_id, &parts);
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
            .map(|part| (part.partition.clone(), part.records.len(), part.to))
            .collect();
        work.connection = connection;
        match result {
            Ok(applied) => {
                self.batch_applied(work, &moved, applied, began.elapsed())
                    .await
            }
            Err((failure, refusal)) => {
                #[cfg(feature = "opentelemetry")]
                telemetry::spans::failed(&Span::current());
                self.batch_failed(work, &moved, batch_id, failure, refusal)
                    .await;
            }
        }
    }

    pub(super) async fn batch_applied(
        &self,
        work: &mut Work,
        moved: &[(TopicPartition, usize, NextOffset)],
        applied: Applied,
        took: Duration,
    ) {
        if work.ordinary < usize::MAX {
            let records: usize = moved.iter().map(|(_, count, _)| count).sum();
            work.ordinary = work.ordinary.saturating_sub(records);
        }
        let mut recovered: Vec<&TopicPartition> = Vec::new();
        for (partition, count, to) in moved {
            work.schema_waits.remove(partition);
            work.fetch_troubles.remove(partition);
            if let Some(State::Running(running)) = work.partitions.get_mut(partition) {
                let last = count
                    .checked_sub(1)
                    .and_then(|last| running.held.records.get(last));
                running.applied_time = last.and_then(Record::time).or(running.applied_time);
                running.held.remove(*count);
                running.next = *to;
                running.limit = running.limit.and_then(|limit| {
                    isolation::after_success(limit, self.limits.batch_records_max)
                });
                running.condemned = None;
                if std::mem::take(&mut running.retries) > 0 {
                    recovered.push(partition);
                }
                if !running.held.is_empty() {
                    work.held_since.get_or_insert_with(Instant::now);
                }
            }
            if self.limits.synchronous_commit {
                self.member.mirror(partition, *to); // I7
            } else {
                work.unconfirmed = true;
            }
        }
        work.unknown = None;
        work.failures = 0;
        work.brake.take(applied.failed.iter().copied());
        self.tell_parked(&applied);
        let totals = &applied.totals;
        let outcomes = telemetry::Outcomes {
            applied: totals.applied,
            stale: totals.stale,
            duplicate: totals.duplicate,
            filtered: totals.filtered,
            parked: totals.parked,
        };
        let messages = applied.messages;
        // What a build applies has been counted live; it has gauges of its own.
        if self.role == Role::Live {
            telemetry::applied(
                &self.projection.name,
                outcomes,
                messages,
                took,
                &applied.phases,
            );
        }
        let usual = self.limits.batch_records_max;
        work.batch_records_max = work.batch_records_max.saturating_mul(2).min(usual);
        if applied.messages > 0 {
            self.outbox.notify_one();
        }
        if !applied.to_drain.is_empty() {
            self.drain(work, applied.to_drain).await;
        }
        debug!(projection = self.projection.name, ?took, messages = applied.messages, totals = ?applied.totals, "applied");
        for partition in recovered {
            info!(projection = self.projection.name, %partition, "applying again");
            self.say(work, partition, Condition::Running, "").await;
        }
    }
}

/// A batch, for whoever follows what happens: what it takes, and by which traces that was written. Where spans are
/// exported these are links: a batch has many causes.
fn span(projection: &str, work: &Work, chosen: &[Chosen]) -> Span {
    let records: usize = chosen.iter().map(|chosen| chosen.count).sum();
    let span = info_span!(
        "batch",
        projection,
        records,
        partitions = Empty,
        traces = Empty
    );
    if span.is_disabled() {
        return span;
    }
    let mut partitions = String::new();
    let mut traces: Vec<&str> = Vec::new();
    for (place, chosen) in chosen.iter().enumerate() {
        let Some(State::Running(running)) = work.partitions.get(&chosen.partition) else {
            continue;
        };
        let (partition, next, to) = (&chosen.partition, running.next, chosen.to);
        match place {
            0..SHOWN_MAX => {
                let _ = write!(partitions, "{partition}@{next}..{to} ");
            }
            SHOWN_MAX => partitions.push_str(".."),
            _ => {}
        }
        let records = running
            .held
            .records
            .iter()
            .take(chosen.count.min(LOOKED_AT_MAX));
        for parent in records.filter_map(|record| Some(TraceContext::of(record)?.parent)) {
            if traces.len() < SHOWN_MAX && !traces.contains(&parent) {
                #[cfg(feature = "opentelemetry")]
                telemetry::spans::link(&span, parent);
                traces.push(parent);
            }
        }
    }
    span.record("partitions", partitions.trim_end());
    if !traces.is_empty() {
        span.record("traces", traces.join(" "));
    }
    span
}

/// Why a log cannot go on that has another record where the last applied one was, or one where the position
/// had passed none.
fn another_log(
    projection: &str,
    partition: &TopicPartition,
    anchor: Option<Anchor>,
    record: &Record,
) -> Ended {
    let (found, cure) = (record.offset(), what_next(projection, partition.topic()));
    let before = match anchor {
        Some(anchor) => format!("the last one that was applied, at {},", anchor.offset),
        None => "what was passed there".to_owned(),
    };
    let why = format!(
        "the log has another record at offset {found} than {before}: the topic was made anew, or records that were acknowledged were lost and others written in their place. Nothing of it was applied. {cure}"
    );
    Ended {
        why,
        is_another: true,
    }
}

/// The offset that the next record of a partition has, or a later one.
fn expected(running: &Running) -> NextOffset {
    let last = running.held.records.back();
    last.map_or(running.next, |last| NextOffset::after(last.offset()))
}
