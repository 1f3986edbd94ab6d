//! Topics of a test's own, what goes into them and what is in them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::{LONG, block_on, bootstrap_servers};

const ANSWER: Duration = Duration::from_secs(20);

/// A cluster, by its address.
#[derive(Clone, Debug)]
pub(crate) struct Kafka {
    bootstrap_servers: String,
    private: bool,
}

impl Kafka {
    /// One that belongs to a single test.
    pub(crate) fn private(bootstrap_servers: &str) -> Self {
        Self {
            bootstrap_servers: bootstrap_servers.to_owned(),
            private: true,
        }
    }

    /// The one that all tests share, but those that kill it.
    pub(crate) fn shared() -> Self {
        Self {
            bootstrap_servers: bootstrap_servers(),
            private: false,
        }
    }

    /// Whether it goes away with the test, and what is left in it with it.
    pub(crate) fn is_private(&self) -> bool {
        self.private
    }

    pub(crate) fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.bootstrap_servers)
            .set("enable.metrics.push", "false");
        config
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.config().create().unwrap()
    }

    pub(crate) fn create_topic(&self, name: &str, partitions: i32) {
        self.create_topic_with(name, partitions, &[]);
    }

    /// A topic with settings of its own.
    pub(crate) fn create_topic_with(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let options = AdminOptions::new().operation_timeout(Some(ANSWER));
        let created = block_on(self.admin().create_topics(&[topic], &options)).unwrap();
        for result in created {
            result.unwrap();
        }
        self.wait_for_partitions(name, partitions);
    }

    /// Deletes a topic and creates one of the same name.
    fn make_anew(&self, name: &str, partitions: i32) {
        let admin = self.admin();
        let deleted = block_on(admin.delete_topics(&[name], &AdminOptions::new())).unwrap();
        for result in deleted {
            result.unwrap();
        }
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        // Deleted is not yet gone everywhere.
        super::wait_until(ANSWER, "the topic can be made again", || {
            let created = block_on(admin.create_topics([&topic], &AdminOptions::new()));
            created.unwrap().iter().all(Result::is_ok)
        });
        self.wait_for_partitions(name, partitions);
    }

    pub(crate) fn add_partitions(&self, name: &str, partitions: i32) {
        let count = usize::try_from(partitions).unwrap();
        let more = NewPartitions::new(name, count);
        block_on(
            self.admin()
                .create_partitions(&[more], &AdminOptions::new()),
        )
        .unwrap();
        self.wait_for_partitions(name, partitions);
    }

    /// Created is not yet known everywhere.
    fn wait_for_partitions(&self, name: &str, partitions: i32) {
        super::wait_until(ANSWER, "the topic is there", || {
            let metadata = self.consumer("it").fetch_metadata(Some(name), ANSWER);
            metadata.is_ok_and(|metadata| {
                let topic = &metadata.topics()[0];
                topic.error().is_none()
                    && topic.partitions().len() == usize::try_from(partitions).unwrap()
                    && topic.partitions().iter().all(|p| p.leader() >= 0)
            })
        });
    }

    /// Best effort: what is left behind is in nobody's way.
    pub(crate) fn delete(&self, topics: &[&str], groups: &[&str]) {
        let options = AdminOptions::new();
        let _ = block_on(self.admin().delete_topics(topics, &options));
        let _ = block_on(self.admin().delete_groups(groups, &options));
    }

    /// Changes settings of a topic, and takes all others back to their defaults.
    fn configure_topic(&self, topic: &str, settings: &[(&str, &str)]) {
        let mut config = AlterConfig::new(ResourceSpecifier::Topic(topic));
        for (key, value) in settings {
            config = config.set(key, value);
        }
        let altered = block_on(self.admin().alter_configs(&[config], &AdminOptions::new()));
        for result in altered.unwrap() {
            result.unwrap();
        }
    }

    /// Deletes records below an offset, as retention does.
    fn delete_records_before(&self, topic: &str, partition: i32, offset: i64) {
        let mut offsets = TopicPartitionList::new();
        offsets
            .add_partition_offset(topic, partition, Offset::Offset(offset))
            .unwrap();
        block_on(self.admin().delete_records(&offsets, &AdminOptions::new())).unwrap();
    }

    fn consumer(&self, group: &str) -> BaseConsumer {
        self.config()
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "error")
            .set("fetch.wait.max.ms", "50")
            .create()
            .unwrap()
    }

    /// The end of each partition's log.
    pub(crate) fn end_offsets(&self, topic: &str, partitions: i32) -> BTreeMap<i32, i64> {
        let consumer = self.consumer("it");
        let end = |partition: i32| {
            let began = Instant::now();
            loop {
                match consumer.fetch_watermarks(topic, partition, ANSWER) {
                    Ok((_, end)) => return (partition, end),
                    // A new client does not know all partitions at once.
                    Err(error) => {
                        assert!(began.elapsed() < ANSWER, "{topic}[{partition}]: {error}")
                    }
                }
            }
        };
        (0..partitions).map(end).collect()
    }

    /// What a group's offsets say, where there are any.
    pub(crate) fn committed_offsets(
        &self,
        group: &str,
        topic: &str,
        partitions: i32,
    ) -> BTreeMap<i32, i64> {
        let mut asked = TopicPartitionList::new();
        asked.add_partition_range(topic, 0, partitions - 1);
        let consumer = self.consumer(group);
        let found = consumer.committed_offsets(asked, ANSWER).unwrap();
        let offsets = found
            .elements()
            .into_iter()
            .filter_map(|p| match p.offset() {
                Offset::Offset(offset) => Some((p.partition(), offset)),
                _ => None,
            });
        offsets.collect()
    }

    /// Overwrites a group's offsets, as somebody's tool might. Only possible while the group has no member.
    fn commit_offsets(&self, group: &str, topic: &str, offsets: &BTreeMap<i32, i64>) {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in offsets {
            list.add_partition_offset(topic, *partition, Offset::Offset(*offset))
                .unwrap();
        }
        let consumer = self.consumer(group);
        consumer
            .commit(&list, rdkafka::consumer::CommitMode::Sync)
            .unwrap();
    }

    /// Everything that is in a topic, by partition and offset.
    pub(crate) fn read_log(&self, topic: &str, partitions: i32) -> Vec<LogRecord> {
        let mut waiting = self.end_offsets(topic, partitions);
        waiting.retain(|_, end| *end > 0);
        let consumer = self.consumer("it");
        let mut assigned = TopicPartitionList::new();
        for partition in waiting.keys() {
            assigned
                .add_partition_offset(topic, *partition, Offset::Beginning)
                .unwrap();
        }
        consumer.assign(&assigned).unwrap();
        let mut records = Vec::new();
        let began = Instant::now();
        while !waiting.is_empty() {
            assert!(
                began.elapsed() < ANSWER * 3,
                "the log of {topic} is not all read: {waiting:?}"
            );
            let Some(message) = consumer.poll(Duration::from_millis(200)) else {
                continue;
            };
            let message = message.unwrap();
            let headers = message.headers().map(|headers| {
                let header =
                    |h: Header<'_, &[u8]>| (h.key.to_owned(), h.value.unwrap_or_default().to_vec());
                headers.iter().map(header).collect()
            });
            records.push(LogRecord {
                partition: message.partition(),
                offset: message.offset(),
                key: message.key().map(<[u8]>::to_vec),
                value: message.payload().map(<[u8]>::to_vec),
                headers: headers.unwrap_or_default(),
            });
            let end = waiting.get(&message.partition()).copied();
            if end.is_some_and(|end| message.offset() + 1 >= end) {
                waiting.remove(&message.partition());
            }
        }
        records.sort_by_key(|record| (record.partition, record.offset));
        records
    }

    pub(crate) fn sender(&self, topic: &str) -> Sender {
        Sender {
            topic: topic.to_owned(),
            producer: self
                .config()
                .set("enable.idempotence", "true")
                .set("linger.ms", "2")
                .create()
                .unwrap(),
        }
    }

    /// A sender that compresses what it sends.
    fn sender_compressing(&self, topic: &str, codec: &str) -> Sender {
        Sender {
            topic: topic.to_owned(),
            producer: self
                .config()
                .set("compression.codec", codec)
                .create()
                .unwrap(),
        }
    }

    /// A sender whose records count only once they are committed.
    fn sender_in_transactions(&self, topic: &str) -> Sender {
        let mut config = self.config();
        config.set("transactional.id", topic);
        // Open for as long as a test wants it.
        config.set("transaction.timeout.ms", "300000");
        let producer: ThreadedProducer<DefaultProducerContext> = config.create().unwrap();
        producer.init_transactions(ANSWER).unwrap();
        Sender {
            topic: topic.to_owned(),
            producer,
        }
    }
}

