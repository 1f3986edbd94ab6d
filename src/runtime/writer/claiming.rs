//! From assigned to fetching: claims, waits, and the look for a fence.

use std::time::Instant;

use tokio::sync::oneshot;
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::batch::Chosen;
use super::{Held, LOOK_EVERY, Passed, Running, State, Work, Writer, jitter};
use crate::failpoint;
use crate::health::Doing;
use crate::kafka::Fetched;
use crate::runtime::apply::Generation;
use crate::runtime::claim::{self, Role, Waits};
use crate::runtime::stragglers::ending_stragglers;
use crate::store;
use crate::store::position::{self, Claim, Claimed};
use crate::telemetry;
use crate::types::{NextOffset, TopicPartition};

impl Writer {
    /// Notices a fence while there is nothing to apply: a reset must not wait for the next record.
    pub(super) async fn look(&self, work: &mut Work) {
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
        self.ask_passed(work);
        if work.unconfirmed && self.role == Role::Live {
            self.confirm(work).await;
        }
        self.look_at_topics(work).await;
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
                telemetry::fenced(name);
                // Jitter: two that believe they own it must not steal it from each other in step.
                *state = State::claim_at(Instant::now() + jitter(LOOK_EVERY));
            }
        }
    }

    pub(super) async fn claim_due(&self, work: &mut Work) {
        let now = Instant::now();
        for state in work.partitions.values_mut() {
            if matches!(state, State::Halted { again: Some(again), .. } if *again <= now) {
                *state = State::claim_at(now);
            }
        }
        let due: Vec<TopicPartition> = work
            .partitions
            .iter()
            .filter(|(_, s)| matches!(s, State::Claiming { not_before, .. } if *not_before <= now))
            .map(|(partition, _)| partition.clone())
            .collect();
        for partition in due {
            let topic_id = self.topic_ids.borrow().get(partition.topic()).copied();
            let Some(topic_id) = topic_id else {
                self.wait(work, &partition, Waits::TopicUnknown);
                continue;
            };
            let Some(connection) = &mut work.connection else {
                return;
            };
            let timeouts = &self.database.timeouts;
            let claim = claim::claim(
                connection,
                &self.projection,
                self.role,
                &partition,
                topic_id,
                &self.owner,
                timeouts,
            );
            let claim = ending_stragglers(
                &self.database,
                &self.owner,
                &self.projection.name,
                store::within("claiming", timeouts.transaction(), claim),
            );
            match claim.await {
                Ok(Ok((generation, claimed))) => {
                    self.claimed(work, &partition, generation, claimed, topic_id)
                        .await;
                }
                Ok(Err(Waits::NewPartition { generation })) => {
                    self.add_partition(work, &partition, generation).await;
                }
                Ok(Err(waits)) => self.wait(work, &partition, waits),
                Err(error) => return self.store_failed(work, &error),
            }
        }
    }

    pub(super) async fn claimed(
        &self,
        work: &mut Work,
        partition: &TopicPartition,
        generation: Generation,
        claimed: Claimed,
        topic_id: Option<Uuid>,
    ) {
        let (projection, next) = (&self.projection.name, claimed.next);
        if let Some(unknown) = work.unknown {
            let (name, outcome) = match claimed.batch_id == Some(unknown) {
                true => ("committed", "it had happened: already committed by me"),
                false => ("not_committed", "it had not happened here"),
            };
            telemetry::unanswered_commit(projection, name);
            info!(projection, %partition, %next, outcome, "an unanswered commit is settled by the position");
            failpoint::reach(failpoint::UNKNOWN_AFTER_CLAIM);
        }
        telemetry::claimed(projection);
        info!(projection, %partition, generation = generation.number, epoch = claimed.claim.epoch, %next, "claimed");
        work.generation = Some(generation);
        self.member.mirror(partition, next);
        if let Some(why) = another_topic(projection, partition, &claimed.claim, topic_id) {
            // What was asked for some seconds ago may be older than what an operator has just accepted.
            if self
                .cluster
                .topic_id(partition.topic())
                .await
                .ok()
                .flatten()
                != topic_id
            {
                let again = State::claim_at(Instant::now() + LOOK_EVERY);
                work.partitions.insert(partition.clone(), again);
                return;
            }
            let claim = claimed.claim;
            let halted = State::Halted {
                claim,
                doing: Doing::Halted,
                why: why.clone(),
                again: None,
            };
            work.partitions.insert(partition.clone(), halted);
            let why = format!("{why} Nothing of it was applied.");
            return self.halt_in_doubt(work, partition, &why).await;
        }
        // The last applied record is fetched again, to see that the log still has it.
        let from = claimed
            .anchor
            .map_or(next, |anchor| NextOffset::from_raw(anchor.offset));
        let answer = self.member.fetch(partition, from);
        let state = State::Fetching { claimed, answer };
        work.partitions.insert(partition.clone(), state);
    }

    /// Positions that were committed without waiting for the disk are mirrored once they are durable (I7).
    async fn confirm(&self, work: &mut Work) {
        let Some(connection) = &mut work.connection else {
            return;
        };
        let claims: Vec<_> = work
            .partitions
            .iter()
            .filter_map(|(partition, state)| Some((partition, state.claim()?)))
            .collect();
        let (projection, timeouts) = (&self.projection.name, &self.database.timeouts);
        let name = format!("tidegate {} confirm {projection}", self.owner);
        failpoint::reach(failpoint::MIRROR_BEFORE_CONFIRM);
        let confirm = position::confirm(connection, projection, &claims, &name, timeouts);
        match store::within("confirming positions", timeouts.transaction(), confirm).await {
            Ok(durable) => {
                failpoint::reach(failpoint::MIRROR_AFTER_CONFIRM);
                work.unconfirmed = false;
                for (partition, next) in durable {
                    self.member.mirror(&partition, next);
                }
            }
            // What is left open is closed with the connection.
            Err(error) => self.connection_lost(work, &error.to_string()),
        }
    }

    /// A topic may be deleted and made again while it is read.
    async fn look_at_topics(&self, work: &mut Work) {
        let ids = self.topic_ids.borrow().clone();
        let projection = &self.projection.name;
        let running = work.partitions.iter().filter_map(|(partition, state)| {
            let State::Running(running) = state else {
                return None;
            };
            let topic_id = ids.get(partition.topic()).copied().flatten();
            let why = another_topic(projection, partition, &running.claim, topic_id)?;
            let next = running.next;
            let why = format!(
                "{why} It was read while this happened, the next offset is {next}: what was applied in the last seconds may be of the new topic."
            );
            Some((partition.clone(), why))
        });
        for (partition, why) in running.collect::<Vec<_>>() {
            self.halt_in_doubt(work, &partition, &why).await;
        }
    }

    /// Asks how far partitions without records are.
    fn ask_passed(&self, work: &mut Work) {
        for (partition, state) in &mut work.partitions {
            if let State::Running(running) = state
                && running.held.is_empty()
                && matches!(running.passed, Passed::Askable)
            {
                running.passed = Passed::Asked(self.member.passed(partition));
            }
        }
    }

    /// The next partition whose position can move although no record has come: an aborted transaction and
    /// the end of every one take offsets, and a position that stayed below them would fall behind the log's
    /// beginning one day.
    pub(super) fn passed(&self, work: &mut Work) -> Option<Chosen> {
        work.partitions.iter_mut().find_map(|(partition, state)| {
            let State::Running(running) = state else {
                return None;
            };
            if let Passed::Asked(answer) = &mut running.passed {
                match answer.try_recv() {
                    Ok(passed) => running.passed = Passed::To(passed),
                    Err(oneshot::error::TryRecvError::Empty) => return None,
                    Err(oneshot::error::TryRecvError::Closed) => running.passed = Passed::Askable,
                }
            }
            let bound = self.bound(partition);
            // With records held, those come first; then it is asked again. What stands before a record that is
            // behind the bound is no record.
            let to = match (&running.passed, running.held.records.front()) {
                (_, Some(first)) if bound.admits(first.offset()) => bound,
                (Passed::To(to), None) => {
                    let to = (*to).min(bound);
                    running.passed = Passed::Askable;
                    to
                }
                (Passed::To(_), Some(_)) => {
                    running.passed = Passed::Askable;
                    return None;
                }
                _ => return None,
            };
            let moves = running.ended.is_none() && running.next < to;
            moves.then(|| Chosen {
                partition: partition.clone(),
                count: 0,
                to,
            })
        })
    }

    pub(super) fn wait(&self, work: &mut Work, partition: &TopicPartition, why: Waits) {
        let Some(State::Claiming { not_before, waits }) = work.partitions.get_mut(partition) else {
            return;
        };
        *not_before = Instant::now() + LOOK_EVERY + jitter(LOOK_EVERY);
        if why == Waits::NotBuilding {
            debug!(projection = self.projection.name, %partition, why = %why, "not claimed");
        } else if waits.as_ref() != Some(&why) {
            warn!(projection = self.projection.name, %partition, why = %why, "not claimed; trying again");
            *waits = Some(why);
        }
    }

    /// A partition that appeared after the first start begins at its oldest record.
    pub(super) async fn add_partition(
        &self,
        work: &mut Work,
        partition: &TopicPartition,
        generation: i32,
    ) {
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
        let limit = self.database.timeouts.statement;
        failpoint::reach(failpoint::PARTITION_BEFORE_INSERT);
        let insert = claim::add(
            connection, projection, self.role, generation, partition, log.low,
        );
        match store::within("adding a partition", limit, insert).await {
            Ok(Some(next)) => {
                info!(projection, %partition, next, "a new partition");
                failpoint::reach(failpoint::PARTITION_AFTER_INSERT);
            }
            Ok(None) => self.wait(work, partition, Waits::NewPartition { generation }),
            Err(error) => self.store_failed(work, &error),
        }
    }

    /// Partitions whose fetch was answered begin to run.
    pub(super) fn begin_fetched(&self, work: &mut Work) {
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
                    applied_time: None,
                    queue,
                    held: Held::default(),
                    anchor: claimed.anchor,
                    passed: Passed::default(),
                    limit: None,
                    ended: None,
                    condemned: None,
                    retries: 0,
                }),
                Fetched::NotAssigned => State::claim_at(Instant::now() + LOOK_EVERY),
                Fetched::Failed(error) => {
                    warn!(projection = self.projection.name, %partition, %error, "kafka refused to fetch; claiming again");
                    State::claim_at(Instant::now() + LOOK_EVERY + jitter(LOOK_EVERY))
                }
            };
        }
    }
}

/// Why a topic is not the one whose records were applied; none if it is, or if nobody can tell.
fn another_topic(
    projection: &str,
    partition: &TopicPartition,
    claim: &Claim,
    topic_id: Option<Uuid>,
) -> Option<String> {
    let (stored, present) = (claim.topic_id?, topic_id?);
    let topic = partition.topic();
    (stored != present).then(|| {
        format!(
            "topic {topic} was deleted and made again (its id was {stored} and is {present}): offsets of the old log say nothing about this one. {}",
            what_next(projection, topic)
        )
    })
}

/// What an operator can do about a log that is another one.
pub(super) fn what_next(projection: &str, topic: &str) -> String {
    format!(
        "`tidegate accept-topic {projection} {topic}` goes on with the new log from its beginning and keeps the tables; `tidegate reset {projection} --to earliest --new-log {topic}` empties them first. Both send its messages under new ids; if it is the same log, `tidegate accept-topic {projection} {topic} --same-log` goes on."
    )
}
