//! `dead_letter`: records that could not be applied, with their bytes, and those that wait behind them.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{FromRow, PgConnection, Row};

use super::position::{Expected, OfRecord};
use super::{Error, hex, millis, transaction};
use crate::engine::parking::{Reason, Rejection};
use crate::types::{Header, Record, RecordBuilder, TopicPartition};

const INSERT: &str = include_str!("sql/dead_letter_insert.sql");
const QUEUE: &str = include_str!("sql/dead_letter_queue.sql");
const BY_NUMBER: &str = include_str!("sql/dead_letter_by_number.sql");
const UNREACHABLE: &str = include_str!("sql/dead_letter_unreachable.sql");
const ADOPT: &str = include_str!("sql/dead_letter_adopt.sql");
const REMAINING: &str = include_str!("sql/dead_letter_remaining.sql");
const FORGET: &str = include_str!("sql/dead_letter_forget.sql");
const RESOLVE: &str = include_str!("sql/dead_letter_resolve.sql");
const FAILED: &str = include_str!("sql/dead_letter_failed.sql");
const DRAINABLE: &str = include_str!("sql/dead_letter_drainable.sql");
const LIST: &str = include_str!("sql/dead_letter_list.sql");
const CHOSEN: &str = include_str!("sql/dead_letter_chosen.sql");
const SUMMARY: &str = include_str!("sql/dead_letter_summary.sql");
const ACCOUNT: &str = include_str!("sql/dead_letter_account.sql");
const GIVEN_UP: &str = include_str!("sql/dead_letter_given_up.sql");
const DISCARD: &str = include_str!("sql/dead_letter_discard.sql");
const FIRST_SEQUENCE: &str = include_str!("sql/dead_letter_first_sequence.sql");
const OF_RECORD: &str = include_str!("sql/dead_letter_of_record.sql");
const OF_ENTITY: &str = include_str!("sql/dead_letter_of_entity.sql");
const AHEAD: &str = include_str!("sql/dead_letter_ahead.sql");
const CLEAR: &str = include_str!("sql/dead_letter_clear.sql");
const COUNT: &str = include_str!("sql/dead_letter_count.sql");

/// A record to be parked.
#[derive(Debug)]
pub(crate) struct Letter<'a> {
    pub(crate) partition: &'a TopicPartition,
    pub(crate) incarnation: i32,
    pub(crate) record: &'a Record,
    pub(crate) entity: Option<&'a str>,
    pub(crate) sequence: Option<i64>,
    pub(crate) rejection: Rejection,
}

/// Headers as name and value in hexadecimal: arrays of arrays do not travel, and both are bytes.
type HexHeaders = Vec<(String, Option<String>)>;

fn headers(record: &Record) -> Json<HexHeaders> {
    let header = |h: &Header| (hex(h.name.as_bytes()), h.value.as_deref().map(hex));
    Json(record.headers().iter().map(header).collect())
}

/// Parks records, in the order in which those of one entity are to be applied.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    letters: &[Letter<'_>],
) -> Result<(), Error> {
    let of = letters.iter();
    let stored = sqlx::query(INSERT)
        .bind(projection)
        .bind(generation)
        .bind(of.clone().map(|l| l.partition.topic()).collect::<Vec<_>>())
        .bind(of.clone().map(|l| l.incarnation).collect::<Vec<_>>())
        .bind(
            of.clone()
                .map(|l| l.partition.partition())
                .collect::<Vec<_>>(),
        )
        .bind(of.clone().map(|l| l.record.offset()).collect::<Vec<_>>())
        .bind(of.clone().map(|l| l.entity).collect::<Vec<_>>())
        .bind(of.clone().map(|l| l.sequence).collect::<Vec<_>>())
        .bind(of.clone().map(|l| l.record.key()).collect::<Vec<_>>())
        .bind(of.clone().map(|l| l.record.value()).collect::<Vec<_>>())
        .bind(of.clone().map(|l| headers(l.record)).collect::<Vec<_>>())
        .bind(
            of.clone()
                .map(|l| l.record.timestamp_ms())
                .collect::<Vec<_>>(),
        )
        .bind(
            of.clone()
                .map(|l| l.rejection.reason.name())
                .collect::<Vec<_>>(),
        )
        .bind(
            of.clone()
                .map(|l| l.rejection.sqlstate.as_deref())
                .collect::<Vec<_>>(),
        )
        .bind(of.clone().map(|l| &*l.rejection.detail).collect::<Vec<_>>())
        .execute(connection)
        .await?
        .rows_affected();
    if stored != letters.len() as u64 {
        return Err(Error::Unexpected(format!(
            "{stored} of {} records were parked",
            letters.len()
        )));
    }
    Ok(())
}

