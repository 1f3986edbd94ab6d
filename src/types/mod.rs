//! The words everything else is written in: topic-partition, offset, record, message.
//!
//! Nothing here knows the rest of the crate.

mod escaped;
mod header_names;
mod message;
mod record;
mod trace_context;

use std::fmt;
use std::sync::Arc;

pub(crate) use escaped::escaped;
pub(crate) use header_names::HeaderNames;
pub use message::Message;
pub(crate) use record::Anchor;
pub use record::{Header, Record, RecordBuilder};
pub(crate) use trace_context::TraceContext;

/// One partition of one topic. Ordered by topic, then partition: the lock order of position rows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    topic: Arc<str>,
    partition: i32,
}

impl TopicPartition {
    /// Names a partition.
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        Self {
            topic: topic.into(),
            partition,
        }
    }

    /// The topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The partition's number.
    pub fn partition(&self) -> i32 {
        self.partition
    }
}

/// `ledger.entries[3]`, as in every log line and error.
impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.topic, self.partition)
    }
}

/// First offset not yet applied, as Kafka counts, so that nobody adds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NextOffset(i64);

impl NextOffset {
    /// Takes a stored number.
    pub fn from_raw(next: i64) -> Self {
        Self(next)
    }

    /// The position once the record at `offset` is applied.
    pub fn after(offset: i64) -> Self {
        Self(offset + 1)
    }

    /// Whether the record at `offset` is still to be applied.
    pub fn admits(self, offset: i64) -> bool {
        self.0 <= offset
    }

    /// The number to store.
    pub fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for NextOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
