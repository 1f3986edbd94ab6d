//! `skipped`: ranges of offsets that an operator chose to leave out.

use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::Error;
use super::position::{OfRecord, Stood};

const INSERT: &str = include_str!("sql/skipped_insert.sql");
const OF_RECORD: &str = include_str!("sql/skipped_of_record.sql");
const READ: &str = include_str!("sql/skipped_read.sql");

/// Records a range from a position up to, without, `to_offset`. The operation is recorded before.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    from: &Stood,
    to_offset: i64,
    operation: Uuid,
) -> Result<(), Error> {
    sqlx::query(INSERT)
        .bind(projection)
        .bind(generation)
        .bind(&from.topic)
        .bind(from.incarnation)
        .bind(from.partition)
        .bind(from.next_offset)
        .bind(to_offset)
        .bind(operation)
        .execute(connection)
        .await?;
    Ok(())
}

/// A range that was left out, by whom and when.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Skipped {
    pub(crate) projection: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) from_offset: i64,
    pub(crate) to_offset: i64,
    pub(crate) who: String,
    pub(crate) at: chrono::DateTime<chrono::Utc>,
}

/// Reads the ranges left out in live generations.
pub(crate) async fn read(connection: &mut PgConnection) -> Result<Vec<Skipped>, Error> {
    Ok(sqlx::query_as(READ).fetch_all(connection).await?)
}

/// The range that a record was left out with.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct With {
    pub(crate) generation: i32,
    pub(crate) from_offset: i64,
    pub(crate) to_offset: i64,
    pub(crate) who: String,
    pub(crate) at: chrono::DateTime<chrono::Utc>,
}

/// Reads whether a record was left out.
pub(crate) async fn of_record(
    connection: &mut PgConnection,
    record: &OfRecord<'_>,
) -> Result<Vec<With>, Error> {
    record.ask(connection, OF_RECORD).await
}