/// How many records wait.
#[derive(Clone, Copy, Debug, FromRow)]
pub(crate) struct Waiting {
    #[sqlx(rename = "all_parked")]
    pub(crate) all: i64,
    /// Of one of the entities that were asked for.
    pub(crate) most_of_one: i64,
}

/// Counts the waiting records of a projection, and of some entities.
pub(crate) async fn count(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    entities: &[&str],
) -> Result<Waiting, Error> {
    Ok(sqlx::query_as(COUNT)
        .bind(projection)
        .bind(generation)
        .bind(entities)
        .fetch_one(connection)
        .await?)
}

/// A waiting record, as it is applied again.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) number: i64,
    pub(crate) partition: TopicPartition,
    pub(crate) incarnation: i32,
    /// As it was read when the record was parked.
    pub(crate) entity: Option<String>,
    pub(crate) record: Record,
}

fn waits(row: &PgRow) -> Result<Waits, Error> {
    let topic: String = row.try_get("topic")?;
    let names: Vec<Vec<u8>> = row.try_get("header_names")?;
    let values: Vec<Option<Vec<u8>>> = row.try_get("header_values")?;
    let header = |(name, value): (Vec<u8>, Option<Vec<u8>>)| Header {
        name: String::from_utf8_lossy(&name).into_owned(),
        value,
    };
    let builder = RecordBuilder {
        offset: row.try_get("record_offset")?,
        timestamp_ms: row.try_get("timestamp_ms")?,
        key: row.try_get("key")?,
        value: row.try_get("value")?,
        headers: names.into_iter().zip(values).map(header).collect(),
    };
    Ok(Waits {
        number: row.try_get("number")?,
        partition: TopicPartition::new(topic, row.try_get("partition")?),
        incarnation: row.try_get("incarnation")?,
        entity: row.try_get("entity")?,
        record: builder.build(),
    })
}

/// The first waiting records of entities whose gate rows are locked, at most `max`, as they were parked or by
/// sequence.
pub(crate) async fn queue(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    entities: &[&str],
    max: i64,
    by_sequence: bool,
) -> Result<Vec<Waits>, Error> {
    let rows = sqlx::query(QUEUE)
        .bind(projection)
        .bind(generation)
        .bind(entities)
        .bind(max)
        .bind(by_sequence)
        .fetch_all(connection)
        .await?;
    rows.iter().map(waits).collect()
}

/// Waiting records without an entity.
pub(crate) async fn by_number(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    numbers: &[i64],
) -> Result<Vec<Waits>, Error> {
    let rows = sqlx::query(BY_NUMBER)
        .bind(projection)
        .bind(generation)
        .bind(numbers)
        .fetch_all(connection)
        .await?;
    rows.iter().map(waits).collect()
}

