//! The relay's producer: idempotent, ordered, and as Java's client partitions.

use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer as _, PurgeConfig};

use super::client::Client;
use super::settings::Connection;

/// A header's name and value.
pub(crate) type HeaderRef<'a> = (&'a str, Option<&'a [u8]>);

/// The longest name of a topic.
const TOPIC_LENGTH_MAX: usize = 249;

/// Sends messages. Enqueuing is immediate and keeps the order of calls.
#[derive(Clone)]
pub(crate) struct Producer {
    producer: FutureProducer<Client>,
}

/// What became of handing a message to librdkafka.
pub(crate) enum Enqueued {
    /// Under way; the future resolves when the broker has it.
    Yes(DeliveryFuture),
    /// The queue is full: await some deliveries first.
    Full,
    /// The message itself was refused.
    Refused(KafkaError),
}

impl Producer {
    pub(crate) fn new(connection: &Connection, client_id: &str) -> Result<Self, KafkaError> {
        Ok(Self {
            producer: connection
                .producer(client_id)
                .create_with_context(connection.client())?,
        })
    }

    /// How many partitions a topic has, or why nothing can be sent to it. Blocks. Asked first: librdkafka would keep
    /// messages to a topic that does not exist for a while, and so everything behind them.
    pub(crate) fn partitions(&self, topic: &str, limit: Duration) -> Result<i32, KafkaError> {
        let refused = |code| Err(KafkaError::MetadataFetch(code));
        if topic.is_empty() || topic.len() > TOPIC_LENGTH_MAX {
            return refused(RDKafkaErrorCode::InvalidTopic);
        }
        let metadata = self.producer.client().fetch_metadata(Some(topic), limit)?;
        let Some(found) = metadata.topics().iter().find(|t| t.name() == topic) else {
            return refused(RDKafkaErrorCode::UnknownTopicOrPartition);
        };
        match found.error() {
            None => Ok(i32::try_from(found.partitions().len()).unwrap_or(i32::MAX)),
            Some(error) => refused(error.into()),
        }
    }

    /// Hands a message over, to a partition or to the one that its key decides.
    pub(crate) fn enqueue(
        &self,
        (topic, partition): (&str, Option<i32>),
        key: Option<&[u8]>,
        payload: Option<&[u8]>,
        headers: &[HeaderRef<'_>],
    ) -> Enqueued {
        let mut kafka_headers = OwnedHeaders::new_with_capacity(headers.len());
        for (key, value) in headers {
            kafka_headers = kafka_headers.insert(Header { key, value: *value });
        }
        let mut record: FutureRecord<'_, [u8], [u8]> =
            FutureRecord::to(topic).headers(kafka_headers);
        record.key = key;
        record.payload = payload;
        record.partition = partition;
        match self.producer.send_result(record) {
            Ok(delivery) => Enqueued::Yes(delivery),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => Enqueued::Full,
            Err((error, _)) => Enqueued::Refused(error),
        }
    }

    /// Why librdkafka has given up on this producer, if it has: a new one is needed. It gives up when the broker
    /// refuses a message, since nothing may be sent behind one that is missing.
    pub(crate) fn failed_for_good(&self) -> Option<KafkaError> {
        let (code, _) = self.producer.client().fatal_error()?;
        Some(KafkaError::MessageProduction(code))
    }

    /// Forgets all that is under way, so that nothing is sent behind our back.
    pub(crate) fn purge(&self) {
        self.producer
            .purge(PurgeConfig::default().queue().inflight());
    }
}

/// Waits for a delivery's answer: done, or why not.
pub(crate) async fn delivered(delivery: DeliveryFuture) -> Result<(), KafkaError> {
    match delivery.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err((error, _))) => Err(error),
        Err(_) => Err(KafkaError::Canceled),
    }
}
