//! What librdkafka's callbacks, the poll thread and the writers of a member share.
//!
//! What changes is behind one lock. The consumer is not in here: it must be dropped on its thread.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::{Notify, mpsc as async_mpsc};
use tracing::{debug, error, info, warn};

use super::client::Client;
use super::commit::{Mirroring, commit};
use super::membership::Input;
use super::queue::Progress;
use crate::failpoint;
use crate::telemetry;
use crate::types::{NextOffset, TopicPartition};

/// How long a writer may take to give up a batch that was not done in time.
pub(crate) const ABORT_TIMEOUT: Duration = Duration::from_secs(3);

/// The member's side of a writer.
pub(super) struct WriterSide {
    pub(super) inputs: async_mpsc::UnboundedSender<Input>,
    pub(super) wake: Arc<Notify>,
    pub(super) abort: Arc<Notify>,
}

/// The callback context.
pub(super) struct Callbacks(pub(super) Arc<Group>, pub(super) Client);

/// What all of them share.
pub(super) struct Group {
    pub(super) name: String,
    pub(super) by_hand: bool,
    pub(super) writers: Vec<WriterSide>,
    pub(super) drain_max: Duration,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) assigned: HashSet<TopicPartition>,
    pub(super) fetching: BTreeMap<TopicPartition, Arc<Progress>>,
    /// Durable positions not yet copied to the group.
    pub(super) mirror: BTreeMap<TopicPartition, NextOffset>,
    pub(super) mirroring: Mirroring,
    /// Since when an assignment is waited for.
    pub(super) rebalancing: Option<Instant>,
}

impl Group {
    // The lock is held for look-ups only, never across a call to librdkafka or an await.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A partition's writer: the same for a partition number of all topics, since their keys agree.
    pub(super) fn writer(&self, partition: &TopicPartition) -> usize {
        usize::try_from(partition.partition()).unwrap_or(0) % self.writers.len()
    }

    fn by_writer(&self, partitions: &[TopicPartition]) -> Vec<(usize, Vec<TopicPartition>)> {
        let mut shares: BTreeMap<usize, Vec<TopicPartition>> = BTreeMap::new();
        for partition in partitions {
            let share = shares.entry(self.writer(partition)).or_default();
            share.push(partition.clone());
        }
        shares.into_iter().collect()
    }

    /// Whether every change is one of the whole list of partitions. Asked of librdkafka, which goes by what the group
    /// has agreed on. By hand it takes both; a partition that is taken out of the list for a moment, before the client
    /// knows its topic, would lose its queue.
    pub(super) fn is_eager(&self, consumer: &BaseConsumer<Callbacks>) -> bool {
        !self.by_hand
            && !matches!(
                consumer.rebalance_protocol(),
                RebalanceProtocol::Cooperative
            )
    }

    fn assigned(&self, consumer: &BaseConsumer<Callbacks>, partitions: &[TopicPartition]) {
        info!(group = self.name, partitions = %list(partitions), "assigned");
        // Fetches nothing yet. The call itself is needed: the group waits for it.
        let nothing = TopicPartitionList::new();
        let answered = match self.is_eager(consumer) {
            true => consumer.assign(&nothing),
            false => consumer.incremental_assign(&nothing),
        };
        if let Err(error) = answered {
            error!(group = self.name, %error, "the assignment could not be answered");
        }
        let since = self.state().rebalancing.take();
        telemetry::rebalanced(&self.name, since.map(|since| since.elapsed()));
        self.hand_out(partitions);
    }

    pub(super) fn hand_out(&self, partitions: &[TopicPartition]) {
        self.state().assigned.extend(partitions.iter().cloned());
        for (writer, share) in self.by_writer(partitions) {
            let _ = self.writers[writer].inputs.send(Input::Assigned(share));
        }
    }