/// Counts the waiting records that a generation does not meet which begins where `begin` says, in the log of that
/// incarnation, or that generation `built` has left out by a skip, and all of `thinned` topics; or those of one entity.
pub(crate) async fn unreachable(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    begin: &[(TopicPartition, i32, i64)],
    thinned: &[&str],
    entity: Option<&str>,
    built: Option<i32>,
) -> Result<i64, Error> {
    let topic = |(partition, ..): &(TopicPartition, i32, i64)| partition.topic().to_owned();
    Ok(sqlx::query_scalar(UNREACHABLE)
        .bind(projection)
        .bind(generation)
        .bind(begin.iter().map(topic).collect::<Vec<_>>())
        .bind(
            begin
                .iter()
                .map(|(p, ..)| p.partition())
                .collect::<Vec<_>>(),
        )
        .bind(
            begin
                .iter()
                .map(|(_, incarnation, _)| *incarnation)
                .collect::<Vec<_>>(),
        )
        .bind(begin.iter().map(|(.., first)| *first).collect::<Vec<_>>())
        .bind(thinned)
        .bind(entity)
        .bind(built)
        .fetch_one(connection)
        .await?)
}

/// A letter whose entity can be read by now.
#[derive(Debug)]
pub(crate) struct Adopted<'a> {
    pub(crate) number: i64,
    pub(crate) entity: &'a str,
    pub(crate) sequence: Option<i64>,
    pub(crate) rejection: Rejection,
}

/// Gives waiting letters their entities, whose gate rows are locked. Returns how many had none until now.
pub(crate) async fn adopt(
    connection: &mut PgConnection,
    letters: &[Adopted<'_>],
) -> Result<u64, Error> {
    let of = letters.iter();
    let done = sqlx::query(ADOPT)
        .bind(of.clone().map(|l| l.number).collect::<Vec<_>>())
        .bind(of.clone().map(|l| l.entity).collect::<Vec<_>>())
        .bind(of.clone().map(|l| l.sequence).collect::<Vec<_>>())
        .bind(
            of.clone()
                .map(|l| l.rejection.reason.name())
                .collect::<Vec<_>>(),
        )
        .bind(of.clone().map(|l| &*l.rejection.detail).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}

/// How many records of entities wait; entities without any are left out.
pub(crate) async fn remaining(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    entities: &[&str],
) -> Result<HashMap<String, i64>, Error> {
    let rows: Vec<(String, i64)> = sqlx::query_as(REMAINING)
        .bind(projection)
        .bind(generation)
        .bind(entities)
        .fetch_all(connection)
        .await?;
    Ok(rows.into_iter().collect())
}

/// Resolves letters, each with its state, if everything is as `expected`. Returns how many.
pub(crate) async fn resolve(
    connection: &mut PgConnection,
    expected: &Expected<'_>,
    letters: &[(i64, &str)],
) -> Result<u64, Error> {
    let done = sqlx::query(RESOLVE)
        .bind(expected.projection)
        .bind(expected.generation)
        .bind(
            letters
                .iter()
                .map(|(number, _)| *number)
                .collect::<Vec<_>>(),
        )
        .bind(letters.iter().map(|(_, state)| *state).collect::<Vec<_>>())
        .bind(expected.xact_id)
        .bind(expected.schema_name)
        .bind(expected.schema_oid)
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}

/// Forgets the letters of a generation that never was live and never will be.
pub(crate) async fn forget(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
) -> Result<(), Error> {
    sqlx::query(FORGET)
        .bind(projection)
        .bind(generation)
        .execute(connection)
        .await?;
    Ok(())
}

/// Records that a letter has failed again.
pub(crate) async fn failed(
    connection: &mut PgConnection,
    number: i64,
    rejection: &Rejection,
) -> Result<(), Error> {
    transaction::begin_alone(connection).await?;
    let done = sqlx::query(FAILED)
        .bind(number)
        .bind(rejection.reason.name())
        .bind(&rejection.sqlstate)
        .bind(&rejection.detail)
        .execute(&mut *connection)
        .await;
    transaction::end_alone(connection, done).await?;
    Ok(())
}

/// Gate `next`: entities whose turn has come, in a transaction whose `search_path` begins with the schema.
pub(crate) async fn drainable(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
) -> Result<Vec<String>, Error> {
    Ok(sqlx::query_scalar(DRAINABLE)
        .bind(projection)
        .bind(generation)
        .fetch_all(connection)
        .await?)
}

/// Which dead letters a command is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) projection: Option<String>,
    pub(crate) entity: Option<String>,
    pub(crate) reason: Option<Reason>,
    pub(crate) number: Option<i64>,
    /// Those that are resolved too.
    pub(crate) all: bool,
}

/// A dead letter, as commands show it.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Listed {
    pub(crate) number: i64,
    pub(crate) projection: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) record_offset: i64,
    pub(crate) entity: Option<String>,
    pub(crate) sequence: Option<i64>,
    pub(crate) reason: String,
    pub(crate) sqlstate: Option<String>,
    pub(crate) detail: String,
    pub(crate) state: String,
    pub(crate) attempts: i32,
    pub(crate) parked_at: DateTime<Utc>,
    pub(crate) tried_at: DateTime<Utc>,
    pub(crate) resolved_at: Option<DateTime<Utc>>,
    /// When key, value, headers and detail were removed.
    pub(crate) cleared_at: Option<DateTime<Utc>>,
    pub(crate) timestamp_ms: Option<i64>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) header_names: Vec<Vec<u8>>,
    pub(crate) header_values: Vec<Option<Vec<u8>>>,
}

