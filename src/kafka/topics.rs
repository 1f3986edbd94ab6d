//! Makes and deletes topics, and reads a whole one: for commands. The service does none of it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Offset, TopicPartitionList};

use super::cluster::Error;
use super::queue::copy;
use super::settings::Connection;
use crate::types::{Record, TopicPartition};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

/// The cluster's topics.
pub(crate) struct Topics {
    admin: AdminClient<DefaultClientContext>,
}

impl Topics {
    pub(crate) fn new(connection: &Connection) -> KafkaResult<Self> {
        let admin = connection.questions("tidegate-topics").create()?;
        Ok(Self { admin })
    }

    /// Makes topics, each with as many copies as the cluster gives by default.
    pub(crate) async fn create(&self, topics: &[(&str, i32)]) -> KafkaResult<()> {
        let new: Vec<NewTopic<'_>> = topics
            .iter()
            .map(|(name, partitions)| NewTopic::new(name, *partitions, TopicReplication::Fixed(-1)))
            .collect();
        let results = self.admin.create_topics(&new, &options()).await?;
        match results.into_iter().find_map(Result::err) {
            Some((_, code)) => Err(KafkaError::AdminOp(code)),
            None => Ok(()),
        }
    }

    /// Whether records of a topic are removed that have a later one of their key.
    pub(crate) async fn is_compacted(&self, topic: &str) -> KafkaResult<bool> {
        let asked = [ResourceSpecifier::Topic(topic)];
        let results = self.admin.describe_configs(&asked, &options()).await?;
        let config = results.into_iter().next();
        let config = config.ok_or(KafkaError::NoMessageReceived)?;
        let config = config.map_err(KafkaError::AdminOp)?;
        let policy = config
            .get("cleanup.policy")
            .and_then(|entry| entry.value.as_deref());
        Ok(policy.is_some_and(|policy| policy.contains("compact")))
    }

    /// Deletes topics. Those that do not exist count as deleted.
    pub(crate) async fn delete(&self, topics: &[&str]) -> KafkaResult<()> {
        self.admin.delete_topics(topics, &options()).await?;
        Ok(())
    }

    /// Deletes the offsets kept for consumer groups. Those with members stay.
    pub(crate) async fn delete_groups(&self, groups: &[&str]) -> KafkaResult<()> {
        self.admin.delete_groups(groups, &options()).await?;
        Ok(())
    }
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(ANSWER_TIMEOUT))
        .operation_timeout(Some(ANSWER_TIMEOUT))
}

/// All committed records of some partitions, from the first to the present end. Blocks.
///
/// # Errors
/// When the end is not reached within `limit`.
pub(crate) fn read_all(
    connection: &Connection,
    partitions: &[TopicPartition],
    limit: Duration,
) -> Result<Vec<Record>, Error> {
    let consumer: BaseConsumer = connection
        .questions("tidegate-reader")
        // The client wants a name for a group, which is neither joined nor written to.
        .set("group.id", "tidegate-reader")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .create()?;
    let mut from = TopicPartitionList::new();
    for partition in partitions {
        from.add_partition_offset(partition.topic(), partition.partition(), Offset::Beginning)?;
    }
    consumer.assign(&from)?;
    let until = Instant::now() + limit;
    let mut open: BTreeSet<i32> = partitions.iter().map(TopicPartition::partition).collect();
    let mut records = Vec::new();
    while !open.is_empty() {
        match consumer.poll(POLL) {
            Some(Ok(message)) => records.push(copy(&message, true)),
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                open.remove(&partition);
            }
            Some(Err(error)) => return Err(error.into()),
            None if Instant::now() >= until => return Err(Error::NoEnd(limit)),
            None => {}
        }
    }
    Ok(records)
}