// The same of the shared cluster.

pub(crate) fn create_topic(name: &str, partitions: i32) {
    Kafka::shared().create_topic(name, partitions);
}

pub(crate) fn make_anew(name: &str, partitions: i32) {
    Kafka::shared().make_anew(name, partitions);
}

pub(crate) fn delete(topics: &[&str], groups: &[&str]) {
    Kafka::shared().delete(topics, groups);
}

pub(crate) fn configure_topic(topic: &str, settings: &[(&str, &str)]) {
    Kafka::shared().configure_topic(topic, settings);
}

pub(crate) fn set_topic(topic: &str, key: &str, value: &str) {
    configure_topic(topic, &[(key, value)]);
}

pub(crate) fn delete_records_before(topic: &str, partition: i32, offset: i64) {
    Kafka::shared().delete_records_before(topic, partition, offset);
}

pub(crate) fn end_offsets(topic: &str, partitions: i32) -> BTreeMap<i32, i64> {
    Kafka::shared().end_offsets(topic, partitions)
}

pub(crate) fn committed_offsets(group: &str, topic: &str, partitions: i32) -> BTreeMap<i32, i64> {
    Kafka::shared().committed_offsets(group, topic, partitions)
}

pub(crate) fn commit_offsets(group: &str, topic: &str, offsets: &BTreeMap<i32, i64>) {
    Kafka::shared().commit_offsets(group, topic, offsets);
}

