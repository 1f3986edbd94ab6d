//! `history_batch` and `history_dropped`: what became of records that left no trace but a count.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::position::{Advance, OfRecord};
use super::{Error, millis};
use crate::types::TopicPartition;

const BATCH_INSERT: &str = include_str!("sql/history_batch_insert.sql");
const BATCH_OF_RECORD: &str = include_str!("sql/history_batch_of_record.sql");
const BATCH_PRUNE: &str = include_str!("sql/history_batch_prune.sql");
const DROPPED_INSERT: &str = include_str!("sql/history_dropped_insert.sql");
const DROPPED_OF_RECORD: &str = include_str!("sql/history_dropped_of_record.sql");
const DROPPED_OF_ENTITY: &str = include_str!("sql/history_dropped_of_entity.sql");
const DROPPED_PRUNE: &str = include_str!("sql/history_dropped_prune.sql");

/// Remembers for `keep` what a batch takes from its partitions.
pub(crate) async fn insert_batch(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    batch_id: Uuid,
    keep: Duration,
    moves: &[Advance<'_>],
) -> Result<(), Error> {
    let of = moves.iter();
    sqlx::query(BATCH_INSERT)
        .bind(projection)
        .bind(generation)
        .bind(batch_id)
        .bind(millis(keep))
        .bind(of.clone().map(|m| m.partition.topic()).collect::<Vec<_>>())
        .bind(of.clone().map(|m| m.claim.incarnation).collect::<Vec<_>>())
        .bind(
            of.clone()
                .map(|m| m.partition.partition())
                .collect::<Vec<_>>(),
        )
        .bind(of.clone().map(|m| m.from.get()).collect::<Vec<_>>())
        .bind(of.clone().map(|m| m.to.get()).collect::<Vec<_>>())
        .bind(of.map(|m| m.consumed).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// A record that is dropped.
#[derive(Debug)]
pub(crate) struct Dropped<'a> {
    pub(crate) partition: &'a TopicPartition,
    pub(crate) incarnation: i32,
    pub(crate) record_offset: i64,
    pub(crate) entity: Option<&'a str>,
    pub(crate) sequence: Option<i64>,
    pub(crate) outcome: &'static str,
    /// Where its gate stands, if that is not in `_gate`.
    pub(crate) gate_sequence: Option<i64>,
}

/// Remembers dropped records for `keep`, in a transaction whose `search_path` begins with the generation's schema and
/// which has locked their entities' gate rows.
pub(crate) async fn insert_dropped(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    keep: Duration,
    dropped: &[Dropped<'_>],
) -> Result<(), Error> {
    let of = dropped.iter();
    sqlx::query(DROPPED_INSERT)
        .bind(projection)
        .bind(generation)
        .bind(millis(keep))
        .bind(of.clone().map(|d| d.partition.topic()).collect::<Vec<_>>())
        .bind(of.clone().map(|d| d.incarnation).collect::<Vec<_>>())
        .bind(
            of.clone()
                .map(|d| d.partition.partition())
                .collect::<Vec<_>>(),
        )
        .bind(of.clone().map(|d| d.record_offset).collect::<Vec<_>>())
        .bind(of.clone().map(|d| d.entity).collect::<Vec<_>>())
        .bind(of.clone().map(|d| d.sequence).collect::<Vec<_>>())
        .bind(of.clone().map(|d| d.outcome).collect::<Vec<_>>())
        .bind(of.map(|d| d.gate_sequence).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Removes at most `max` rows of each table whose time is over. Returns how many were removed of the table that had more.
pub(crate) async fn prune(connection: &mut PgConnection, max: i64) -> Result<u64, Error> {
    let mut most = 0;
    for prune in [BATCH_PRUNE, DROPPED_PRUNE] {
        let done = sqlx::query(prune)
            .bind(max)
            .execute(&mut *connection)
            .await?;
        most = most.max(done.rows_affected());
    }
    Ok(most)
}

/// A batch that took a record.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Batch {
    pub(crate) generation: i32,
    pub(crate) from_offset: i64,
    pub(crate) to_offset: i64,
    pub(crate) records: i64,
    pub(crate) batch_id: Uuid,
    pub(crate) at: DateTime<Utc>,
}

/// Reads which batches took a record.
pub(crate) async fn batch_of_record(
    connection: &mut PgConnection,
    record: &OfRecord<'_>,
) -> Result<Vec<Batch>, Error> {
    record.ask(connection, BATCH_OF_RECORD).await
}

/// A record that was dropped.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Drop {
    pub(crate) generation: i32,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) record_offset: i64,
    pub(crate) entity: Option<String>,
    pub(crate) sequence: Option<i64>,
    pub(crate) outcome: String,
    pub(crate) gate_sequence: Option<i64>,
    pub(crate) at: DateTime<Utc>,
}

/// Reads how a record was dropped.
pub(crate) async fn dropped_of_record(
    connection: &mut PgConnection,
    record: &OfRecord<'_>,
) -> Result<Vec<Drop>, Error> {
    record.ask(connection, DROPPED_OF_RECORD).await
}

/// Reads the last dropped records of an entity, the newest first.
pub(crate) async fn dropped_of_entity(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    entity: &str,
    max: i64,
) -> Result<Vec<Drop>, Error> {
    Ok(sqlx::query_as(DROPPED_OF_ENTITY)
        .bind(projection)
        .bind(generation)
        .bind(entity)
        .bind(max)
        .fetch_all(connection)
        .await?)
}
