//! Makes and deletes topics, and reads a whole one: for commands. The service does none of it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Offset, TopicPartitionList};

use super::client::Client;
use super::cluster::Error;
use super::native;
use super::settings::Connection;
use crate::types::{Record, TopicPartition};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

/// What matters of a topic's settings.
#[derive(Clone, Debug)]
pub(crate) struct TopicFacts {
    pub(crate) partitions: usize,
    /// Of the partition that has fewest.
    pub(crate) copies: usize,
    pub(crate) compacted: bool,
    /// None: for ever.
    pub(crate) retention_ms: Option<i64>,
    pub(crate) unclean_leaders: bool,
    pub(crate) message_max_bytes: Option<i64>,
}

/// The cluster's topics.
pub(crate) struct Topics {
    admin: AdminClient<Client>,
}

impl Topics {
    pub(crate) fn new(connection: &Connection) -> KafkaResult<Self> {
        let admin = connection
            .questions("tidegate-topics")
            .create_with_context::<_, AdminClient<Client>>(connection.client())?;
        if let Some(token) = admin.inner().context().first_token()? {
            native::set_token(admin.inner(), &token)?;
        }
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
        Ok(is_compacted(&self.settings(topic).await?))
    }

    /// How long a topic keeps a record, if retention is by time.
    pub(crate) async fn kept(&self, topic: &str) -> KafkaResult<Option<Duration>> {
        let settings = self.settings(topic).await?;
        let deletes = value(&settings, "cleanup.policy").is_none_or(|p| p.contains("delete"));
        let kept = value(&settings, "retention.ms").and_then(|text| text.parse().ok());
        Ok(kept.filter(|_| deletes).map(Duration::from_millis))
    }

    /// A topic's settings, beside its partitions and copies.
    pub(crate) async fn facts(
        &self,
        topic: &str,
        (partitions, copies): (usize, usize),
    ) -> KafkaResult<TopicFacts> {
        let settings = self.settings(topic).await?;
        let number = |name| value(&settings, name).and_then(|text| text.parse::<i64>().ok());
        Ok(TopicFacts {
            partitions,
            copies,
            compacted: is_compacted(&settings),
            retention_ms: number("retention.ms").filter(|ms| *ms >= 0),
            unclean_leaders: value(&settings, "unclean.leader.election.enable") == Some("true"),
            message_max_bytes: number("max.message.bytes"),
        })
    }

    async fn settings(&self, topic: &str) -> KafkaResult<ConfigResource> {
        let asked = [ResourceSpecifier::Topic(topic)];
        let results = self.admin.describe_configs(&asked, &options()).await?;
        let config = results.into_iter().next();
        let config = config.ok_or(KafkaError::NoMessageReceived)?;
        config.map_err(KafkaError::AdminOp)
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

fn value<'a>(settings: &'a ConfigResource, name: &str) -> Option<&'a str> {
    settings.get(name)?.value.as_deref()
}

fn is_compacted(settings: &ConfigResource) -> bool {
    value(settings, "cleanup.policy").is_some_and(|policy| policy.contains("compact"))
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
    let consumer: BaseConsumer<Client> = connection
        .questions("tidegate-reader")
        // The client wants a name for a group, which is neither joined nor written to.
        .set("group.id", "tidegate-reader")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .create_with_context(connection.client())?;
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
            Some(Ok(message)) => records.push(native::copy(&message)),
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