pub(crate) fn read_log(topic: &str, partitions: i32) -> Vec<LogRecord> {
    Kafka::shared().read_log(topic, partitions)
}

/// A record as it stands in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogRecord {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
}

impl LogRecord {
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        let (_, value) = found.unwrap_or_else(|| panic!("no header {name} in {self:?}"));
        std::str::from_utf8(value).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(self.value.as_deref().unwrap()).unwrap()
    }
}

/// Writes records to one topic, to explicit partitions, in the order of the calls.
pub(crate) struct Sender {
    topic: String,
    producer: ThreadedProducer<DefaultProducerContext>,
}

impl Sender {
    /// Puts a record under way.
    pub(crate) fn send(&self, partition: i32, key: Option<&[u8]>, value: Option<&[u8]>) {
        self.send_with_headers(partition, key, value, &[]);
    }

    pub(crate) fn send_with_headers(
        &self,
        partition: i32,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, &[u8])],
    ) {
        self.put(partition, (key, value), headers, None);
    }

    /// Sends JSON with a timestamp, in milliseconds since 1970.
    pub(crate) fn send_at(&self, partition: i32, value: &serde_json::Value, timestamp_ms: i64) {
        let value = value.to_string();
        let record = (None, Some(value.as_bytes()));
        self.put(partition, record, &[], Some(timestamp_ms));
    }

    fn put(
        &self,
        partition: i32,
        (key, value): (Option<&[u8]>, Option<&[u8]>),
        headers: &[(&str, &[u8])],
        timestamp_ms: Option<i64>,
    ) {
        let mut kafka_headers = OwnedHeaders::new();
        for (key, value) in headers {
            kafka_headers = kafka_headers.insert(Header {
                key,
                value: Some(*value),
            });
        }
        let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(&self.topic)
            .partition(partition)
            .headers(kafka_headers);
        record.key = key;
        record.payload = value;
        record.timestamp = timestamp_ms;
        loop {
            match self.producer.send(record) {
                Ok(()) => return,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    record = back;
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err((error, _)) => panic!("{error}"),
            }
        }
    }

    /// Sends JSON, with its field `account` as key.
    pub(crate) fn send_json(&self, partition: i32, value: &serde_json::Value) {
        let key = value["account"].as_str().map(str::as_bytes);
        self.send(partition, key, Some(value.to_string().as_bytes()));
    }

    /// A sender that compresses what it sends.
    pub(crate) fn compressing(topic: &str, codec: &str) -> Self {
        Kafka::shared().sender_compressing(topic, codec)
    }

    /// A sender whose records count only once they are committed.
    pub(crate) fn in_transactions(topic: &str) -> Self {
        Kafka::shared().sender_in_transactions(topic)
    }

    pub(crate) fn begin(&self) {
        self.producer.begin_transaction().unwrap();
    }

    pub(crate) fn commit(&self) {
        self.producer.commit_transaction(ANSWER).unwrap();
    }

    pub(crate) fn abort(&self) {
        self.flush(); // so that there is something in the log that does not count
        self.producer.abort_transaction(ANSWER).unwrap();
    }

    /// Waits until all that is under way is in the log, also over a broker's restart.
    pub(crate) fn flush(&self) {
        self.producer.flush(LONG).unwrap();
    }
}

/// A broker of the test's own that can stop answering: librdkafka's mock, in this process.
pub(crate) struct MockBroker(MockCluster<'static, DefaultProducerContext>);

impl MockBroker {
    pub(crate) fn with_topics(topics: &[&str], partitions: i32) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        for topic in topics {
            cluster.create_topic(topic, partitions, 1).unwrap();
        }
        Self(cluster)
    }

    pub(crate) fn bootstrap_servers(&self) -> String {
        self.0.bootstrap_servers()
    }

    pub(crate) fn sender(&self, topic: &str) -> Sender {
        Kafka::private(&self.bootstrap_servers()).sender(topic)
    }

    /// Nobody may know this topic's partitions from now on.
    pub(crate) fn refuse_permission(&self, topic: &str) {
        let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        self.0.topic_error(topic, error).unwrap();
    }

    /// It takes connections and requests from now on, and answers none.
    pub(crate) fn fall_silent(&self) {
        const ALL_BROKERS: i32 = -1;
        const HOUR: Duration = Duration::from_secs(60 * 60);
        self.0.broker_round_trip_time(ALL_BROKERS, HOUR).unwrap();
    }
}
