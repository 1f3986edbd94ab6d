//! `emission` and `unemitted`: the right to emit, which a record keeps or has spent over all generations.

use std::collections::BTreeSet;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};

use super::Error;
use super::position::Stood;
use crate::types::TopicPartition;

const RAISE: &str = include_str!("sql/emission_raise.sql");
const KEEP: &str = include_str!("sql/unemitted_insert.sql");
const LEAVE_OUT: &str = include_str!("sql/unemitted_leave_out.sql");
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

    /// Of columns that are topic, incarnation, partition and offset.
    pub(super) fn of_row(row: &PgRow) -> Result<Self, Error> {
        let topic: String = row.try_get(0)?;
        let partition = TopicPartition::new(topic, row.try_get(2)?);
        Ok(Self::of(&partition, row.try_get(1)?, row.try_get(3)?))
    }
}

/// Records, as ranges that do not overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rights(BTreeSet<Offsets>);

impl Rights {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has(&self, record: &Offsets) -> bool {
        let up_to = Offsets {
            to: i64::MAX,
            ..record.clone()
        };
        // The last range that does not begin behind the record.
        self.0.range(..=up_to).next_back().is_some_and(|range| {
            range.partition == record.partition
                && range.incarnation == record.incarnation
                && range.to >= record.to
        })
    }
}

/// Keeps the right to emit of records before the positions that a live generation begins at, as far as none has passed
/// them; `from` is where each log begins.
pub(crate) async fn leave_out(
    connection: &mut PgConnection,
    projection: &str,
    left_out: &[Offsets],
) -> Result<(), Error> {
    bound(LEAVE_OUT, projection, left_out)
        .execute(connection)
        .await?;
    Ok(())
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
) -> Result<Rights, Error> {
    ask(connection, SPEND, projection, records).await
}

/// The records that have a right to emit, which they keep.
pub(crate) async fn right_to_emit(
    connection: &mut PgConnection,
    projection: &str,
    records: &[Offsets],
) -> Result<Rights, Error> {
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
) -> Result<Rights, Error> {
    let rows = bound(statement, projection, records)
        .fetch_all(connection)
        .await?;
    let range = |row: &PgRow| {
        let topic: String = row.try_get(0)?;
        Ok(Offsets {
            partition: TopicPartition::new(topic, row.try_get(2)?),
            incarnation: row.try_get(1)?,
            from: row.try_get(3)?,
            to: row.try_get(4)?,
        })
    };
    rows.iter().map(range).collect::<Result<_, _>>().map(Rights)
}

fn bound<'q>(
    statement: &'static str,
    projection: &'q str,
    records: &'q [Offsets],
) -> Query<'q, Postgres, PgArguments> {
    let topic = |r: &'q Offsets| r.partition.topic();
    sqlx::query(statement)
        .bind(projection)
        .bind(records.iter().map(topic).collect::<Vec<_>>())
        .bind(records.iter().map(|r| r.incarnation).collect::<Vec<_>>())
        .bind(
            records
                .iter()
                .map(|r| r.partition.partition())
                .collect::<Vec<_>>(),
        )
        .bind(records.iter().map(|r| r.from).collect::<Vec<_>>())
        .bind(records.iter().map(|r| r.to).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(topic: &str, partition: i32, from: i64, to: i64) -> Offsets {
        Offsets {
            partition: TopicPartition::new(topic, partition),
            incarnation: 1,
            from,
            to,
        }
    }

    #[test]
    fn a_record_has_the_right_of_the_range_that_it_is_in() {
        let ranges = [
            range("a", 0, 5, 6),
            range("a", 0, 10, 20),
            range("a", 2, 0, 3),
        ];
        let rights = Rights(ranges.into());
        let has = |topic, partition, offset| {
            rights.has(&Offsets::of(
                &TopicPartition::new(topic, partition),
                1,
                offset,
            ))
        };
        for (partition, offset, expected) in [
            (0, 4, false),
            (0, 5, true),
            (0, 6, false),
            (0, 10, true),
            (0, 19, true),
            (0, 20, false),
            (1, 5, false),
            (2, 0, true),
            (2, 3, false),
        ] {
            assert_eq!(
                has("a", partition, offset),
                expected,
                "{partition} {offset}"
            );
        }
        assert!(!has("b", 0, 5));
        let other_log = Offsets {
            incarnation: 2,
            ..range("a", 0, 5, 6)
        };
        assert!(!rights.has(&other_log));
    }
}
