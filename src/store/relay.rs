//! `relay`: how far each stream is sent, and who may send.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, Row};
use uuid::Uuid;

use super::{Error, millis, transaction};

const LOOK: &str = include_str!("sql/relay_look.sql");
const TAKE: &str = include_str!("sql/relay_take.sql");
const READ: &str = include_str!("sql/relay_read.sql");
const BARRIER: &str = include_str!("sql/relay_barrier.sql");
const RELEASE: &str = include_str!("sql/relay_release.sql");

/// A lease on a stream.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Lease {
    pub(crate) stream: String,
    pub(crate) lease_epoch: i64,
    pub(crate) sent_through: i64,
    /// What is known of the message that the stream stands at.
    pub(crate) last_error: String,
    pub(crate) attempts: i32,
    /// Milliseconds until it is tried again, if it is to be.
    pub(crate) retry_in: Option<i64>,
}

/// Where the next read of a stream begins, and how much it may bring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    pub(crate) stream: &'a str,
    /// Messages behind this number.
    pub(crate) behind: i64,
    pub(crate) most: i64,
}

/// What there is to do.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Streams of the relay that have something to send.
    pub(crate) streams: Vec<String>,
    /// There are streams that nobody holds.
    pub(crate) free: bool,
}

/// Looks for something to do: messages of the given streams behind the given cursors, and, if asked, for
/// streams that nobody holds.
pub(crate) async fn look(
    connection: &mut PgConnection,
    owner: &str,
    cursors: &[Cursor<'_>],
    for_free: bool,
) -> Result<Work, Error> {
    transaction::begin_alone(connection).await?;
    let found = sqlx::query_scalar(LOOK)
        .bind(cursors.iter().map(|c| c.stream).collect::<Vec<_>>())
        .bind(cursors.iter().map(|c| c.behind).collect::<Vec<_>>())
        .bind(for_free)
        .bind(owner)
        .fetch_all(&mut *connection)
        .await;
    let found: Vec<Option<String>> = transaction::end_alone(connection, found).await?;
    Ok(Work {
        free: found.contains(&None),
        streams: found.into_iter().flatten().collect(),
    })
}

/// Takes leases that are free, and with `own` those that this owner holds as far as the database knows.
pub(crate) async fn take(
    connection: &mut PgConnection,
    owner: &str,
    lease: Duration,
    own: bool,
) -> Result<Vec<Lease>, Error> {
    Ok(sqlx::query_as(TAKE)
        .bind(owner)
        .bind(millis(lease))
        .bind(own)
        .fetch_all(connection)
        .await?)
}

/// A message to send. Its columns come in this order: they are read by their places, since there are many rows.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) stream: String,
    pub(crate) number: i64,
    pub(crate) id: Uuid,
    pub(crate) topic: String,
    /// None: its key decides.
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) kind: String,
    pub(crate) source: String,
    pub(crate) occurred_at: Option<DateTime<Utc>>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) header_names: Vec<String>,
    pub(crate) header_values: Vec<Option<Vec<u8>>>,
    /// From quarantine: its number is below the cursor.
    pub(crate) released: bool,
    /// It is in quarantine, and not to be sent.
    pub(crate) passed_over: bool,
}

impl FromRow<'_, PgRow> for Outgoing {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            stream: row.try_get(0)?,
            number: row.try_get(1)?,
            id: row.try_get(2)?,
            topic: row.try_get(3)?,
            partition: row.try_get(4)?,
            key: row.try_get(5)?,
            payload: row.try_get(6)?,
            kind: row.try_get(7)?,
            source: row.try_get(8)?,
            occurred_at: row.try_get(9)?,
            created_at: row.try_get(10)?,
            header_names: row.try_get(11)?,
            header_values: row.try_get(12)?,
            released: row.try_get(13)?,
            passed_over: false,
        })
    }
}

/// Reads what is behind the cursors, in number order within each stream: of each so many at most, and
/// about `bytes_max` in all.
pub(crate) async fn read(
    connection: &mut PgConnection,
    cursors: &[Cursor<'_>],
    bytes_max: i64,
) -> Result<Vec<Outgoing>, Error> {
    let mut rows: Vec<Outgoing> = sqlx::query_as(READ)
        .bind(cursors.iter().map(|c| c.stream).collect::<Vec<_>>())
        .bind(cursors.iter().map(|c| c.behind).collect::<Vec<_>>())
        .bind(cursors.iter().map(|c| c.most).collect::<Vec<_>>())
        .bind(bytes_max)
        .fetch_all(connection)
        .await?;
    // As they come; Postgres would copy all of them to promise it.
    let place = |row: &Outgoing| (row.stream.clone(), row.number);
    if !rows.is_sorted_by(|a, b| (&a.stream, a.number) <= (&b.stream, b.number)) {
        rows.sort_by_cached_key(place);
    }
    Ok(rows)
}

/// Moves cursors, renews leases, and returns the streams whose lease is still held (I9).
pub(crate) async fn barrier(
    connection: &mut PgConnection,
    leases: &[Lease],
    lease: Duration,
) -> Result<Vec<String>, Error> {
    Ok(sqlx::query_scalar(BARRIER)
        .bind(leases.iter().map(|l| &*l.stream).collect::<Vec<_>>())
        .bind(leases.iter().map(|l| l.lease_epoch).collect::<Vec<_>>())
        .bind(leases.iter().map(|l| l.sent_through).collect::<Vec<_>>())
        .bind(leases.iter().map(|l| &*l.last_error).collect::<Vec<_>>())
        .bind(leases.iter().map(|l| l.attempts).collect::<Vec<_>>())
        .bind(leases.iter().map(|l| l.retry_in).collect::<Vec<_>>())
        .bind(millis(lease))
        .fetch_all(connection)
        .await?)
}

/// Gives leases up.
pub(crate) async fn release(connection: &mut PgConnection, leases: &[&Lease]) -> Result<(), Error> {
    sqlx::query(RELEASE)
        .bind(leases.iter().map(|l| &*l.stream).collect::<Vec<_>>())
        .bind(leases.iter().map(|l| l.lease_epoch).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}
