//! `operation`: what operators did.

use serde_json::{Value, json};
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::{Error, transaction};

const BEGIN_AGAIN: &str = include_str!("sql/operation_begin_again.sql");
const DISCARD: &str = include_str!("sql/operation_discard.sql");
const READ: &str = include_str!("sql/operation_read.sql");
const ENDED: &str = include_str!("sql/operation_ended.sql");
const INSERT: &str = include_str!("sql/operation_insert.sql");
/// As `operation_begin_again.sql` has it.
const FAILED: &str = "failed";

/// An operator action, as it is recorded.
#[derive(Clone, Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) id: Uuid,
    pub(crate) kind: &'a str,
    pub(crate) projection: &'a str,
    pub(crate) who: &'a str,
    pub(crate) arguments: Value,
    pub(crate) before: Value,
    pub(crate) after: Value,
}

/// Records an operator action in its transaction (I2).
pub(crate) async fn insert(
    connection: &mut PgConnection,
    operation: &Operation<'_>,
) -> Result<(), Error> {
    sqlx::query(INSERT)
        .bind(operation.id)
        .bind(operation.kind)
        .bind(operation.projection)
        .bind(operation.who)
        .bind(&operation.arguments)
        .bind(&operation.before)
        .bind(&operation.after)
        .execute(connection)
        .await?;
    Ok(())
}

/// Records that an action which takes many transactions begins, in a transaction before them: one that is not known, or
/// that has failed.
pub(crate) async fn begin(
    connection: &mut PgConnection,
    operation: &Operation<'_>,
) -> Result<(), Error> {
    let again = sqlx::query(BEGIN_AGAIN)
        .bind(operation.id)
        .bind(operation.who)
        .bind(&operation.before)
        .execute(&mut *connection)
        .await?;
    match again.rows_affected() {
        0 => insert(connection, operation).await,
        _ => Ok(()),
    }
}

/// Records what came of an action that takes many transactions, behind the last of them.
pub(crate) async fn ended(
    connection: &mut PgConnection,
    id: Uuid,
    after: &Value,
) -> Result<(), Error> {
    transaction::begin_alone(connection).await?;
    let done = sqlx::query(ENDED)
        .bind(id)
        .bind(after)
        .execute(&mut *connection)
        .await;
    transaction::end_alone(connection, done).await?;
    Ok(())
}

/// An operator action, as it was recorded.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Recorded {
    pub(crate) kind: String,
    pub(crate) projection: String,
    pub(crate) who: String,
    pub(crate) at: chrono::DateTime<chrono::Utc>,
    pub(crate) arguments: Value,
    pub(crate) before: Value,
    pub(crate) after: Value,
}

impl Recorded {
    /// Whether it came to nothing, or to an end halfway.
    pub(crate) fn has_failed(&self) -> bool {
        self.after.get(FAILED).is_some()
    }
}

/// What is recorded of an action that has failed.
pub(crate) fn failed(why: &str) -> Value {
    json!({ FAILED: why })
}

/// Reads what was done under an id.
pub(crate) async fn read(
    connection: &mut PgConnection,
    id: Uuid,
) -> Result<Option<Recorded>, Error> {
    transaction::begin_alone(connection).await?;
    let read = sqlx::query_as(READ)
        .bind(id)
        .fetch_optional(&mut *connection)
        .await;
    transaction::end_alone(connection, read).await
}

/// How a dead letter was given up.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Discard {
    pub(crate) who: String,
    pub(crate) at: chrono::DateTime<chrono::Utc>,
    pub(crate) why: String,
}

/// Reads who has given up a dead letter.
pub(crate) async fn discard(
    connection: &mut PgConnection,
    projection: &str,
    letter: i64,
) -> Result<Option<Discard>, Error> {
    Ok(sqlx::query_as(DISCARD)
        .bind(projection)
        .bind(letter)
        .fetch_optional(connection)
        .await?)
}
