//! Databases of a test's own, and all that is in them.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, FromRow, PgConnection};
use uuid::Uuid;

use super::Error;

const EMPTY: &str = include_str!("sql/scratch_empty.sql");
const TABLES: &str = include_str!("sql/scratch_tables.sql");
const MESSAGES: &str = include_str!("sql/scratch_messages.sql");
const PARKED: &str = include_str!("sql/scratch_parked.sql");

/// Makes an empty database.
pub(crate) async fn create(connection: &mut PgConnection, name: &str) -> Result<(), Error> {
    run(connection, format!("CREATE DATABASE \"{name}\"")).await
}

/// Empties a migrated database. A new one for each test would take a second each.
pub(crate) async fn empty(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::raw_sql(EMPTY).execute(connection).await?;
    Ok(())
}

/// Removes a database, whoever is connected to it.
pub(crate) async fn drop(connection: &mut PgConnection, name: &str) -> Result<(), Error> {
    run(
        connection,
        format!("DROP DATABASE IF EXISTS \"{name}\" WITH (FORCE)"),
    )
    .await
}

/// Runs a user's statements.
pub(crate) async fn run(connection: &mut PgConnection, sql: String) -> Result<(), Error> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await?;
    Ok(())
}

/// All rows of a schema's tables, each as JSON text, sorted. `gate_in` is the one that carries the gate.
pub(crate) async fn tables(
    connection: &mut PgConnection,
    schema: &str,
    gate_in: Option<&str>,
) -> Result<BTreeMap<String, Vec<String>>, Error> {
    let names: Vec<String> = sqlx::query_scalar(TABLES)
        .bind(schema)
        .fetch_all(&mut *connection)
        .await?;
    let mut tables = BTreeMap::new();
    for name in names {
        let quoted = name.replace('"', "\"\"");
        // What was before the last batch depends on how batches were cut.
        let without = match gate_in == Some(&*name) {
            true => " - '_previous'",
            false => "",
        };
        let sql = format!(
            "SELECT (to_jsonb(t){without})::text FROM \"{schema}\".\"{quoted}\" t ORDER BY 1"
        );
        let rows = sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(&mut *connection)
            .await?;
        tables.insert(name, rows);
    }
    Ok(tables)
}

/// A message as it was put in the outbox.
#[derive(Clone, Debug, FromRow, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) topic: String,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    #[sqlx(rename = "type")]
    pub(crate) kind: String,
    pub(crate) partition: Option<i32>,
    pub(crate) header_names: Vec<String>,
    pub(crate) header_values: Vec<Option<Vec<u8>>>,
    pub(crate) id: Uuid,
}

/// Reads all messages.
pub(crate) async fn messages(connection: &mut PgConnection) -> Result<Vec<Message>, Error> {
    Ok(sqlx::query_as(MESSAGES).fetch_all(connection).await?)
}

/// A record that waits, and why.
#[derive(Clone, Debug, FromRow, PartialEq, Eq)]
pub(crate) struct Parked {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) record_offset: i64,
    pub(crate) entity: Option<String>,
    pub(crate) reason: String,
    pub(crate) detail: String,
}

/// Reads what waits.
pub(crate) async fn parked(connection: &mut PgConnection) -> Result<Vec<Parked>, Error> {
    Ok(sqlx::query_as(PARKED).fetch_all(connection).await?)
}
