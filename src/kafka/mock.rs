//! librdkafka's mock cluster: a broker inside this process, for the demo without a Kafka.
//!
//! It keeps records in memory, at most about 5 MiB of batches a partition, then drops the oldest. It
//! knows groups and idempotent producers, but neither retention, compaction, transactions nor admin
//! requests.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::mocking::MockCluster;

/// A broker that ends with this value.
pub(crate) struct MockBroker {
    bootstrap_servers: String,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MockBroker {
    /// Starts one broker with these topics. It has a thread of its own, since it may not be sent.
    pub(crate) fn start(topics: Vec<(String, i32)>) -> KafkaResult<Self> {
        let (started, start) = mpsc::channel();
        let (stop, stopped) = mpsc::channel::<()>();
        let spawned = thread::Builder::new()
            .name("mock kafka".to_owned())
            .spawn(move || {
                let cluster = with_topics(&topics);
                let answer = cluster.as_ref().map(MockCluster::bootstrap_servers);
                let _ = started.send(answer.map_err(Clone::clone));
                // Ends when the sender is dropped.
                let _ = stopped.recv();
            });
        let thread = spawned.map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        let bootstrap_servers = start.recv().map_err(|_| KafkaError::Canceled)??;
        Ok(Self {
            bootstrap_servers,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    pub(crate) fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }
}

impl Drop for MockBroker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn with_topics(
    topics: &[(String, i32)],
) -> KafkaResult<MockCluster<'static, rdkafka::producer::DefaultProducerContext>> {
    let cluster = MockCluster::new(1)?;
    for (name, partitions) in topics {
        cluster.create_topic(name, *partitions, 1)?;
    }
    Ok(cluster)
}
