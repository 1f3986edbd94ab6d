//! Removes sent messages from `outbox` that were kept for long enough.

use std::time::Duration;

use sqlx::{FromRow, PgConnection};

use super::{Error, millis, transaction};

const REMOVABLE: &str = include_str!("sql/outbox_removable.sql");
const REMOVE: &str = include_str!("sql/outbox_remove.sql");
const REMOVED: &str = include_str!("sql/outbox_removed.sql");
const REMOVE_RESOLVED: &str = include_str!("sql/quarantine_remove.sql");

/// The streams of this owner in which there is something to remove.
pub(crate) async fn removable(
    connection: &mut PgConnection,
    owner: &str,
    keep: Duration,
) -> Result<Vec<String>, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_scalar(REMOVABLE)
        .bind(owner)
        .bind(millis(keep))
        .fetch_all(&mut *connection)
        .await;
    transaction::end_alone(connection, answer).await
}

#[derive(Debug, FromRow)]
struct Piece {
    through: Option<i64>,
    removed: i64,
}

/// Removes a piece of a stream: `most` of each kind, at most. Says how many messages went, and whether there may
/// be more.
pub(crate) async fn remove(
    connection: &mut PgConnection,
    stream: &str,
    keep: Duration,
    most: i64,
) -> Result<(u64, bool), Error> {
    let resolved = sqlx::query(REMOVE_RESOLVED)
        .bind(stream)
        .bind(millis(keep))
        .bind(most)
        .execute(&mut *connection)
        .await?
        .rows_affected();
    let piece: Piece = sqlx::query_as(REMOVE)
        .bind(stream)
        .bind(millis(keep))
        .bind(most)
        .fetch_one(&mut *connection)
        .await?;
    if let Some(through) = piece.through {
        sqlx::query(REMOVED)
            .bind(stream)
            .bind(through)
            .execute(connection)
            .await?;
    }
    let removed = resolved + piece.removed.unsigned_abs();
    Ok((removed, piece.through.is_some() || resolved > 0))
}
