//! `outbox` and `stream`: downstream messages, numbered per stream.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::copy::{self, Copy};
use super::{Error, transaction};
use crate::types::Message;

const NUMBER: &str = include_str!("sql/outbox_number.sql");
const COPY: &str = include_str!("sql/outbox_copy.sql");
const STATUS: &str = include_str!("sql/outbox_status.sql");
const EMIT: &str = include_str!("sql/outbox_emit.sql");
const ACCOUNT: &str = include_str!("sql/outbox_account.sql");

/// A message as it is stored, apart from its number.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) stream: Arc<str>,
    pub(crate) id: Uuid,
    /// Of the emit: the type of a message that names none.
    pub(crate) name: Arc<str>,
    /// When what it tells of has happened.
    pub(crate) occurred_at: Option<DateTime<Utc>>,
    pub(crate) message: Message,
}

impl Row {
    pub(super) const FIELDS: i16 = 10;

    /// Writes what is the same wherever a message is kept: stream, id, topic, key, payload, type, occurred_at,
    /// header_names, header_values, partition.
    pub(super) fn write(&self, fields: &mut copy::Row<'_>) -> Result<(), Error> {
        let message = &self.message;
        let headers = message.headers.iter();
        fields.text(&self.stream)?;
        fields.uuid(self.id)?;
        fields.text(&message.topic)?;
        fields.bytes(message.key.as_deref())?;
        fields.bytes(message.payload.as_deref())?;
        fields.text(match &*message.kind {
            "" => &self.name,
            kind => kind,
        })?;
        fields.time(self.occurred_at)?;
        fields.texts(headers.clone().map(|header| &*header.name))?;
        fields.byteas(headers.map(|header| header.value.as_deref()))?;
        fields.integer(message.partition)
    }
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
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(STATUS).fetch_all(&mut *connection).await;
    transaction::end_alone(connection, answer).await
}

/// Numbers and stores the messages of a batch, in order. All have one source.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    source: &str,
    rows: &[Row],
) -> Result<(), Error> {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for row in rows {
        *counts.entry(&row.stream).or_default() += 1;
    }
    let last: Vec<(String, i64)> = sqlx::query_as(NUMBER)
        .bind(counts.keys().copied().collect::<Vec<_>>())
        .bind(counts.values().copied().collect::<Vec<_>>())
        .fetch_all(&mut *connection)
        .await?;
    let mut before: HashMap<&str, i64> = last
        .iter()
        .map(|(stream, last)| (&**stream, last - counts.get(&**stream).unwrap_or(&0)))
        .collect();
    let mut copy = Copy::begin(connection, COPY).await?;
    for row in rows {
        let number = before.entry(&row.stream).or_default();
        *number += 1;
        let mut fields = copy.row(2 + Row::FIELDS);
        fields.bigint(*number)?;
        fields.text(source)?;
        row.write(&mut fields)?;
        copy.send_if_full().await?;
    }
    let stored = copy.finish().await?;
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
