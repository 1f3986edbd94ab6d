//! A Kafka and a Postgres of a test's own, to be killed at will.
//!
//! Both are started from the same programs as `deploy/local` uses, which it tells by environment
//! variables, on free ports and in temporary folders. A start after an end takes the same port and the
//! same data, as a supervisor's would. They end with the test.

mod kafka;
mod pgbouncer;
mod postgres;
mod registry;

use std::net::TcpListener;
use std::process::{Child, Command};
use std::str::FromStr as _;

use sqlx::postgres::PgConnectOptions;

pub(crate) use kafka::{KafkaServer, Listener};
pub(crate) use pgbouncer::{PgBouncer, pgbouncer_keeps_statements};
pub(crate) use postgres::PostgresServer;
pub(crate) use registry::RegistryServer;

use super::{Kafka, Route, required};

/// Where a world's Kafka and Postgres are.
#[derive(Clone, Debug)]
pub(crate) struct Servers {
    pub(crate) kafka: Kafka,
    /// The URL of Postgres' own database.
    pub(crate) postgres: String,
}

impl Servers {
    /// Those that all tests share, but those that kill them.
    pub(crate) fn shared() -> Self {
        Self {
            kafka: Kafka::shared(),
            postgres: required("TIDEGATE__POSTGRES__URL"),
        }
    }

    pub(crate) fn private(kafka: &KafkaServer, postgres: &PostgresServer) -> Self {
        Self {
            kafka: kafka.kafka(),
            postgres: postgres.url(),
        }
    }

    pub(crate) fn with_kafka(self, server: &KafkaServer) -> Self {
        let kafka = server.kafka();
        Self { kafka, ..self }
    }

    /// The same Postgres, by another address.
    pub(crate) fn by_route(self, route: &Route) -> Self {
        let options = PgConnectOptions::from_str(&self.postgres).unwrap();
        let address = format!("{}:{}", options.get_host(), options.get_port());
        let postgres = self.postgres.replace(&address, route.address());
        Self { postgres, ..self }
    }

    pub(crate) fn with_postgres(self, server: &PostgresServer) -> Self {
        let postgres = server.url();
        Self { postgres, ..self }
    }
}

/// What `deploy/local` says of an installed program.
fn program(variable: &str, what: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: this test starts {what} of its own, from installed programs. Run deploy/local/install and deploy/local/test, or source target/local/env after deploy/local/up")
    })
}

/// A port that is free, also while the server that had it is down: below those that Linux gives to
/// outgoing connections.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(20_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Runs a command to its end, which must be a success.
#[track_caller]
fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Ends a process without a chance to clean up.
fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
