//! `_inbox`, in the generation's schema: event ids already applied.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::Error;

const READ: &str = include_str!("sql/inbox_read.sql");
const INSERT: &str = include_str!("sql/inbox_insert.sql");

/// Takes ids in and returns those that are new; ids sorted, each once.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    ids: &[&str],
) -> Result<HashSet<String>, Error> {
    let new: Vec<String> = sqlx::query_scalar(INSERT)
        .bind(ids)
        .fetch_all(connection)
        .await?;
    Ok(new.into_iter().collect())
}

/// Reads when an id was taken in.
pub(crate) async fn read(
    connection: &mut PgConnection,
    id: &str,
) -> Result<Option<DateTime<Utc>>, Error> {
    Ok(sqlx::query_scalar(READ)
        .bind(id)
        .fetch_optional(connection)
        .await?)
}
