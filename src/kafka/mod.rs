//! Kafka, through librdkafka: the group member on its own thread, the producer, and questions to the
//! cluster.
//!
//! Positions come from Postgres and go into the assignment; Kafka's committed offsets are never
//! read, nothing seeks, and `auto.offset.reset` may not decide (it is `error`).

mod client;
mod cluster;
mod commit;
mod failure;
mod group;
mod member;
mod membership;
mod mock;
mod native;
mod neighbours;
mod oauth;
mod producer;
mod queue;
mod settings;
mod topics;
mod watchdog;

#[cfg(test)]
mod tests;

pub(crate) use cluster::{Cluster, Error as ClusterError, Watermarks};
pub(crate) use failure::MemberError;
pub(crate) use group::ABORT_TIMEOUT;
pub(crate) use member::{Fetched, Joined, Member};
pub(crate) use membership::{Assignment, Input, Inputs, MemberSettings};
pub(crate) use mock::MockBroker;
pub(crate) use native::copy;
pub(crate) use neighbours::{DatabaseTag, Neighbours, client_id};
pub(crate) use oauth::ENDPOINT as TOKEN_ENDPOINT;
pub(crate) use producer::{Delivery, Enqueued, HeaderRef, Producer, delivered};
pub(crate) use queue::{Polled, Queue};
pub(crate) use settings::{Connection, GroupProtocol, PREFETCH_MIN, refusal, reserved};
pub(crate) use topics::{TopicFacts, Topics, read_all};
pub(crate) use watchdog::watch;
