//! Takes records, cuts a batch, applies it.

use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};
use uuid::Uuid;

use super::{BATCH_BYTES_MAX, LOOK_EVERY, Running, State, Work, Writer, jitter};
use crate::engine::isolation;
use crate::kafka::Polled;
use crate::runtime::apply::{self, Applied, Applier, Failure, Part};
use crate::store;
use crate::store::position::Condition;
use crate::types::{NextOffset, TopicPartition};

impl Writer {
    /// Takes what the queues have, until a batch is full.
    pub(super) async fn take_records(&self, work: &mut Work) {
        let (mut records, mut bytes) = held(work);
        let with_headers = self.projection.reads_headers();
        let count = work.partitions.len();
        let start = work.turn % count.max(1);
        let mut again: Vec<TopicPartition> = Vec::new();
        let mut ended: Vec<(TopicPartition, String)> = Vec::new();
        for position in (start..count).chain(0..start) {
            let Some((partition, State::Running(running))) =
                work.partitions.iter_mut().nth(position)
            else {
                continue;
            };
            while running.ended.is_none()
                && records < work.batch_records_max
                && bytes < BATCH_BYTES_MAX
            {
                match running.queue.poll(with_headers) {
                    Polled::Record(record) => {
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
                        running.ended = Some(format!(
                            "offset {} and what follows cannot be read from kafka: {error}. Nothing was skipped",
                            expected(running)
                        ));
                    }
                    Polled::Failed(error) => {
                        let trouble = error.to_string();
                        if trouble != running.trouble {
                            warn!(projection = self.projection.name, %partition, trouble, "kafka; it tries again by itself");
                            running.trouble = trouble;
                        }
                    }
                }
            }
            if let (Some(why), true) = (&running.ended, running.held.is_empty()) {
                ended.push((partition.clone(), why.clone()));
            }
        }
        // What was held may be gone with its partition; a time without records would wake us for ever.
        work.held_since = match records {
            0 => None,
            _ => work.held_since.or_else(|| Some(Instant::now())),
        };
        for partition in again {
            let state = State::claim_at(Instant::now() + LOOK_EVERY + jitter(LOOK_EVERY));
            work.partitions.insert(partition, state);
        }
        for (partition, why) in ended {
            self.halt(work, &partition, &why, None).await;
        }
    }

    /// Why the log cannot go on from here; none if it may after all: a broker that lags behind after a
    /// failover, or one that does not answer, is no verdict.
    async fn out_of_range(&self, partition: &TopicPartition, next: NextOffset) -> Option<String> {
        let projection = &self.projection.name;
        let log = match self.cluster.watermarks(partition).await {
            Ok(log) if !(log.low..=log.high).contains(&next.get()) => log,
            Ok(_) => {
                warn!(projection, %partition, %next, "kafka had no such offset a moment ago; claiming again");
                return None;
            }
            Err(error) => {
                warn!(projection, %partition, %next, %error, "kafka has no such offset, and does not say which it has; claiming again");
                return None;
            }
        };
        let (low, high) = (log.low, log.high);
        let reset = format!(
            "`tidegate reset {projection} --to earliest` begins anew with what the log holds"
        );
        Some(if next.get() > high {
            format!(
                "the next offset, {next}, lies beyond the log's end, {high}: the topic was made anew, or records were lost. {reset}"
            )
        } else if low == high {
            format!(
                "the next offset, {next}, is below the log's beginning, {low}, and the log is empty: retention has removed what was between. If that was records, they were never applied; the end of a transaction takes an offset too. {reset}, which is nothing"
            )
        } else {
            format!(
                "the next offset, {next}, is below the log's beginning, {low}: retention has removed what was between. If that was records, they were never applied. Nothing was skipped; {reset}"
            )
        })
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
        let (records, bytes) = held(work);
        records > 0
            && (records >= work.batch_records_max
                || bytes >= BATCH_BYTES_MAX
                || since.elapsed() >= self.limits.batch_linger
                || work.partitions.values().any(hurried))
    }

    /// Chooses the partitions of the next batch, in lock order, and how many records of each: one
    /// partition alone if it is under suspicion, otherwise all that are not, up to a full batch.
    pub(super) fn choose(work: &mut Work) -> Vec<(TopicPartition, usize)> {
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
        let mut room = work.batch_records_max;
        let chosen = match head.limit {
            Some(limit) => vec![(first.clone(), limit.min(room).min(head.held.len()))],
            None => ready
                .iter()
                .filter(|(_, r)| r.limit.is_none() && r.claim.generation == head.claim.generation)
                .map(|(partition, r)| {
                    let count = r.held.len().min(room);
                    room -= count;
                    ((*partition).clone(), count)
                })
                .filter(|(_, count)| *count > 0)
                .collect(),
        };
        work.turn = work.turn.wrapping_add(1);
        chosen
    }

    pub(super) async fn apply_batch(&self, work: &mut Work) {
        let chosen = Self::choose(work);
        work.held_since = None;
        let (Some(connection), Some(generation)) =
            (work.connection.take(), work.generation.clone())
        else {
            return;
        };
        for (partition, _) in &chosen {
            if let Some(State::Running(running)) = work.partitions.get_mut(partition) {
                running.held.records.make_contiguous();
            }
        }
        let parts: Vec<Part<'_>> = chosen
            .iter()
            .filter_map(|(partition, count)| match work.partitions.get(partition) {
                Some(State::Running(running)) => Some(Part {
                    partition,
                    claim: &running.claim,
                    from: running.next,
                    records: &running.held.records.as_slices().0[..*count],
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

    pub(super) async fn batch_applied(
        &self,
        work: &mut Work,
        moved: &[(TopicPartition, usize, NextOffset)],
        applied: &Applied,
        took: Duration,
    ) {
        let mut recovered: Vec<&TopicPartition> = Vec::new();
        for (partition, count, to) in moved {
            if let Some(State::Running(running)) = work.partitions.get_mut(partition) {
                running.held.remove(*count);
                running.next = *to;
                running.limit = running.limit.and_then(|limit| {
                    isolation::after_success(limit, self.limits.batch_records_max)
                });
                running.trouble.clear();
                if std::mem::take(&mut running.retrying) {
                    recovered.push(partition);
                }
                if !running.held.is_empty() {
                    work.held_since.get_or_insert_with(Instant::now);
                }
            }
            self.member.mirror(partition, *to);
        }
        work.unknown = None;
        work.failures = 0;
        let usual = self.limits.batch_records_max;
        work.batch_records_max = work.batch_records_max.saturating_mul(2).min(usual);
        if applied.messages > 0 {
            self.outbox.notify_one();
        }
        debug!(projection = self.projection.name, ?took, messages = applied.messages, totals = ?applied.totals, "applied");
        for partition in recovered {
            info!(projection = self.projection.name, %partition, "applying again");
            self.say(work, partition, Condition::Running, "").await;
        }
    }
}

/// The offset that the next record of a partition has, or a later one.
fn expected(running: &Running) -> NextOffset {
    let last = running.held.records.back();
    last.map_or(running.next, |last| NextOffset::after(last.offset()))
}

/// Records and bytes that are held for all partitions.
fn held(work: &Work) -> (usize, usize) {
    let held = work.partitions.values().filter_map(|state| match state {
        State::Running(running) => Some((running.held.len(), running.held.bytes)),
        _ => None,
    });
    held.fold((0, 0), |(n, b), (records, bytes)| (n + records, b + bytes))
}
