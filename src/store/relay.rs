//! `relay`: how far each stream is sent, and who may send.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::{Error, millis};

const REGISTER: &str = include_str!("sql/relay_register.sql");
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
    #[sqlx(skip)]
    pub(crate) last_error: String,
}

/// Takes leases that are free, and with `own` those that this owner holds as far as the database knows.
pub(crate) async fn take(
    connection: &mut PgConnection,
    owner: &str,
    lease: Duration,
    own: bool,
) -> Result<Vec<Lease>, Error> {
    sqlx::query(REGISTER).execute(&mut *connection).await?;
    Ok(sqlx::query_as(TAKE)
        .bind(owner)
        .bind(millis(lease))
        .bind(own)
        .fetch_all(connection)
        .await?)
}

/// A message to send.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Outgoing {
    pub(crate) stream: String,
    pub(crate) number: i64,
    pub(crate) id: Uuid,
    pub(crate) topic: String,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    #[sqlx(rename = "type")]
    pub(crate) kind: String,
    pub(crate) source: String,
    pub(crate) occurred_at: Option<DateTime<Utc>>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) header_names: Vec<String>,
    pub(crate) header_values: Vec<Option<Vec<u8>>>,
}

/// Reads what is behind the cursors, in number order within each stream: of each so many at most, and
/// about `bytes_max` in all.
pub(crate) async fn read(
    connection: &mut PgConnection,
    leases: &[(&Lease, i64)],
    bytes_max: i64,
) -> Result<Vec<Outgoing>, Error> {
    Ok(sqlx::query_as(READ)
        .bind(leases.iter().map(|(l, _)| &*l.stream).collect::<Vec<_>>())
        .bind(
            leases
                .iter()
                .map(|(l, _)| l.sent_through)
                .collect::<Vec<_>>(),
        )
        .bind(leases.iter().map(|(_, most)| *most).collect::<Vec<_>>())
        .bind(bytes_max)
        .fetch_all(connection)
        .await?)
}

/// Moves cursors, renews leases, and returns the streams whose lease is still held (I9).
pub(crate) async fn barrier(
    connection: &mut PgConnection,
    leases: &[&Lease],
    lease: Duration,
) -> Result<Vec<String>, Error> {
    Ok(sqlx::query_scalar(BARRIER)
        .bind(leases.iter().map(|l| &*l.stream).collect::<Vec<_>>())
        .bind(leases.iter().map(|l| l.lease_epoch).collect::<Vec<_>>())
        .bind(leases.iter().map(|l| l.sent_through).collect::<Vec<_>>())
        .bind(leases.iter().map(|l| &*l.last_error).collect::<Vec<_>>())
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
