//! Postgres: one file per table, one statement per `.sql` file.
//!
//! Statements name Tidegate's tables with their schema, since `search_path` belongs to the
//! projection's handler. The schema's name is fixed for that reason. Nothing here decides: a
//! statement says what it expects, and its wrapper turns the answer into a typed value.

pub(crate) mod blocking;
pub(crate) mod compare;
pub(crate) mod copy;
pub(crate) mod dead_letter;
mod emission;
pub(crate) mod entity;
mod error;
pub(crate) mod gate;
pub(crate) mod generation;
pub(crate) mod held;
pub(crate) mod history;
pub(crate) mod identity;
pub(crate) mod inbox;
pub(crate) mod migration;
pub(crate) mod operation;
pub(crate) mod outbox;
pub(crate) mod outbox_retention;
pub(crate) mod position;
pub(crate) mod projection;
pub(crate) mod quarantine;
pub(crate) mod registry_schema;
pub(crate) mod relay;
pub(crate) mod relay_quarantine;
pub(crate) mod schema;
pub(crate) mod scratch;
pub(crate) mod server;
pub(crate) mod skipped;
pub(crate) mod swap;
pub(crate) mod transaction;

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};

pub(crate) use emission::{
    Offsets, Rights, keep as keep_right_to_emit, leave_out as leave_out_rights_to_emit,
    raise as raise_emission, right_to_emit, settle as settle_rights_to_emit,
    spend as spend_right_to_emit,
};
pub(crate) use error::{
    Error, class_of_handler_error, class_of_own_error, connection_is_usable, describe, sqlstate,
};

/// How long a new connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a statement, a lock and an idle transaction may last, by the server's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) statement: Duration,
    pub(crate) lock: Duration,
    /// Ends the transaction of a worker that stopped in the middle, so that its successor can go on.
    pub(crate) idle_in_transaction: Duration,
}

impl Timeouts {
    /// After this long, a transaction's connection is given up: the network has swallowed something.
    pub(crate) fn transaction(&self) -> Duration {
        self.statement * 2 + Duration::from_secs(5)
    }
}

/// Where the database is and how long it may take.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    options: PgConnectOptions,
    pub(crate) timeouts: Timeouts,
    /// A pooler is in between, and each transaction may run in another session.
    pub(crate) pooled: bool,
}

impl Database {
    /// # Errors
    /// When the URL cannot be read. The message does not repeat it: it may hold a password.
    pub(crate) fn new(url: &str, timeouts: Timeouts) -> Result<Self, Error> {
        let options = PgConnectOptions::from_str(url)
            .map_err(Error::from)?
            .disable_statement_logging();
        Ok(Self {
            options,
            timeouts,
            pooled: false,
        })
    }

    /// By way of a pooler in transaction mode, if so: no statement stays prepared from one transaction to the next.
    pub(crate) fn pooled(mut self, pooled: bool) -> Self {
        if pooled {
            self.options = self.options.statement_cache_capacity(0);
        }
        self.pooled = pooled;
        self
    }

    /// The same server's database of another name.
    pub(crate) fn named(&self, name: &str) -> Self {
        Self {
            options: self.options.clone().database(name),
            timeouts: self.timeouts,
            pooled: self.pooled,
        }
    }

    /// `host:port/database`, for messages.
    pub(crate) fn place(&self) -> String {
        format!(
            "{}:{}/{}",
            self.options.get_host(),
            self.options.get_port(),
            self.options.get_database().unwrap_or_default()
        )
    }

    /// Opens a connection. Each has one user and is thrown away after an error that leaves it in doubt.
    pub(crate) async fn connect(&self, application_name: &str) -> Result<PgConnection, Error> {
        let options = self.options.clone().application_name(application_name);
        match tokio::time::timeout(CONNECT_TIMEOUT, options.connect()).await {
            Ok(connected) => Ok(connected?),
            Err(_) => Err(Error::Deadline("connecting", CONNECT_TIMEOUT)),
        }
    }
}

/// Bytes as text that holds nothing but digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 0xf)]);
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(*byte)])
        .collect()
}

/// Awaits an answer of the database, but not for ever: sqlx itself would wait on a dead socket.
pub(crate) async fn within<T, E: From<Error>>(
    what: &'static str,
    limit: Duration,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::Deadline(what, limit).into()),
    }
}

/// Whole milliseconds, as Postgres' settings take them.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
