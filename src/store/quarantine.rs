//! `quarantine`: messages that cannot be sent, and those that wait behind them.

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::{Error, transaction};

const LIST: &str = include_str!("sql/quarantine_list.sql");
const MESSAGE: &str = include_str!("sql/quarantine_message.sql");
const LOCK: &str = include_str!("sql/relay_lock.sql");
const RELEASE: &str = include_str!("sql/quarantine_release.sql");
const DISCARD: &str = include_str!("sql/quarantine_discard.sql");
const LEFT_BEHIND: &str = include_str!("sql/quarantine_left_behind.sql");

/// Which messages are meant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) stream: Option<String>,
    pub(crate) number: Option<i64>,
    pub(crate) topic: Option<String>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) reason: Option<String>,
    /// Those that are sent or discarded too.
    pub(crate) all: bool,
}

/// Where a message is in the outbox.
#[derive(Clone, Debug, FromRow, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) stream: String,
    pub(crate) number: i64,
}

/// A message in quarantine, as commands list it.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Listed {
    #[sqlx(flatten)]
    pub(crate) place: Place,
    pub(crate) reason: String,
    pub(crate) detail: String,
    pub(crate) state: String,
    pub(crate) attempts: i32,
    pub(crate) quarantined_at: DateTime<Utc>,
    pub(crate) resolved_at: Option<DateTime<Utc>>,
    pub(crate) id: Uuid,
    pub(crate) topic: String,
    pub(crate) key: Option<Vec<u8>>,
    /// None for a tombstone.
    pub(crate) payload_bytes: Option<i64>,
}

/// What a message in quarantine holds.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Message {
    #[sqlx(rename = "type")]
    pub(crate) kind: String,
    pub(crate) source: String,
    pub(crate) partition: Option<i32>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) header_names: Vec<String>,
    pub(crate) header_values: Vec<Option<Vec<u8>>>,
}

/// Lists messages in quarantine, by stream and number.
pub(crate) async fn list(
    connection: &mut PgConnection,
    filter: &Filter,
    limit: i64,
) -> Result<Vec<Listed>, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(LIST)
        .bind(&filter.stream)
        .bind(filter.number)
        .bind(&filter.topic)
        .bind(&filter.key)
        .bind(&filter.reason)
        .bind(filter.all)
        .bind(limit)
        .fetch_all(&mut *connection)
        .await;
    transaction::end_alone(connection, answer).await
}

/// Reads one message with its bytes.
pub(crate) async fn message(
    connection: &mut PgConnection,
    place: &Place,
) -> Result<Message, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(MESSAGE)
        .bind(&place.stream)
        .bind(place.number)
        .fetch_one(&mut *connection)
        .await;
    transaction::end_alone(connection, answer).await
}

/// Keeps relays away from the streams of these messages until the transaction ends.
pub(crate) async fn lock(connection: &mut PgConnection, places: &[Place]) -> Result<(), Error> {
    sqlx::query(LOCK)
        .bind(places.iter().map(|p| &*p.stream).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Lets messages be sent again, and with them what waits behind. Returns how many those are.
pub(crate) async fn release(connection: &mut PgConnection, places: &[Place]) -> Result<u64, Error> {
    changed(connection, RELEASE, places).await
}

/// Gives messages up. Returns how many of them were waiting.
pub(crate) async fn discard(connection: &mut PgConnection, places: &[Place]) -> Result<u64, Error> {
    changed(connection, DISCARD, places).await
}

async fn changed(
    connection: &mut PgConnection,
    statement: &'static str,
    places: &[Place],
) -> Result<u64, Error> {
    Ok(sqlx::query(statement)
        .bind(places.iter().map(|p| &*p.stream).collect::<Vec<_>>())
        .bind(places.iter().map(|p| p.number).collect::<Vec<_>>())
        .execute(connection)
        .await?
        .rows_affected())
}

/// What waits behind these and behind no other that could not be sent.
pub(crate) async fn left_behind(
    connection: &mut PgConnection,
    places: &[Place],
) -> Result<Vec<Place>, Error> {
    Ok(sqlx::query_as(LEFT_BEHIND)
        .bind(places.iter().map(|p| &*p.stream).collect::<Vec<_>>())
        .bind(places.iter().map(|p| p.number).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?)
}
