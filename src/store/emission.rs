//! `emission` and `unemitted`: the right to emit, which a record keeps or has spent over all generations.

use sqlx::{PgConnection, Row};

use super::Error;
use super::position::Stood;
use crate::types::TopicPartition;

const RAISE: &str = include_str!("sql/emission_raise.sql");
const KEEP: &str = include_str!("sql/unemitted_insert.sql");
const SPEND: &str = include_str!("sql/unemitted_spend.sql");
const RIGHT: &str = include_str!("sql/unemitted_read.sql");
const SETTLE: &str = include_str!("sql/unemitted_settle.sql");

/// Remembers how far a live generation came.
pub(crate) async fn raise(
    connection: &mut PgConnection,
    projection: &str,
    stood: &[Stood],
) -> Result<(), Error> {
    sqlx::query(RAISE)
        .bind(projection)
        .bind(stood.iter().map(|p| &*p.topic).collect::<Vec<_>>())
        .bind(stood.iter().map(|p| p.incarnation).collect::<Vec<_>>())
        .bind(stood.iter().map(|p| p.partition).collect::<Vec<_>>())
        .bind(stood.iter().map(|p| p.next_offset).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// A record, or the records from one offset up to, without, another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Offsets {
    pub(crate) partition: TopicPartition,
    pub(crate) incarnation: i32,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

impl Offsets {
    pub(crate) fn of(partition: &TopicPartition, incarnation: i32, offset: i64) -> Self {
        Self {
            partition: partition.clone(),
            incarnation,
            from: offset,
            to: offset + 1,
        }
    }
}

/// Keeps the right to emit of records that are parked.
pub(crate) async fn keep(
    connection: &mut PgConnection,
    projection: &str,
    records: &[Offsets],
) -> Result<(), Error> {
    sqlx::query(KEEP)
        .bind(projection)
        .bind(
            records
                .iter()
                .map(|r| r.partition.topic())
                .collect::<Vec<_>>(),
        )
        .bind(records.iter().map(|r| r.incarnation).collect::<Vec<_>>())
        .bind(
            records
                .iter()
                .map(|r| r.partition.partition())
                .collect::<Vec<_>>(),
        )
        .bind(records.iter().map(|r| r.from).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Spends the right to emit of records, and returns those that had it (I5).
pub(crate) async fn spend(
    connection: &mut PgConnection,
    projection: &str,
    records: &[Offsets],
) -> Result<Vec<Offsets>, Error> {
    ask(connection, SPEND, projection, records).await
}

/// The records that have a right to emit, which they keep.
pub(crate) async fn right_to_emit(
    connection: &mut PgConnection,
    projection: &str,
    records: &[Offsets],
) -> Result<Vec<Offsets>, Error> {
    ask(connection, RIGHT, projection, records).await
}

/// A generation becomes the live one: what it has passed has spent its right, but for what waits there (I5).
pub(crate) async fn settle(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
) -> Result<(), Error> {
    sqlx::query(SETTLE)
        .bind(projection)
        .bind(generation)
        .execute(connection)
        .await?;
    Ok(())
}

async fn ask(
    connection: &mut PgConnection,
    statement: &'static str,
    projection: &str,
    records: &[Offsets],
) -> Result<Vec<Offsets>, Error> {
    let rows = sqlx::query(statement)
        .bind(projection)
        .bind(
            records
                .iter()
                .map(|r| r.partition.topic())
                .collect::<Vec<_>>(),
        )
        .bind(records.iter().map(|r| r.incarnation).collect::<Vec<_>>())
        .bind(
            records
                .iter()
                .map(|r| r.partition.partition())
                .collect::<Vec<_>>(),
        )
        .bind(records.iter().map(|r| r.from).collect::<Vec<_>>())
        .bind(records.iter().map(|r| r.to).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    let record = |row: &sqlx::postgres::PgRow| {
        let topic: String = row.try_get(0)?;
        let partition = TopicPartition::new(topic, row.try_get(2)?);
        Ok(Offsets::of(&partition, row.try_get(1)?, row.try_get(3)?))
    };
    rows.iter().map(record).collect()
}
