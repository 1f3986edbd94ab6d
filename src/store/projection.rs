//! `projection`: which generation is live, and what it was made from.

use sqlx::postgres::types::Oid;
use sqlx::{FromRow, PgConnection, Row};

use super::{Error, transaction};

const READ: &str = include_str!("sql/projection_read.sql");
const SHARE: &str = include_str!("sql/projection_share.sql");
const LOCK: &str = include_str!("sql/projection_lock.sql");
const LIVE: &str = include_str!("sql/projection_live.sql");
const DESIRED: &str = include_str!("sql/projection_desired.sql");
const DEFINITIONS: &str = include_str!("sql/projection_definitions.sql");
const INSERT: &str = include_str!("sql/projection_insert.sql");
const SET_LIVE: &str = include_str!("sql/projection_set_live.sql");
const SET_DESIRED: &str = include_str!("sql/projection_set_desired.sql");

/// A projection with its live generation; for a builder, with the one that it builds.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Live {
    pub(crate) generation: i32,
    pub(crate) desired_state: String,
    pub(crate) schema_name: String,
    pub(crate) schema_oid: Oid,
    pub(crate) definition: String,
    /// Hash of the SQL that made the tables.
    pub(crate) setup: String,
    /// Hash of the statements that the content was made by; empty where nobody wrote it down.
    pub(crate) statements: String,
}

impl Live {
    pub(crate) fn paused(&self) -> bool {
        self.desired_state == "paused"
    }
}

/// Reads without a lock, with the last operator action.
pub(crate) async fn read(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Option<(Live, String)>, Error> {
    let row = sqlx::query(READ)
        .bind(name)
        .fetch_optional(connection)
        .await?;
    row.map(|row| Ok((Live::from_row(&row)?, row.try_get("last_operation")?)))
        .transpose()
}

/// The same where no transaction is open.
pub(crate) async fn read_alone(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Option<(Live, String)>, Error> {
    transaction::begin_alone(connection).await?;
    let read = read(connection, name).await;
    transaction::end_alone(connection, read).await
}

/// Reads for a claim: stays as read until the claim commits.
pub(crate) async fn share(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Option<Live>, Error> {
    sqlx::query(SHARE)
        .bind(name)
        .execute(&mut *connection)
        .await?;
    live(connection, name).await
}

/// Locks for an operator action.
pub(crate) async fn lock(connection: &mut PgConnection, name: &str) -> Result<Option<Live>, Error> {
    sqlx::query(LOCK)
        .bind(name)
        .execute(&mut *connection)
        .await?;
    live(connection, name).await
}

async fn live(connection: &mut PgConnection, name: &str) -> Result<Option<Live>, Error> {
    Ok(sqlx::query_as(LIVE)
        .bind(name)
        .fetch_optional(connection)
        .await?)
}

/// All projections by name, and whether they are paused.
pub(crate) async fn desired(connection: &mut PgConnection) -> Result<Vec<(String, bool)>, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(DESIRED).fetch_all(&mut *connection).await;
    transaction::end_alone(connection, answer).await
}

/// All projections by name, and the definition of their live tables.
pub(crate) async fn definitions(
    connection: &mut PgConnection,
) -> Result<Vec<(String, String)>, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(DEFINITIONS).fetch_all(&mut *connection);
    let answer = answer.await;
    transaction::end_alone(connection, answer).await
}

pub(crate) async fn insert(connection: &mut PgConnection, name: &str) -> Result<(), Error> {
    sqlx::query(INSERT).bind(name).execute(connection).await?;
    Ok(())
}

pub(crate) async fn set_live(
    connection: &mut PgConnection,
    name: &str,
    generation: i32,
) -> Result<(), Error> {
    sqlx::query(SET_LIVE)
        .bind(name)
        .bind(generation)
        .execute(connection)
        .await?;
    Ok(())
}

/// Says whether a locked projection is to run.
pub(crate) async fn set_desired(
    connection: &mut PgConnection,
    name: &str,
    state: &str,
) -> Result<(), Error> {
    sqlx::query(SET_DESIRED)
        .bind(name)
        .bind(state)
        .execute(connection)
        .await?;
    Ok(())
}
