//! A member of a projection's consumer group.
//!
//! One thread polls librdkafka. It serves the rebalances, fetches what writers ask for, and mirrors
//! positions to the group. Two sets are kept apart: what the group has *assigned* to this member,
//! and what it *fetches*. An assignment fetches nothing by itself: the writer claims the partition
//! in Postgres first and then asks for it from the position it has read. A lost connection, a fence,
//! a reset and a rebalance so all end in the same way, claim and fetch, and the poll thread never
//! waits for the database.
//!
//! There is deliberately no seek, no pause, and no committed offset that is read.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::{Notify, mpsc as async_mpsc, oneshot};
use tracing::{error, warn};

use super::failure::MemberError;
use super::group::{Callbacks, Group, State, WriterSide};
use super::membership::{Assignment, Inputs, MemberSettings};
use super::native;
use super::queue::{Progress, Queue};
use super::settings::GroupProtocol;
use crate::types::{NextOffset, TopicPartition};

const POLL: Duration = Duration::from_millis(20);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// How long to wait for the broker's answer when a member leaves, with all partitions given up already.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

enum Command {
    Assign(Vec<TopicPartition>),
    Fetch {
        partition: TopicPartition,
        from: NextOffset,
        answer: oneshot::Sender<Fetched>,
    },
    Unfetch(TopicPartition),
    Passed {
        partition: TopicPartition,
        answer: oneshot::Sender<NextOffset>,
    },
    JoinAnew,
    Stop,
}

/// What became of a request to fetch.
pub(crate) enum Fetched {
    /// Records from exactly the position asked for are in this queue, or will be.
    Yes(Arc<Queue>),
    /// The group has given the partition to somebody else meanwhile.
    NotAssigned,
    /// librdkafka refused.
    Failed(KafkaError),
}

/// Partitions with the offsets where to go on with them.
fn positions<'p>(
    partitions: impl Iterator<Item = (&'p TopicPartition, &'p Arc<Progress>)>,
) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for (partition, progress) in partitions {
        let offset = match is_lost() {
            true => Offset::End,
            false => Offset::Offset(progress.next().get()),
        };
        list.add_partition_offset(partition.topic(), partition.partition(), offset)?;
    }
    Ok(list)
}

/// For tests: a fetch that gives nothing, although there are records.
fn is_lost() -> bool {
    fail::fail_point!("kafka-fetch-lost", |_| true);
    false
}

/// A member that has joined, with what its writers need.
pub(crate) struct Joined {
    pub(crate) member: Member,
    /// One for each writer.
    pub(crate) inputs: Vec<Inputs>,
    /// Resolves when the member has left the group, or cannot go on.
    pub(crate) ended: oneshot::Receiver<Result<(), MemberError>>,
}

/// A running member. Cheap to clone; stops when told to.
#[derive(Clone)]
pub(crate) struct Member {
    commands: mpsc::Sender<Command>,
    group: Arc<Group>,
}

impl Member {
    /// Joins the group. The member ends when `stop` is called, or when it cannot go on.
    pub(crate) fn join(settings: MemberSettings<'_>) -> KafkaResult<Joined> {
        let mut inputs = Vec::new();
        let mut writers = Vec::new();
        for _ in 0..settings.writers.max(1) {
            let (sender, receiver) = async_mpsc::unbounded_channel();
            let (wake, abort) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            writers.push(WriterSide {
                inputs: sender,
                wake: Arc::clone(&wake),
                abort: Arc::clone(&abort),
            });
            inputs.push(Inputs {
                inputs: receiver,
                wake,
                abort,
            });
        }
        let config = settings.connection.consumer(
            &settings.client_id,
            &settings.group,
            settings.protocol,
            settings.instance_id.as_deref(),
            settings.prefetch,
        );
        let group = Arc::new(Group {
            name: settings.group.clone(),
            by_hand: matches!(settings.assignment, Assignment::ByHand),
            writers,
            drain_max: settings.drain_max,
            state: Mutex::new(State {
                rebalancing: Some(Instant::now()),
                ..State::default()
            }),
        });
        let client = settings.connection.client();
        let consumer: BaseConsumer<Callbacks> =
            config.create_with_context(Callbacks(Arc::clone(&group), client))?;
        let (commands, requests) = mpsc::channel();
        let (ended, end) = oneshot::channel();
        let mut thread = PollThread {
            group: Arc::clone(&group),
            consumer: Arc::new(consumer),
            queues: HashMap::new(),
            protocol: settings.protocol,
            instance_id: settings.instance_id,
            topics: match settings.assignment {
                Assignment::Group(topics) => topics,
                Assignment::ByHand => Vec::new(),
            },
            trouble: String::new(),
        };
        thread.subscribe()?;
        let spawned = thread::Builder::new()
            .name(format!("kafka {}", settings.group))
            .spawn(move || {
                let result = thread.run(&requests);
                leave(thread);
                let _ = ended.send(result);
            });
        if let Err(error) = spawned {
            return Err(KafkaError::ClientCreation(error.to_string()));
        }
        Ok(Joined {
            member: Self { commands, group },
            inputs,
            ended: end,
        })
    }

