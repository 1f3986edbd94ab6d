//! `_held`: messages of a generation that is not the live one, until it is.

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::outbox::{self, Row};
use super::{Error, Offsets};
use crate::types::Header;

const INSERT: &str = include_str!("sql/held_insert.sql");
const TAKE: &str = include_str!("sql/held_take.sql");
const EMPTY: &str = include_str!("sql/held_empty.sql");

/// Keeps messages back, each with its record.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    held: &[(Offsets, Row)],
) -> Result<(), Error> {
    let records = || held.iter().map(|(record, _)| record);
    let rows = || held.iter().map(|(_, row)| row);
    sqlx::query(INSERT)
        .bind(records().map(|r| r.partition.topic()).collect::<Vec<_>>())
        .bind(records().map(|r| r.incarnation).collect::<Vec<_>>())
        .bind(
            records()
                .map(|r| r.partition.partition())
                .collect::<Vec<_>>(),
        )
        .bind(records().map(|r| r.from).collect::<Vec<_>>())
        .bind(rows().map(|r| &*r.stream).collect::<Vec<_>>())
        .bind(rows().map(|r| r.id).collect::<Vec<_>>())
        .bind(rows().map(|r| &*r.topic).collect::<Vec<_>>())
        .bind(rows().map(|r| r.key.as_deref()).collect::<Vec<_>>())
        .bind(rows().map(|r| r.payload.as_deref()).collect::<Vec<_>>())
        .bind(rows().map(|r| &*r.kind).collect::<Vec<_>>())
        .bind(rows().map(|r| &*r.source).collect::<Vec<_>>())
        .bind(rows().map(|r| r.occurred_at).collect::<Vec<_>>())
        .bind(rows().map(outbox::hex_headers).collect::<Vec<_>>())
        .bind(rows().map(|r| r.partition).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

#[derive(FromRow)]
struct Held {
    stream: String,
    id: Uuid,
    message_topic: String,
    key: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
    #[sqlx(rename = "type")]
    kind: String,
    source: String,
    occurred_at: Option<DateTime<Utc>>,
    header_names: Vec<String>,
    header_values: Vec<Option<Vec<u8>>>,
    message_partition: Option<i32>,
}

/// Takes out what was kept back, and returns the messages whose records have their right to emit still (I5).
pub(crate) async fn take(
    connection: &mut PgConnection,
    projection: &str,
) -> Result<Vec<Row>, Error> {
    let held: Vec<Held> = sqlx::query_as(TAKE)
        .bind(projection)
        .fetch_all(&mut *connection)
        .await?;
    sqlx::query(EMPTY).execute(connection).await?;
    let header = |(name, value)| Header { name, value };
    let row = |held: Held| Row {
        stream: held.stream,
        id: held.id,
        topic: held.message_topic,
        key: held.key,
        payload: held.payload,
        kind: held.kind,
        source: held.source,
        occurred_at: held.occurred_at,
        headers: held
            .header_names
            .into_iter()
            .zip(held.header_values)
            .map(header)
            .collect(),
        partition: held.message_partition,
    };
    Ok(held.into_iter().map(row).collect())
}
