//! The relay's producer: idempotent, ordered, and as Java's client partitions.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext, PurgeConfig};
use tokio::sync::oneshot;

use super::client::Client;
use super::settings::Connection;

/// A header's name and value.
pub(crate) type HeaderRef<'a> = (&'a str, Option<&'a [u8]>);

/// The longest name of a topic.
const TOPIC_LENGTH_MAX: usize = 249;

/// How long answers are waited for in one go. rdkafka's own thread does it for 100 ms, and spins through the end of each:
/// it rounds what is left of a wait down to whole milliseconds.
const POLL: Duration = Duration::from_secs(1);

/// Sends messages. Enqueuing is immediate and keeps the order of calls.
#[derive(Clone)]
pub(crate) struct Producer {
    producer: Arc<Polled>,
}

/// A producer whose answers are waited for on a thread, which ends soon after this is dropped.
struct Polled(Arc<BaseProducer<Client>>);

/// The answer to a message.
pub(crate) type Delivery = oneshot::Receiver<Result<(), KafkaError>>;

impl ProducerContext for Client {
    type DeliveryOpaque = Box<oneshot::Sender<Result<(), KafkaError>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, waits: Self::DeliveryOpaque) {
        let answer = result.as_ref().map(|_| ());
        let _ = waits.send(answer.map_err(|(error, _)| error.clone()));
    }
}

/// What became of handing a message to librdkafka.
pub(crate) enum Enqueued {
    /// Under way; resolves when the broker has it.
    Yes(Delivery),
    /// The queue is full: await some deliveries first.
    Full,
    /// The message itself was refused.
    Refused(KafkaError),
}

impl Producer {
    pub(crate) fn new(connection: &Connection, client_id: &str) -> Result<Self, KafkaError> {
        let config = connection.producer(client_id);
        let producer: BaseProducer<Client> = config.create_with_context(connection.client())?;
        let producer = Arc::new(producer);
        let weak = Arc::downgrade(&producer);
        thread::Builder::new()
            .name("kafka producer".to_owned())
            .spawn(move || {
                while let Some(producer) = weak.upgrade() {
                    producer.poll(POLL);
                }
            })
            .map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        Ok(Self {
            producer: Arc::new(Polled(producer)),
        })
    }

    /// How many partitions a topic has, or why nothing can be sent to it. Blocks. Asked first: librdkafka would keep
    /// messages to a topic that does not exist for a while, and so everything behind them.
    pub(crate) fn partitions(&self, topic: &str, limit: Duration) -> Result<i32, KafkaError> {
        let refused = |code| Err(KafkaError::MetadataFetch(code));
        if topic.is_empty() || topic.len() > TOPIC_LENGTH_MAX {
            return refused(RDKafkaErrorCode::InvalidTopic);
        }
        let metadata = self
            .producer
            .0
            .client()
            .fetch_metadata(Some(topic), limit)?;
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
        let (waits, delivery) = oneshot::channel();
        let mut record: BaseRecord<'_, [u8], [u8], _> =
            BaseRecord::with_opaque_to(topic, Box::new(waits)).headers(kafka_headers);
        record.key = key;
        record.payload = payload;
        record.partition = partition;
        match self.producer.0.send(record) {
            Ok(()) => Enqueued::Yes(delivery),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => Enqueued::Full,
            Err((error, _)) => Enqueued::Refused(error),
        }
    }

    /// Why librdkafka has given up on this producer, if it has: a new one is needed. It gives up when the broker
    /// refuses a message, since nothing may be sent behind one that is missing.
    pub(crate) fn failed_for_good(&self) -> Option<KafkaError> {
        let (code, _) = self.producer.0.client().fatal_error()?;
        Some(KafkaError::MessageProduction(code))
    }

    /// Forgets all that is under way, so that nothing is sent behind our back.
    pub(crate) fn purge(&self) {
        self.producer.purge();
    }
}

impl Polled {
    fn purge(&self) {
        self.0.purge(PurgeConfig::default().queue().inflight());
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        self.purge();
    }
}

/// Waits for a delivery's answer: done, or why not.
pub(crate) async fn delivered(delivery: Delivery) -> Result<(), KafkaError> {
    delivery.await.unwrap_or(Err(KafkaError::Canceled))
}
