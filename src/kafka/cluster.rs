//! Questions to the cluster: which partitions there are, and what their logs hold.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::groups::GroupInfo;
use rdkafka::{Offset, TopicPartitionList};
use uuid::Uuid;

use super::client::{Client, Refusal};
use super::native;
use super::settings::Connection;
use crate::types::TopicPartition;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks the cluster. The client blocks, so every question runs on a thread that may.
#[derive(Clone)]
pub(crate) struct Cluster {
    consumer: Arc<BaseConsumer<Client>>,
}

/// What a partition's log holds: offsets from `low` on, up to but without `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watermarks {
    pub(crate) low: i64,
    pub(crate) high: i64,
}

/// The cluster gave no answer, or not the one that is needed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error("kafka: {0}")]
    Kafka(#[from] KafkaError),
    #[error("kafka: {error}: {refusal}")]
    NotLetIn { error: KafkaError, refusal: Refusal },
    #[error("topic `{0}` does not exist; create it first")]
    NoTopic(String),
    #[error("the end of the topic was not reached in {0:?}")]
    NoEnd(Duration),
    #[error("the question to kafka was given up: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Takes log lines and errors off the client's queue, where they would pile up.
fn serve(consumer: &BaseConsumer<Client>) {
    // Not a moment would be over with the first line, whatever is behind it.
    while consumer.poll(Duration::from_millis(1)).is_some() {}
}

impl Cluster {
    pub(crate) fn new(connection: &Connection) -> Result<Self, Error> {
        let config = connection.questions("tidegate-questions");
        Ok(Self {
            consumer: Arc::new(config.create_with_context(connection.client())?),
        })
    }

    /// The same, but a log ends where records end that are not committed yet.
    pub(crate) fn reading_uncommitted(connection: &Connection) -> Result<Self, Error> {
        let mut config = connection.questions("tidegate-questions");
        config.set("isolation.level", "read_uncommitted");
        Ok(Self {
            consumer: Arc::new(config.create_with_context(connection.client())?),
        })
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&BaseConsumer<Client>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let consumer = Arc::clone(&self.consumer);
        let asked = tokio::task::spawn_blocking(move || {
            serve(&consumer);
            let answer = question(&consumer);
            if answer.is_err() {
                serve(&consumer); // it may say why
            }
            let refusal = consumer.context().take_refusal(answer.is_ok());
            match (answer, refusal) {
                (Err(Error::Kafka(error)), Some(refusal)) => {
                    Err(Error::NotLetIn { error, refusal })
                }
                (answer, _) => answer,
            }
        });
        asked.await?
    }

    /// The partitions of a topic, in order.
    pub(crate) async fn partitions(&self, topic: &str) -> Result<Vec<TopicPartition>, Error> {
        let name = topic.to_owned();
        self.ask(move |consumer| {
            let metadata = consumer.fetch_metadata(Some(&name), ANSWER_TIMEOUT)?;
            let found = metadata.topics().iter().find(|topic| topic.name() == name);
            let mut numbers: Vec<i32> = found
                .filter(|topic| topic.error().is_none())
                .map(|topic| topic.partitions().iter().map(|p| p.id()).collect())
                .unwrap_or_default();
            numbers.sort_unstable();
            if numbers.is_empty() {
                return Err(Error::NoTopic(name));
            }
            let name: Arc<str> = name.into();
            let partition = |number| TopicPartition::new(Arc::clone(&name), number);
            Ok(numbers.into_iter().map(partition).collect())
        })
        .await
    }

    /// How many partitions a topic has, and copies of the one that has fewest; none if there is no such topic.
    pub(crate) async fn copies(&self, topic: &str) -> Result<Option<(usize, usize)>, Error> {
        let name = topic.to_owned();
        self.ask(move |consumer| {
            let metadata = consumer.fetch_metadata(Some(&name), ANSWER_TIMEOUT)?;
            let found = metadata.topics().iter().find(|topic| topic.name() == name);
            let found = found.filter(|topic| topic.error().is_none());
            Ok(found.map(|topic| {
                let partitions = topic.partitions();
                let copies = partitions.iter().map(|p| p.replicas().len()).min();
                (partitions.len(), copies.unwrap_or(0))
            }))
        })
        .await
    }

    /// How many brokers there are.
    pub(crate) async fn brokers(&self) -> Result<usize, Error> {
        self.ask(|consumer| {
            Ok(consumer
                .fetch_metadata(None, ANSWER_TIMEOUT)?
                .brokers()
                .len())
        })
        .await
    }

    /// Kafka's id of a topic: another one once it was deleted and made again. None if the brokers give none.
    pub(crate) async fn topic_id(&self, topic: &str) -> Result<Option<Uuid>, Error> {
        let topic = topic.to_owned();
        self.ask(move |consumer| Ok(native::topic_id(consumer, &topic, ANSWER_TIMEOUT)?))
            .await
    }

    /// The client ids of a consumer group's members, if they agree among themselves; of a group whose members
    /// the brokers assign, nobody. (`DescribeConsumerGroups` knows those too, but librdkafka 2.12 ends the
    /// process when the group's coordinator is away: confluentinc/librdkafka#4605.)
    pub(super) async fn members(&self, group: &str) -> Result<Vec<String>, Error> {
        let group = group.to_owned();
        self.ask(move |consumer| {
            let groups = consumer.fetch_group_list(Some(&group), ANSWER_TIMEOUT)?;
            let members = groups.groups().iter().flat_map(GroupInfo::members);
            Ok(members
                .map(|member| member.client_id().to_owned())
                .collect())
        })
        .await
    }

    /// What a partition's log holds.
    pub(crate) async fn watermarks(&self, partition: &TopicPartition) -> Result<Watermarks, Error> {
        let partition = partition.clone();
        self.ask(move |consumer| {
            let (low, high) = consumer.fetch_watermarks(
                partition.topic(),
                partition.partition(),
                ANSWER_TIMEOUT,
            )?;
            Ok(Watermarks { low, high })
        })
        .await
    }

    /// The first record of each partition that is not older than a moment, in milliseconds since 1970; none where all
    /// are older.
    pub(crate) async fn offsets_at(
        &self,
        partitions: Vec<TopicPartition>,
        timestamp_ms: i64,
    ) -> Result<Vec<Option<i64>>, Error> {
        let consumer = Arc::clone(&self.consumer);
        tokio::task::spawn_blocking(move || {
            serve(&consumer);
            let mut asked = TopicPartitionList::new();
            for partition in &partitions {
                // A negative one would not be a time.
                let at = Offset::Offset(timestamp_ms.max(0));
                asked.add_partition_offset(partition.topic(), partition.partition(), at)?;
            }
            let answers = consumer.offsets_for_times(asked, ANSWER_TIMEOUT)?;
            let answer = |partition: &TopicPartition| {
                let answer = answers.find_partition(partition.topic(), partition.partition());
                let answer = answer.ok_or_else(|| Error::NoTopic(partition.to_string()))?;
                answer.error()?;
                Ok(match answer.offset() {
                    Offset::Offset(offset) => Some(offset),
                    _ => None,
                })
            };
            partitions.iter().map(answer).collect()
        })
        .await?
    }

    /// What the logs of all partitions of some topics hold.
    pub(crate) async fn logs(
        &self,
        topics: &[String],
    ) -> Result<Vec<(TopicPartition, Watermarks)>, Error> {
        let mut logs = Vec::new();
        for topic in topics {
            for partition in self.partitions(topic).await? {
                let watermarks = self.watermarks(&partition).await?;
                logs.push((partition, watermarks));
            }
        }
        Ok(logs)
    }
}
