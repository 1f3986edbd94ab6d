//! `pg_blocking_pids`: who holds what we wait for.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgConnection};

use super::{Error, millis, transaction};

const END: &str = include_str!("sql/blocking_end.sql");
const WAITS: &str = include_str!("sql/blocking_waits.sql");

/// Ends transactions of stopped workers that block this process's claims and batches. Returns their names.
pub(crate) async fn end_stragglers(
    connection: &mut PgConnection,
    owner: &str,
    projection: &str,
    idle: Duration,
) -> Result<Vec<String>, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_scalar(END)
        .bind(owner)
        .bind(projection)
        .bind(millis(idle))
        .fetch_all(&mut *connection)
        .await;
    transaction::end_alone(connection, answer).await
}

/// A statement of this process that waits for somebody's lock.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Wait {
    pub(crate) projection: String,
    pub(crate) pid: i32,
    pub(crate) blocked_by: Vec<i32>,
    pub(crate) since: DateTime<Utc>,
}

/// What this process's claims and batches wait for.
pub(crate) async fn waits(connection: &mut PgConnection, owner: &str) -> Result<Vec<Wait>, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(WAITS)
        .bind(owner)
        .fetch_all(&mut *connection)
        .await;
    transaction::end_alone(connection, answer).await
}
