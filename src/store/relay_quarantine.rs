//! The relay's side of `quarantine`: what it puts there, passes over, and sends again.
//!
//! All of it happens in the relay's own transaction, under the lock of its rows (I9).

use sqlx::{FromRow, PgConnection};

use super::Error;
use super::relay::{Cursor, Outgoing};

const LOOK: &str = include_str!("sql/quarantine_look.sql");
const PUT: &str = include_str!("sql/quarantine_put.sql");
const BEHIND: &str = include_str!("sql/quarantine_behind.sql");
const SENT: &str = include_str!("sql/quarantine_sent.sql");
const READ_RELEASED: &str = include_str!("sql/relay_read_released.sql");

/// What a stream has in quarantine, as far as sending goes.
#[derive(Debug, FromRow)]
pub(crate) struct Open {
    pub(crate) stream: String,
    /// Messages that are sent before all others.
    pub(crate) released: bool,
    /// What is read has to be compared with it.
    pub(crate) compared: bool,
}

pub(crate) async fn look(
    connection: &mut PgConnection,
    cursors: &[Cursor<'_>],
) -> Result<Vec<Open>, Error> {
    Ok(sqlx::query_as(LOOK)
        .bind(cursors.iter().map(|c| c.stream).collect::<Vec<_>>())
        .bind(cursors.iter().map(|c| c.behind).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?)
}

/// A message that goes into quarantine.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) stream: String,
    pub(crate) number: i64,
    pub(crate) reason: &'static str,
    pub(crate) detail: String,
    /// What waits behind it: all of its topic, or what has its key too.
    pub(crate) holds_topic: bool,
    pub(crate) attempts: u32,
}

pub(crate) async fn put(connection: &mut PgConnection, entries: &[&Entry]) -> Result<(), Error> {
    let attempts = |e: &&Entry| i32::try_from(e.attempts).unwrap_or(i32::MAX);
    sqlx::query(PUT)
        .bind(entries.iter().map(|e| &*e.stream).collect::<Vec<_>>())
        .bind(entries.iter().map(|e| e.number).collect::<Vec<_>>())
        .bind(entries.iter().map(|e| e.reason).collect::<Vec<_>>())
        .bind(entries.iter().map(|e| &*e.detail).collect::<Vec<_>>())
        .bind(entries.iter().map(|e| e.holds_topic).collect::<Vec<_>>())
        .bind(entries.iter().map(attempts).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// A message that was read and is not to be sent.
#[derive(Debug, FromRow)]
pub(crate) struct Behind {
    pub(crate) stream: String,
    pub(crate) number: i64,
    /// It was put in quarantine just now.
    pub(crate) now: bool,
}

/// Puts those in quarantine that wait behind another one, and says which are not to be sent.
pub(crate) async fn behind(
    connection: &mut PgConnection,
    rows: &[(&str, i64)],
) -> Result<Vec<Behind>, Error> {
    Ok(sqlx::query_as(BEHIND)
        .bind(rows.iter().map(|(stream, _)| *stream).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, number)| *number).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?)
}

/// Resolves released messages that are sent.
pub(crate) async fn sent(
    connection: &mut PgConnection,
    messages: &[(&str, i64)],
) -> Result<(), Error> {
    sqlx::query(SENT)
        .bind(messages.iter().map(|(s, _)| *s).collect::<Vec<_>>())
        .bind(messages.iter().map(|(_, n)| *n).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Reads released messages, of each stream so many at most, and about `bytes_max` in all.
pub(crate) async fn read_released(
    connection: &mut PgConnection,
    cursors: &[Cursor<'_>],
    bytes_max: i64,
) -> Result<Vec<Outgoing>, Error> {
    Ok(sqlx::query_as(READ_RELEASED)
        .bind(cursors.iter().map(|c| c.stream).collect::<Vec<_>>())
        .bind(cursors.iter().map(|c| c.most).collect::<Vec<_>>())
        .bind(bytes_max)
        .fetch_all(connection)
        .await?)
}
