//! One entity's rows: those of a build of it alone take the place of those that the live generation has.
//!
//! Tables are named by their schemas here, since two of them have the same.

use sqlx::postgres::types::Oid;
use sqlx::{AssertSqlSafe, FromRow, PgConnection};

use super::{Error, Offsets};

const TABLES: &str = include_str!("sql/entity_tables.sql");
const ACTIONS: &str = include_str!("sql/entity_actions.sql");
const TRIGGERS: &str = include_str!("sql/entity_triggers.sql");
const STRAYS: &str = include_str!("sql/entity_strays.sql");
const ORDER: &str = include_str!("sql/entity_order.sql");
const RESOLVE: &str = include_str!("sql/entity_resolve.sql");

/// A table, as far as rows of it are copied.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Table {
    pub(crate) name: String,
    columns: Vec<String>,
    /// Whether equal values of each are the same text.
    exact: Vec<bool>,
    types: Vec<String>,
    /// A column whose numbers Postgres counts.
    pub(crate) counted: Option<String>,
}

impl Table {
    /// Whether two entities never have the same value of a column, if there is such a one: of another type than theirs one
    /// value may have several spellings, and of text what a collation takes as equal need not be the same.
    pub(crate) fn tells_apart(&self, column: &str, entity_type: &str) -> Option<bool> {
        let at = self.columns.iter().position(|name| name == column)?;
        Some(self.exact[at] || entity_type != "text" && self.types[at] == entity_type)
    }

    /// The type of a column that tells entities apart.
    fn of_type(&self, column: &str) -> &str {
        let at = self.columns.iter().position(|name| name == column);
        match at {
            Some(at) if !self.exact[at] => &self.types[at],
            _ => "text",
        }
    }
}

/// The tables of a schema that are the user's.
pub(crate) async fn tables(
    connection: &mut PgConnection,
    schema: Oid,
) -> Result<Vec<Table>, Error> {
    Ok(sqlx::query_as(TABLES)
        .bind(schema)
        .fetch_all(connection)
        .await?)
}

/// Foreign keys by which rows elsewhere would go, or change, with rows of a schema.
pub(crate) async fn actions(
    connection: &mut PgConnection,
    schema: Oid,
) -> Result<Vec<String>, Error> {
    Ok(sqlx::query_scalar(ACTIONS)
        .bind(schema)
        .fetch_all(connection)
        .await?)
}

/// Triggers and rules of a schema's tables.
pub(crate) async fn triggers(
    connection: &mut PgConnection,
    schema: Oid,
) -> Result<Vec<String>, Error> {
    Ok(sqlx::query_scalar(TRIGGERS)
        .bind(schema)
        .fetch_all(connection)
        .await?)
}

/// An entity's rows in one table: `column` has the entity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    pub(crate) table: &'a Table,
    pub(crate) column: &'a str,
    pub(crate) entity: &'a str,
}

impl Rows<'_> {
    /// Rows of a schema's table that are of another entity, or of none.
    pub(crate) async fn strangers(
        &self,
        connection: &mut PgConnection,
        schema: &str,
    ) -> Result<i64, Error> {
        let (table, column) = (of(schema, &self.table.name), quoted(self.column));
        let of_type = self.table.of_type(self.column);
        let count = format!(
            "SELECT count(*) FROM {table} WHERE {column} IS DISTINCT FROM $1::text::{of_type}"
        );
        Ok(sqlx::query_scalar(AssertSqlSafe(count))
            .bind(self.entity)
            .fetch_one(connection)
            .await?)
    }

    /// Deletes them, and says how many there were.
    pub(crate) async fn delete(
        &self,
        connection: &mut PgConnection,
        schema: &str,
    ) -> Result<u64, Error> {
        let (table, column) = (of(schema, &self.table.name), quoted(self.column));
        let of_type = self.table.of_type(self.column);
        let delete = format!("DELETE FROM {table} WHERE {column} = $1::text::{of_type}");
        let done = sqlx::query(AssertSqlSafe(delete))
            .bind(self.entity)
            .execute(connection)
            .await?;
        Ok(done.rows_affected())
    }

    /// Copies all rows from one schema's table to another's, and says how many there are.
    pub(crate) async fn copy(
        &self,
        connection: &mut PgConnection,
        from: &str,
        to: &str,
    ) -> Result<u64, Error> {
        let columns: Vec<String> = self.table.columns.iter().map(|name| quoted(name)).collect();
        let columns = columns.join(", ");
        let (from, to) = (of(from, &self.table.name), of(to, &self.table.name));
        let copy = format!("INSERT INTO {to} ({columns}) SELECT {columns} FROM {from}");
        let done = sqlx::query(AssertSqlSafe(copy)).execute(connection).await?;
        Ok(done.rows_affected())
    }
}

/// Has an entity's gate, and the ids of its events, go from one schema to another.
pub(crate) async fn replace_gate(
    connection: &mut PgConnection,
    from: &str,
    to: &str,
    entity: &str,
) -> Result<(), Error> {
    let (from_gate, to_gate) = (of(from, "_gate"), of(to, "_gate"));
    let (from_inbox, to_inbox) = (of(from, "_inbox"), of(to, "_inbox"));
    for statement in [
        format!("DELETE FROM {to_gate} WHERE entity = $1"),
        format!(
            "INSERT INTO {to_gate} (entity, sequence, previous, parked)
             SELECT entity, sequence, previous, parked FROM {from_gate} WHERE entity = $1"
        ),
        // Of what is applied no id may be new again (I4).
        format!(
            "INSERT INTO {to_inbox} (event_id, applied_at)
             SELECT event_id, applied_at FROM {from_inbox} WHERE $1 IS NOT NULL ON CONFLICT (event_id) DO NOTHING"
        ),
    ] {
        sqlx::query(AssertSqlSafe(statement))
            .bind(entity)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// The two generations whose records of an entity are compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generations<'a> {
    pub(crate) projection: &'a str,
    pub(crate) live: i32,
    pub(crate) build: i32,
    pub(crate) entity: &'a str,
    /// Whether neither a gate nor an event id keeps a record from being applied a second time.
    pub(crate) counts_copies: bool,
}

/// Some of the records that only one of the two has applied, and why.
pub(crate) async fn strays(
    connection: &mut PgConnection,
    of: Generations<'_>,
) -> Result<Vec<String>, Error> {
    Ok(sqlx::query_scalar(STRAYS)
        .bind(of.projection)
        .bind(of.live)
        .bind(of.build)
        .bind(of.entity)
        .bind(of.counts_copies)
        .fetch_all(connection)
        .await?)
}

/// In how many partitions the build has met events of the entity, and how many of them its gate has dropped.
pub(crate) async fn order(
    connection: &mut PgConnection,
    of: Generations<'_>,
) -> Result<(i64, i64), Error> {
    Ok(sqlx::query_as(ORDER)
        .bind(of.projection)
        .bind(of.build)
        .bind(of.entity)
        .fetch_one(connection)
        .await?)
}

/// Resolves letters of the live generation that the build has applied, and returns their records (I6).
pub(crate) async fn resolve(
    connection: &mut PgConnection,
    of: Generations<'_>,
) -> Result<Vec<Offsets>, Error> {
    let rows = sqlx::query(RESOLVE)
        .bind(of.projection)
        .bind(of.live)
        .bind(of.build)
        .bind(of.entity)
        .fetch_all(connection)
        .await?;
    rows.iter().map(Offsets::of_row).collect()
}

fn of(schema: &str, table: &str) -> String {
    format!("{}.{}", quoted(schema), quoted(table))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
