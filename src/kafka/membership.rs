//! How a member joins, and what it and its writers tell each other.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::{Notify, mpsc as async_mpsc};

use super::settings::{Connection, GroupProtocol};
use crate::types::TopicPartition;

/// What the group tells a writer. Never lost, never reordered.
#[derive(Debug)]
pub(crate) enum Input {
    /// These partitions are this writer's now.
    Assigned(Vec<TopicPartition>),
    /// These partitions go to somebody else. The group waits until `done` is dropped, or a bound passes;
    /// then it asks to abort, and waits a little more.
    Revoked {
        partitions: Vec<TopicPartition>,
        done: mpsc::Sender<()>,
    },
}

/// A writer's side of the member.
pub(crate) struct Inputs {
    pub(crate) inputs: async_mpsc::UnboundedReceiver<Input>,
    /// Rings when a queue of this writer has become non-empty, or a question was answered.
    pub(crate) wake: Arc<Notify>,
    /// Rings when a revoke has waited long enough for the open batch.
    pub(crate) abort: Arc<Notify>,
}

/// Who says which partitions to read.
pub(crate) enum Assignment {
    /// The group, among those of these topics.
    Group(Vec<String>),
    /// [`Member::assign`]: the group is neither joined nor told anything. It gives its name only.
    ByHand,
}

/// How to join.
pub(crate) struct MemberSettings<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) protocol: GroupProtocol,
    /// Makes the member static: it keeps its partitions while it is away for less than its session.
    pub(crate) instance_id: Option<String>,
    pub(crate) group: String,
    pub(crate) client_id: String,
    pub(crate) assignment: Assignment,
    pub(crate) writers: usize,
    /// How long a revoke waits for open batches. The fence protects what is slower.
    pub(crate) drain_max: Duration,
    /// What is fetched ahead of one partition, in bytes.
    pub(crate) prefetch: usize,
}