    /// Has partitions read that are not yet: for a member without a group.
    pub(crate) fn assign(&self, partitions: Vec<TopicPartition>) {
        let _ = self.commands.send(Command::Assign(partitions));
    }

    /// Asks for records from `from` on. Forgets all that is queued for the partition.
    pub(crate) fn fetch(
        &self,
        partition: &TopicPartition,
        from: NextOffset,
    ) -> oneshot::Receiver<Fetched> {
        let (answer, answered) = oneshot::channel();
        let _ = self.commands.send(Command::Fetch {
            partition: partition.clone(),
            from,
            answer,
        });
        answered
    }

    /// Stops fetching a partition that stays assigned.
    pub(crate) fn unfetch(&self, partition: &TopicPartition) {
        let _ = self.commands.send(Command::Unfetch(partition.clone()));
    }

    /// Asks how far the records that were taken from a partition's queue reach: everything below the answer
    /// was handed over, or is no record, such as the end of a transaction. It belongs to the fetch whose
    /// records are being taken, so it may be believed once one of them has come.
    pub(crate) fn passed(&self, partition: &TopicPartition) -> oneshot::Receiver<NextOffset> {
        let (answer, answered) = oneshot::channel();
        let _ = self.commands.send(Command::Passed {
            partition: partition.clone(),
            answer,
        });
        answered
    }

    /// What is fetched, and how far it was handed over.
    pub(super) fn fetching(&self) -> BTreeMap<TopicPartition, Arc<Progress>> {
        self.group.state().fetching.clone()
    }

    /// Copies a durable position to the group soon (I7).
    pub(crate) fn mirror(&self, partition: &TopicPartition, next: NextOffset) {
        if self.group.by_hand {
            return; // the group's offsets are the live generation's
        }
        self.group.state().mirror.insert(partition.clone(), next);
    }

    /// Gives everything up and has the group share its partitions again.
    pub(crate) fn join_anew(&self) {
        let _ = self.commands.send(Command::JoinAnew);
    }

    /// Leaves the group: everything is revoked first, and drained.
    pub(crate) fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }
}

/// Closing the consumer leaves the group, and waits for the answer without a bound: on a thread of its own,
/// which is left behind if the broker does not answer. The process is about to end then.
fn leave(thread: PollThread) {
    let group = thread.group.name.clone();
    let (left, has_left) = mpsc::channel::<()>();
    let spawned = thread::Builder::new()
        .name(format!("leave {group}"))
        .spawn(move || {
            drop(thread);
            drop(left);
        });
    if spawned.is_ok()
        && has_left.recv_timeout(LEAVE_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout)
    {
        warn!(
            group,
            "left without the broker's answer; it will notice when the session ends"
        );
    }
}

/// What writers want: records of a partition from an offset on, or none any more. The newest wish counts.
type Changes = BTreeMap<TopicPartition, Option<(NextOffset, oneshot::Sender<Fetched>)>>;