/// Lists dead letters of live generations, at most `max`.
pub(crate) async fn list(
    connection: &mut PgConnection,
    filter: &Filter,
    max: i64,
) -> Result<Vec<Listed>, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(LIST)
        .bind(&filter.projection)
        .bind(&filter.entity)
        .bind(filter.reason.map(Reason::name))
        .bind(filter.number)
        .bind(filter.all)
        .bind(max)
        .fetch_all(&mut *connection)
        .await;
    transaction::end_alone(connection, answer).await
}

/// A dead letter that somebody decides about.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Chosen {
    pub(crate) number: i64,
    pub(crate) entity: Option<String>,
}

/// Which waiting letters a decision is about, at most `max`. Page by page: each is read within its timeouts.
pub(crate) async fn choose(
    connection: &mut PgConnection,
    filter: &Filter,
    max: usize,
) -> Result<Vec<Chosen>, Error> {
    const PAGE: usize = 10_000;
    let mut chosen: Vec<Chosen> = Vec::new();
    loop {
        let page = PAGE.min(max - chosen.len());
        transaction::begin_alone(connection).await?;
        let answer = sqlx::query_as(CHOSEN)
            .bind(&filter.projection)
            .bind(&filter.entity)
            .bind(filter.reason.map(Reason::name))
            .bind(filter.number)
            .bind(chosen.last().map_or(i64::MIN, |last| last.number))
            .bind(i64::try_from(page).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await;
        let read: Vec<Chosen> = transaction::end_alone(connection, answer).await?;
        let is_last = read.len() < page;
        chosen.extend(read);
        if is_last || chosen.len() == max {
            return Ok(chosen);
        }
    }
}

/// Waiting records of one reason.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Summary {
    pub(crate) projection: String,
    pub(crate) reason: String,
    pub(crate) waiting: i64,
    pub(crate) entities: i64,
    pub(crate) oldest: DateTime<Utc>,
}

/// Counts waiting records by projection and reason.
pub(crate) async fn summary(connection: &mut PgConnection) -> Result<Vec<Summary>, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(SUMMARY).fetch_all(&mut *connection).await;
    transaction::end_alone(connection, answer).await
}

/// Dead letters of a partition, whatever became of them.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Account {
    pub(crate) projection: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) letters: i64,
}

/// Counts the dead letters of each partition (I6).
pub(crate) async fn account(connection: &mut PgConnection) -> Result<Vec<Account>, Error> {
    Ok(sqlx::query_as(ACCOUNT).fetch_all(connection).await?)
}

