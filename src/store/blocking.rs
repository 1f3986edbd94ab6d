//! `pg_blocking_pids`: who holds what we wait for.

use std::time::Duration;

use sqlx::PgConnection;

use super::{Error, millis};

const END: &str = include_str!("sql/blocking_end.sql");

/// Ends transactions of stopped workers that block this process's claims and batches. Returns their names.
pub(crate) async fn end_stragglers(
    connection: &mut PgConnection,
    owner: &str,
    projection: &str,
    idle: Duration,
) -> Result<Vec<String>, Error> {
    Ok(sqlx::query_scalar(END)
        .bind(owner)
        .bind(projection)
        .bind(millis(idle))
        .fetch_all(connection)
        .await?)
}
