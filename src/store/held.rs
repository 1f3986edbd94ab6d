//! `_held`: messages of a generation that is not the live one, until it is.

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::copy::Copy;
use super::outbox::Row;
use super::{Error, Offsets};
use crate::types::{Header, Message};

const COPY: &str = include_str!("sql/held_copy.sql");
const TAKE: &str = include_str!("sql/held_take.sql");
const RECORDS: &str = include_str!("sql/held_records.sql");
const EMPTY: &str = include_str!("sql/held_empty.sql");

/// Keeps messages back, each with its record.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    held: &[(Offsets, Row)],
) -> Result<(), Error> {
    let mut copy = Copy::begin(connection, COPY).await?;
    for (record, row) in held {
        let mut fields = copy.row(4 + Row::FIELDS);
        fields.text(record.partition.topic())?;
        fields.integer(Some(record.incarnation))?;
        fields.integer(Some(record.partition.partition()))?;
        fields.bigint(record.from)?;
        row.write(&mut fields)?;
        copy.send_if_full().await?;
    }
    let stored = copy.finish().await?;
    match stored == held.len() as u64 {
        true => Ok(()),
        false => Err(Error::Unexpected(format!(
            "{stored} of {} messages were kept back",
            held.len()
        ))),
    }
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
    occurred_at: Option<DateTime<Utc>>,
    header_names: Vec<String>,
    header_values: Vec<Option<Vec<u8>>>,
    message_partition: Option<i32>,
}

/// The records whose messages are kept back.
pub(crate) async fn records(connection: &mut PgConnection) -> Result<Vec<Offsets>, Error> {
    let rows = sqlx::query(RECORDS).fetch_all(connection).await?;
    rows.iter().map(Offsets::of_row).collect()
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
    let row = |held: Held| {
        let headers = held.header_names.into_iter().zip(held.header_values);
        Row {
            stream: held.stream.into(),
            id: held.id,
            name: "".into(),
            occurred_at: held.occurred_at,
            message: Message {
                topic: held.message_topic,
                key: held.key,
                payload: held.payload,
                kind: held.kind,
                headers: headers.map(header).collect(),
                partition: held.message_partition,
            },
        }
    };
    Ok(held.into_iter().map(row).collect())
}