/// A letter that was given up.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Discarded {
    pub(crate) topic: String,
    pub(crate) incarnation: i32,
    pub(crate) partition: i32,
    pub(crate) record_offset: i64,
    pub(crate) entity: Option<String>,
    pub(crate) sequence: Option<i64>,
}

/// Gives letters up, with their entities' gate rows locked.
pub(crate) async fn discard(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    numbers: &[i64],
) -> Result<Vec<Discarded>, Error> {
    Ok(sqlx::query_as(DISCARD)
        .bind(projection)
        .bind(generation)
        .bind(numbers)
        .fetch_all(connection)
        .await?)
}

/// The sequences of entities that were given up.
pub(crate) async fn given_up(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    entities: &[&str],
) -> Result<HashMap<String, BTreeSet<i64>>, Error> {
    let rows: Vec<(String, i64)> = sqlx::query_as(GIVEN_UP)
        .bind(projection)
        .bind(generation)
        .bind(entities)
        .fetch_all(connection)
        .await?;
    let mut given_up: HashMap<String, BTreeSet<i64>> = HashMap::new();
    for (entity, sequence) in rows {
        given_up.entry(entity).or_default().insert(sequence);
    }
    Ok(given_up)
}

/// The lowest sequence of an entity that waits beyond `after`.
pub(crate) async fn first_sequence(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    entity: &str,
    after: i64,
) -> Result<Option<i64>, Error> {
    Ok(sqlx::query_scalar(FIRST_SEQUENCE)
        .bind(projection)
        .bind(generation)
        .bind(entity)
        .bind(after)
        .fetch_one(connection)
        .await?)
}

/// A dead letter without its bytes.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Kept {
    pub(crate) number: i64,
    pub(crate) generation: i32,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) record_offset: i64,
    pub(crate) entity: Option<String>,
    pub(crate) sequence: Option<i64>,
    pub(crate) reason: String,
    pub(crate) sqlstate: Option<String>,
    pub(crate) detail: String,
    pub(crate) state: String,
    pub(crate) attempts: i32,
    pub(crate) parked_at: DateTime<Utc>,
    pub(crate) tried_at: DateTime<Utc>,
    pub(crate) resolved_at: Option<DateTime<Utc>>,
    pub(crate) cleared_at: Option<DateTime<Utc>>,
}

/// Reads whether a record became a dead letter.
pub(crate) async fn of_record(
    connection: &mut PgConnection,
    record: &OfRecord<'_>,
) -> Result<Vec<Kept>, Error> {
    record.ask(connection, OF_RECORD).await
}

/// Which letters of an entity.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OfEntity {
    /// Gate `next` applies them by sequence.
    Waiting {
        by_sequence: bool,
    },
    Resolved,
}

/// Reads dead letters of an entity: the first that wait, or the last that do not any more.
pub(crate) async fn of_entity(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    entity: &str,
    which: OfEntity,
    max: i64,
) -> Result<Vec<Kept>, Error> {
    Ok(sqlx::query_as(OF_ENTITY)
        .bind(projection)
        .bind(generation)
        .bind(entity)
        .bind(matches!(which, OfEntity::Waiting { .. }))
        .bind(max)
        .bind(matches!(which, OfEntity::Waiting { by_sequence: true }))
        .fetch_all(connection)
        .await?)
}

/// How many records of an entity wait before a letter.
pub(crate) async fn ahead(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    entity: &str,
    number: i64,
    by_sequence: Option<i64>,
) -> Result<i64, Error> {
    Ok(sqlx::query_scalar(AHEAD)
        .bind(projection)
        .bind(generation)
        .bind(entity)
        .bind(number)
        .bind(by_sequence)
        .fetch_one(connection)
        .await?)
}

/// Removes the bytes of letters that were resolved more than `keep` ago, of `max` at most. Returns of how many.
pub(crate) async fn clear(
    connection: &mut PgConnection,
    keep: Duration,
    max: i64,
) -> Result<u64, Error> {
    let done = sqlx::query(CLEAR)
        .bind(millis(keep))
        .bind(max)
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}
