//! Takes records, cuts a batch, applies it.

use std::time::{Duration, Instant};

use tracing::{debug, error, info};
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
        let running = |state: &State| match state {
            State::Running(running) => running.held.len(),
            _ => 0,
        };
        let mut held: usize = work.partitions.values().map(running).sum();
        let mut bytes: usize = 0;
        let count = work.partitions.len();
        let start = work.turn % count.max(1);
        let mut ended: Vec<(TopicPartition, String)> = Vec::new();
        let mut again: Vec<TopicPartition> = Vec::new();
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
                            again.push(partition.clone());
                            break;
                        }
                        held += 1;
                        bytes += record.size();
                        running.held.push_back(record);
                    }
                    Polled::Nothing => break,
                    Polled::OutOfRange => {
                        let next = running.next.get();
                        match self.cluster.watermarks(partition).await {
                            Ok(log)
                                if running.held.is_empty()
                                    && !(log.low..=log.high).contains(&next) =>
                            {
                                let why = format!(
                                    "the next offset, {next}, is not in the log, which holds {}..{}: records that were not applied are gone (retention), or the topic was made anew. Nothing was skipped; `tidegate reset {} --to earliest` begins anew with what the log holds",
                                    log.low, log.high, self.projection.name
                                );
                                ended.push((partition.clone(), why));
                            }
                            // A broker that lags behind after a failover, or one that does not answer: no verdict.
                            _ => again.push(partition.clone()),
                        }
                        break;
                    }
                    Polled::Failed(error) => {
                        debug!(projection = self.projection.name, %partition, %error, "kafka");
                    }
                }
            }
        }
        if held > 0 && work.held_since.is_none() {
            work.held_since = Some(Instant::now());
        }
        for partition in again {
            let state = State::claim_at(Instant::now() + jitter(LOOK_EVERY));
            work.partitions.insert(partition, state);
        }
        for (partition, why) in ended {
            self.halt(work, &partition, &why).await;
        }
    }

    pub(super) fn batch_is_due(&self, work: &Work) -> bool {
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

    pub(super) async fn batch_applied(
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
        work.unknown = None;
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
}