struct PollThread {
    group: Arc<Group>,
    consumer: Arc<BaseConsumer<Callbacks>>,
    queues: HashMap<TopicPartition, Arc<Queue>>,
    protocol: GroupProtocol,
    instance_id: Option<String>,
    topics: Vec<String>,
    /// The last trouble of the whole client, so that it is not said again and again.
    trouble: String,
}

impl PollThread {
    fn run(&mut self, requests: &mpsc::Receiver<Command>) -> Result<(), MemberError> {
        let group = Arc::clone(&self.group);
        let mut stop_by: Option<Instant> = None;
        loop {
            match self.consumer.poll(POLL) {
                None => {}
                Some(Ok(message)) => {
                    // Queues are split before they are assigned, so nothing should arrive here. If it
                    // does, a partition's order is in doubt.
                    error!(
                        group = group.name,
                        topic = message.topic(),
                        partition = message.partition(),
                        offset = message.offset(),
                        "a record arrived outside its partition's queue"
                    );
                    return Err(MemberError::Client(KafkaError::MessageConsumptionFatal(
                        RDKafkaErrorCode::Inconsistent,
                    )));
                }
                // A member that is about to leave may be told so by its successor.
                Some(Err(KafkaError::MessageConsumptionFatal(_))) if stop_by.is_some() => {
                    return Ok(());
                }
                Some(Err(KafkaError::MessageConsumptionFatal(code))) => {
                    let id = self.instance_id.as_deref();
                    return Err(MemberError::fatal(code, &group.name, id));
                }
                Some(Err(KafkaError::MessageConsumption(
                    RDKafkaErrorCode::InconsistentGroupProtocol,
                ))) if stop_by.is_none() => {
                    return Err(MemberError::OtherProtocol {
                        group: group.name.clone(),
                        mine: self.protocol,
                    });
                }
                Some(Err(error)) => {
                    let trouble = error.to_string();
                    if trouble != self.trouble {
                        warn!(
                            group = group.name,
                            trouble, "kafka; it tries again by itself"
                        );
                        self.trouble = trouble;
                    }
                }
            }
            let mut changes = Changes::new();
            for command in requests.try_iter() {
                match command {
                    Command::Assign(partitions) => group.hand_out(&partitions),
                    Command::Fetch {
                        partition,
                        from,
                        answer,
                    } => {
                        changes.insert(partition, Some((from, answer)));
                    }
                    Command::Passed { partition, answer } => {
                        if let Some(passed) = self.passed(&partition) {
                            let _ = answer.send(passed);
                            group.writers[group.writer(&partition)].wake.notify_one();
                        }
                    }
                    Command::Unfetch(partition) => {
                        changes.insert(partition, None);
                    }
                    Command::JoinAnew if stop_by.is_none() => {
                        self.consumer.unsubscribe();
                        self.subscribe().map_err(MemberError::Client)?;
                    }
                    Command::JoinAnew => {}
                    Command::Stop if group.by_hand => {
                        let all: Vec<_> = group.state().assigned.iter().cloned().collect();
                        group.revoked(&self.consumer, &all);
                        return Ok(());
                    }
                    Command::Stop if stop_by.is_none() => {
                        stop_by = Some(Instant::now() + STOP_TIMEOUT.max(group.drain_max * 2));
                        self.consumer.unsubscribe();
                    }
                    Command::Stop => {}
                }
            }
            self.change_fetching(changes)?;
            if group.state().mirroring.may_begin() {
                group.mirror(&self.consumer);
            }
            if let Some(by) = stop_by {
                let (empty, answered) = {
                    let state = group.state();
                    (state.assigned.is_empty(), state.mirroring.all_answered())
                };
                // librdkafka leaves the group once all commits are answered, and not if it is closed before.
                if empty && answered || Instant::now() >= by {
                    let _ = self.consumer.poll(POLL);
                    return Ok(());
                }
                if empty {
                    stop_by = Some(by.min(Instant::now() + LEAVE_TIMEOUT));
                }
            }
        }
    }

