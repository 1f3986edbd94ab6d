//! What Tidegate promises, tested with a real Kafka, a real Postgres and the real binary.
//!
//! `deploy/local/test it` starts both and runs these tests. Each test's name is a claim, and its comment
//! names the promise (I1 to I10, see ARCHITECTURE.md) that breaks when it fails.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed"
)]

mod harness;

// The names of the crash points; the rest of it is the service's.
#[allow(dead_code, reason = "only the service ends itself")]
#[path = "../../src/failpoint.rs"]
mod failpoint;

mod admin;
mod apply;
mod avro;
mod avro_ledger;
mod avro_registry;
mod avro_tls;
mod bulk;
mod chaos;
mod cli;
mod crash;
mod dead_letter_topic;
mod dead_letters;
mod durability;
mod entity_type;
mod explain;
mod fence;
mod formats;
mod formats_in_rust;
mod gate;
mod gate_in;
mod group;
mod handlers;
mod history;
mod http;
mod kafka_security;
mod kinds;
mod log_shape;
mod logs;
mod memory;
mod operate;
mod outage;
mod outbox;
mod outbox_examples;
mod poison;
mod pooler;
mod postgres_outages;
mod postgres_security;
mod quarantine;
mod rebalance;
mod rebuild;
mod rebuild_detached;
mod rebuild_edges;
mod rebuild_entity;
mod rebuild_messages;
mod records;
mod redrive;
mod relay;
mod relay_alone;
mod relay_quarantine;
mod reset;
mod reset_points;
mod retention;
mod secrets;
#[cfg(feature = "opentelemetry")]
mod spans;
mod stop;
mod store;
mod testing;
mod tidy;
mod upgrade;