    // The partitions are somebody else's when this returns. Returning before the writers have
    // stopped is safe (the fence) but wasteful; not returning costs us the group. Hence the bound.
    pub(super) fn revoked(
        &self,
        consumer: &BaseConsumer<Callbacks>,
        partitions: &[TopicPartition],
    ) {
        self.state().rebalancing = Some(Instant::now());
        let (done, all_done) = mpsc::channel::<()>();
        let shares = self.by_writer(partitions);
        for (writer, share) in &shares {
            let revoked = Input::Revoked {
                partitions: share.clone(),
                done: done.clone(),
            };
            let _ = self.writers[*writer].inputs.send(revoked);
        }
        drop(done);
        let late = |limit| all_done.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        if late(self.drain_max) {
            warn!(group = self.name, partitions = %list(partitions), drain_max = ?self.drain_max,
                "the open batch was not done in time; aborting it");
            for (writer, _) in &shares {
                self.writers[*writer].abort.notify_one();
            }
            if late(ABORT_TIMEOUT) {
                warn!(group = self.name, partitions = %list(partitions), "not aborted in time; the fence decides");
            }
        }
        self.mirror(consumer);
        let mut stop = TopicPartitionList::new();
        {
            let mut state = self.state();
            for partition in partitions {
                state.assigned.remove(partition);
                if state.fetching.remove(partition).is_some() {
                    stop.add_partition(partition.topic(), partition.partition());
                }
            }
        }
        failpoint::reach(failpoint::REVOKE_BEFORE_ANSWER);
        let answered = match self.is_eager(consumer) {
            true => consumer.unassign(),
            false => consumer.incremental_unassign(&stop),
        };
        if let Err(error) = answered {
            error!(group = self.name, %error, "the revocation could not be answered");
        }
        info!(group = self.name, partitions = %list(partitions), "revoked");
    }

    /// Copies durable positions to the group, for lag tools (I7), but only of what is still assigned: a batch
    /// that outlasts its revoke must not overwrite what the next owner says. Failures do not matter.
    pub(super) fn mirror(&self, consumer: &BaseConsumer<Callbacks>) {
        let positions = {
            let mut state = self.state();
            let mut positions = std::mem::take(&mut state.mirror);
            positions.retain(|partition, _| state.assigned.contains(partition));
            positions
        };
        if positions.is_empty() {
            return;
        }
        let mut offsets = TopicPartitionList::new();
        for (partition, next) in positions {
            let offset = Offset::Offset(next.get());
            if offsets
                .add_partition_offset(partition.topic(), partition.partition(), offset)
                .is_err()
            {
                warn!(group = self.name, %partition, %next, "not an offset kafka takes");
            }
        }
        failpoint::reach(failpoint::MIRROR_BEFORE_COMMIT);
        self.state().mirroring.begin();
        if let Err(error) = commit(consumer, &offsets) {
            self.state().mirroring.not_sent();
            telemetry::not_mirrored(&self.name);
            debug!(group = self.name, %error, "positions not mirrored");
        }
        failpoint::reach(failpoint::MIRROR_AFTER_COMMIT);
    }
}

impl ClientContext for Callbacks {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = Client::ENABLE_REFRESH_OAUTH_TOKEN;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.1.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if !self.1.note(&error, reason) {
            debug!(group = self.0.name, %error, reason, "kafka");
        }
    }

    fn generate_oauth_token(&self, set: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.1.generate_oauth_token(set)
    }
}

impl ConsumerContext for Callbacks {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Callbacks>,
        kind: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let partitions: Vec<TopicPartition> = partitions
            .elements()
            .iter()
            .map(|p| TopicPartition::new(p.topic(), p.partition()))
            .collect();
        if kind == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.0.assigned(consumer, &partitions);
        } else {
            self.0.revoked(consumer, &partitions);
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        self.0.state().mirroring.answered();
        if let Err(error) = result {
            telemetry::not_mirrored(&self.0.name);
            debug!(group = self.0.name, %error, "positions not mirrored");
        }
    }
}

/// Partitions for a log line.
fn list(partitions: &[TopicPartition]) -> String {
    let names: Vec<String> = partitions.iter().map(ToString::to_string).collect();
    names.join(" ")
}
