//! From assigned to fetching: claims, waits, and the look for a fence.

use std::time::Instant;

use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{Held, LOOK_EVERY, Running, State, Work, Writer, jitter};
use crate::kafka::Fetched;
use crate::runtime::apply::Generation;
use crate::runtime::claim::{self, Waits};
use crate::store;
use crate::store::position::{self, Claimed};
use crate::types::TopicPartition;

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

    pub(super) fn claimed(
        &self,
        work: &mut Work,
        partition: &TopicPartition,
        generation: Generation,
        claimed: Claimed,
    ) {
        let (projection, next) = (&self.projection.name, claimed.next);
        if let Some(unknown) = work.unknown {
            let outcome = match claimed.batch_id == Some(unknown) {
                true => "it had happened: already committed by me",
                false => "it had not happened here",
            };
            info!(projection, %partition, %next, outcome, "an unanswered commit is settled by the position");
        }
        info!(projection, %partition, generation = generation.number, epoch = claimed.claim.epoch, %next, "claimed");
        work.generation = Some(generation);
        self.member.mirror(partition, next);
        let answer = self.member.fetch(partition, next);
        let state = State::Fetching { claimed, answer };
        work.partitions.insert(partition.clone(), state);
    }

    pub(super) fn wait(&self, work: &mut Work, partition: &TopicPartition, why: Waits) {
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
        let start = [(partition.clone(), log.low)];
        let limit = self.database.timeouts.statement;
        let insert = position::insert(connection, projection, generation, &start);
        match store::within("adding a partition", limit, insert).await {
            Ok(()) => info!(projection, %partition, next = log.low, "a new partition"),
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
                    queue,
                    held: Held::default(),
                    limit: None,
                    ended: None,
                    retrying: false,
                    trouble: String::new(),
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