    fn subscribe(&self) -> KafkaResult<()> {
        if self.group.by_hand {
            return Ok(());
        }
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        self.consumer.subscribe(&topics)
    }

    /// Begins and ends fetching, all that was asked for at once. librdkafka drops what it holds of a
    /// partition that is unassigned, and begins at exactly the offset with which it is assigned.
    fn change_fetching(&mut self, changes: Changes) -> Result<(), MemberError> {
        let group = Arc::clone(&self.group);
        let mut stop = TopicPartitionList::new();
        let mut begin = Vec::new();
        for (partition, change) in changes {
            if group.state().fetching.remove(&partition).is_some() {
                stop.add_partition(partition.topic(), partition.partition());
            }
            let Some((from, answer)) = change else {
                continue;
            };
            if !group.state().assigned.contains(&partition) {
                self.answer(&partition, answer, Fetched::NotAssigned);
                continue;
            }
            match self.queue(&partition) {
                Ok(queue) => {
                    queue.progress().begin(from);
                    begin.push((partition, queue, answer));
                }
                Err(error) => self.answer(&partition, answer, Fetched::Failed(error)),
            }
        }
        if stop.count() == 0 && begin.is_empty() {
            return Ok(());
        }
        let new = begin.iter().map(|(p, queue, _)| (p, queue.progress()));
        let done = if group.is_eager(&self.consumer) {
            // All of the list begins anew, each partition where its queue is.
            let fetching = group.state().fetching.clone();
            let all = positions(fetching.iter().chain(new));
            let assigned = all.and_then(|all| self.consumer.assign(&all));
            // Otherwise nothing would be fetched any more, and nobody would know.
            Ok(assigned.map_err(MemberError::Client)?)
        } else {
            let stopped = match stop.count() {
                0 => Ok(()),
                _ => self.consumer.incremental_unassign(&stop),
            };
            let new = stopped.and_then(|()| positions(new));
            new.and_then(|new| self.consumer.incremental_assign(&new))
        };
        for (partition, queue, answer) in begin {
            let fetched = match &done {
                Ok(()) => {
                    let progress = Arc::clone(queue.progress());
                    group.state().fetching.insert(partition.clone(), progress);
                    Fetched::Yes(queue)
                }
                Err(error) => Fetched::Failed(error.clone()),
            };
            self.answer(&partition, answer, fetched);
        }
        Ok(())
    }

    fn answer(&self, partition: &TopicPartition, to: oneshot::Sender<Fetched>, fetched: Fetched) {
        let _ = to.send(fetched);
        let writer = &self.group.writers[self.group.writer(partition)];
        writer.wake.notify_one();
    }

    /// librdkafka's own count of what was taken, markers of transactions included. It is undone when a
    /// fetch ends, which happens after `incremental_unassign` has returned.
    fn passed(&self, partition: &TopicPartition) -> Option<NextOffset> {
        let positions = self.consumer.position().ok()?;
        let found = positions.find_partition(partition.topic(), partition.partition())?;
        match found.offset() {
            Offset::Offset(next) => Some(NextOffset::from_raw(next)),
            _ => None,
        }
    }

    /// The partition's queue, split off before the first assignment, or its records would begin on
    /// the main queue.
    fn queue(&mut self, partition: &TopicPartition) -> KafkaResult<Arc<Queue>> {
        if let Some(queue) = self.queues.get(partition) {
            return Ok(Arc::clone(queue));
        }
        let split = self
            .consumer
            .split_partition_queue(partition.topic(), partition.partition());
        let messages = native::Queue::of(self.consumer.client(), partition);
        let (mut bell, messages) = split.zip(messages).ok_or_else(|| {
            KafkaError::Subscription(format!("{partition} cannot be read on its own"))
        })?;
        let group = Arc::clone(&self.group);
        let wake = Arc::clone(&group.writers[group.writer(partition)].wake);
        bell.set_nonempty_callback(move || wake.notify_one());
        let queue = Arc::new(Queue::new(messages, bell));
        self.queues.insert(partition.clone(), Arc::clone(&queue));
        Ok(queue)
    }
}
