//! The demo's topics from outside: the events going in, and the messages that have come out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;

use super::ledger::{Fold, Ledger};
use super::stage::Stage;
use super::written::Written;
use crate::cli::{CODE_NEEDS_A_PERSON, Failed};
use crate::kafka::{Connection, Delivery, Enqueued, Producer, delivered, read_all};
use crate::types::Record;

const IN_FLIGHT_MAX: usize = 20_000;
const DELIVERY_LIMIT: Duration = Duration::from_secs(30);
const READ_LIMIT: Duration = Duration::from_secs(60);

/// Produces the stream, and returns its fold. Deliveries are awaited in order, some way behind.
pub(super) async fn produce(
    kafka: Connection,
    topic: String,
    mut ledger: Ledger,
    written: Written,
    produced: Arc<AtomicU64>,
) -> anyhow::Result<Fold> {
    let producer = Producer::new(&kafka, "tidegate-demo")?;
    let mut under_way = VecDeque::new();
    for (number, entry) in ledger.by_ref().enumerate() {
        let (key, value) = (entry.key(), written.value(&entry, number)?);
        loop {
            if under_way.len() >= IN_FLIGHT_MAX {
                settle(under_way.pop_front()).await?;
            }
            match producer.enqueue((&topic, None), Some(key.as_bytes()), Some(&value), &[]) {
                Enqueued::Yes(delivery) => break under_way.push_back(delivery),
                Enqueued::Full => settle(under_way.pop_front()).await?,
                Enqueued::Refused(error) => return Err(error).context("an event was refused"),
            }
        }
        produced.fetch_add(1, Ordering::Relaxed);
    }
    for delivery in under_way {
        settle(Some(delivery)).await?;
    }
    Ok(ledger.into_fold())
}

async fn settle(delivery: Option<Delivery>) -> anyhow::Result<()> {
    let Some(delivery) = delivery else {
        tokio::time::sleep(Duration::from_millis(10)).await;
        return Ok(());
    };
    let answer = tokio::time::timeout(DELIVERY_LIMIT, delivered(delivery)).await;
    answer
        .context("kafka does not take the events")?
        .context("an event was not delivered")
}

/// All messages of the output topic.
pub(super) async fn messages(stage: &Stage) -> Result<Vec<Record>, Failed> {
    let partitions = stage.cluster.partitions(&stage.names.overdrafts).await?;
    let kafka = stage.config.kafka.clone();
    let read = tokio::task::spawn_blocking(move || read_all(&kafka, &partitions, READ_LIMIT));
    let records = read
        .await
        .map_err(|error| Failed::new(CODE_NEEDS_A_PERSON, error))?;
    Ok(records?)
}
