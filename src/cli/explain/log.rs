//! What Kafka says about a record, if it answers: how far the log goes, and the record itself.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::{Message as _, Offset, TopicPartitionList};

use crate::config::Config;
use crate::engine::explain::Log;
use crate::kafka::{Cluster, ClusterError, Connection, copy};
use crate::types::{Record, TopicPartition};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

/// What was learnt of a record's place in the log.
#[derive(Debug, Default)]
pub(super) struct InLog {
    pub(super) log: Option<Log>,
    /// Whether there is a record at that offset that anybody may read.
    pub(super) found: Option<bool>,
    pub(super) record: Option<Record>,
}

/// Asks. What is not answered stays unknown, and is said.
pub(super) async fn ask(config: &Config, partition: &TopicPartition, offset: i64) -> InLog {
    let mut known = InLog::default();
    if let Err(error) = learn(config, partition, offset, &mut known).await {
        eprintln!("warning: not everything was asked of kafka: {error}");
    }
    known
}

async fn learn(
    config: &Config,
    partition: &TopicPartition,
    offset: i64,
    known: &mut InLog,
) -> Result<(), ClusterError> {
    let committed = Cluster::new(&config.kafka)?.watermarks(partition).await?;
    let all = Cluster::reading_uncommitted(&config.kafka)?;
    let all = all.watermarks(partition).await?;
    known.log = Some(Log {
        low: committed.low,
        committed: committed.high,
        end: all.high,
    });
    if (committed.low..committed.high).contains(&offset) {
        let (connection, partition) = (config.kafka.clone(), partition.clone());
        let read = tokio::task::spawn_blocking(move || read(&connection, &partition, offset));
        known.record = read.await??;
        known.found = Some(known.record.is_some());
    }
    Ok(())
}

/// Reads one record; none if there is a later one where it should be, or no other. Blocks.
fn read(
    connection: &Connection,
    partition: &TopicPartition,
    offset: i64,
) -> Result<Option<Record>, ClusterError> {
    let consumer: BaseConsumer<_> = connection
        .questions("tidegate-explain")
        // The client wants a name for a group, which is neither joined nor written to.
        .set("group.id", "tidegate-explain")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .create_with_context(connection.client())?;
    let mut from = TopicPartitionList::new();
    let (topic, number) = (partition.topic(), partition.partition());
    from.add_partition_offset(topic, number, Offset::Offset(offset))?;
    consumer.assign(&from)?;
    let until = Instant::now() + ANSWER_TIMEOUT;
    loop {
        match consumer.poll(POLL) {
            Some(Ok(message)) if message.offset() == offset => return Ok(Some(copy(&message))),
            Some(Ok(message)) if message.offset() > offset => return Ok(None),
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(None),
            Some(Err(error)) => return Err(error.into()),
            Some(Ok(_)) | None if Instant::now() < until => {}
            Some(Ok(_)) | None => return Err(ClusterError::NoEnd(ANSWER_TIMEOUT)),
        }
    }
}
