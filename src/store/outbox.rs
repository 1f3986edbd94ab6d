//! `outbox` and `stream`: downstream messages, numbered per stream.

use chrono::{DateTime, Utc};
use sqlx::types::Json;
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::{Error, hex};
use crate::types::{Header, Message};

const INSERT: &str = include_str!("sql/outbox_insert.sql");
const STATUS: &str = include_str!("sql/outbox_status.sql");
const EMIT: &str = include_str!("sql/outbox_emit.sql");
const ACCOUNT: &str = include_str!("sql/outbox_account.sql");

/// A message as it is stored, apart from its number.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) stream: String,
    pub(crate) id: Uuid,
    pub(crate) topic: String,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) kind: String,
    pub(crate) source: String,
    pub(crate) occurred_at: Option<DateTime<Utc>>,
    pub(crate) headers: Vec<Header>,
    pub(crate) partition: Option<i32>,
}

/// A stream as `verify` looks at it.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Account {
    pub(crate) stream: String,
    pub(crate) emitted: i64,
    pub(crate) sent_through: i64,
    /// Up to here messages were removed, apart from those in quarantine.
    pub(crate) removed_through: i64,
    /// The messages behind that, and before it.
    pub(crate) kept: i64,
    pub(crate) kept_before: i64,
    pub(crate) highest: i64,
    /// The messages in quarantine before it, whatever became of them.
    pub(crate) quarantined_before: i64,
}

/// Reads the account of all streams.
pub(crate) async fn account(connection: &mut PgConnection) -> Result<Vec<Account>, Error> {
    Ok(sqlx::query_as(ACCOUNT).fetch_all(connection).await?)
}

/// A stream as `status` shows it.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Status {
    pub(crate) stream: String,
    pub(crate) emitted: i64,
    pub(crate) sent_through: i64,
    /// The relay that has it; empty if none does.
    pub(crate) owner: String,
    /// At the first unsent message, and when the next one is due.
    pub(crate) attempts: i32,
    pub(crate) retry_at: Option<DateTime<Utc>>,
    pub(crate) last_error: String,
    pub(crate) oldest_unsent: Option<DateTime<Utc>>,
    /// Messages in quarantine, and those that were released from it and are not sent yet.
    pub(crate) waiting: i64,
    pub(crate) released: i64,
}

impl Status {
    pub(crate) fn unsent(&self) -> i64 {
        self.emitted - self.sent_through
    }

    pub(crate) fn quarantined(&self) -> i64 {
        self.waiting + self.released
    }
}

/// Reads all streams, where relays are with them, and what stands in their way.
pub(crate) async fn status(connection: &mut PgConnection) -> Result<Vec<Status>, Error> {
    Ok(sqlx::query_as(STATUS).fetch_all(connection).await?)
}

/// Headers as name and value in hexadecimal: arrays of arrays do not travel, and values are bytes.
type HexHeaders = Vec<(String, Option<String>)>;

pub(super) fn hex_headers(row: &Row) -> Json<HexHeaders> {
    let header = |h: &Header| (h.name.clone(), h.value.as_deref().map(hex));
    Json(row.headers.iter().map(header).collect())
}

/// Numbers and stores messages, in order.
pub(crate) async fn insert(connection: &mut PgConnection, rows: &[Row]) -> Result<(), Error> {
    let stored = sqlx::query(INSERT)
        .bind(rows.iter().map(|r| &*r.stream).collect::<Vec<_>>())
        .bind(rows.iter().map(|r| r.id).collect::<Vec<_>>())
        .bind(rows.iter().map(|r| &*r.topic).collect::<Vec<_>>())
        .bind(rows.iter().map(|r| r.key.as_deref()).collect::<Vec<_>>())
        .bind(
            rows.iter()
                .map(|r| r.payload.as_deref())
                .collect::<Vec<_>>(),
        )
        .bind(rows.iter().map(|r| &*r.kind).collect::<Vec<_>>())
        .bind(rows.iter().map(|r| &*r.source).collect::<Vec<_>>())
        .bind(rows.iter().map(|r| r.occurred_at).collect::<Vec<_>>())
        .bind(rows.iter().map(hex_headers).collect::<Vec<_>>())
        .bind(rows.iter().map(|r| r.partition).collect::<Vec<_>>())
        .execute(connection)
        .await?
        .rows_affected();
    if stored != rows.len() as u64 {
        return Err(Error::Unexpected(format!(
            "the outbox stored {stored} of {} messages",
            rows.len()
        )));
    }
    Ok(())
}

/// Emits a message in a transaction that is not ours, and returns its id.
pub(crate) async fn emit(connection: &mut PgConnection, message: Message) -> sqlx::Result<Uuid> {
    let (names, values): (Vec<String>, Vec<Option<Vec<u8>>>) = message
        .headers
        .into_iter()
        .map(|h| (h.name, h.value))
        .unzip();
    sqlx::query_scalar(EMIT)
        .bind(message.topic)
        .bind(message.key)
        .bind(message.payload)
        .bind(names)
        .bind(values)
        .bind(message.kind)
        .bind(message.partition)
        .fetch_one(connection)
        .await
}
