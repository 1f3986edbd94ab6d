//! A generation's schema: the user's tables and the bookkeeping that is derived from the log.
//!
//! No statement here says CASCADE: what lies outside the schema is not ours to drop or empty.

use sqlx::postgres::types::Oid;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::{Error, transaction};

const BOOKKEEPING: &str = include_str!("sql/schema_bookkeeping.sql");
const GATE_IN: &str = include_str!("sql/schema_gate_in.sql");
const GRANTS: &str = include_str!("sql/schema_grant_role.sql");
const TABLES: &str = include_str!("sql/schema_tables.sql");
const RELATIONS: &str = include_str!("sql/schema_relations.sql");
const WRITTEN_OUTSIDE: &str = include_str!("sql/schema_written_outside.sql");

/// Why a schema cannot be a generation's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Problem {
    #[error(transparent)]
    Store(#[from] Error),
    #[error(
        "schema `{0}` exists already and was not made by tidegate, which would empty it at a reset; drop it or give the projection another name"
    )]
    Exists(String),
    #[error("{what}: {}", super::describe(.error))]
    UserSql {
        what: &'static str,
        error: sqlx::Error,
    },
    #[error("{0} runs COMMIT or ROLLBACK; remove it: the whole start is one transaction")]
    EndsTransaction(&'static str),
    #[error(
        "setup makes `{0}`, which is unlogged, temporary or foreign: it could lose effects while the position survives; make it a permanent table"
    )]
    UnsafeTable(String),
    #[error("`gate_in`: {0}")]
    HoldsNoGate(String),
    #[error(
        "setup puts rows into `{0}`; a reset would lose them. Move those statements to `seed`, which runs after every reset"
    )]
    Seeded(String),
}

/// Makes a schema with its bookkeeping and the user's tables, in the caller's transaction, whose
/// `search_path` begins with it.
pub(crate) async fn create(
    connection: &mut PgConnection,
    schema: &str,
    setup: &str,
    seed: &str,
    role: Option<&str>,
) -> Result<(), Problem> {
    let exists: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)",
    )
    .bind(schema)
    .fetch_one(&mut *connection)
    .await
    .map_err(Error::from)?;
    if exists {
        return Err(Problem::Exists(schema.to_owned()));
    }
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA \"{schema}\"")))
        .execute(&mut *connection)
        .await
        .map_err(Error::from)?;
    sqlx::raw_sql(BOOKKEEPING)
        .execute(&mut *connection)
        .await
        .map_err(Error::from)?;
    run_user_sql(connection, "setup", setup).await?;
    all_permanent(connection, schema).await?;
    for table in relations(connection, schema).await? {
        let filled: bool = sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT EXISTS (SELECT FROM {})",
            table.quoted(schema)
        )))
        .fetch_one(&mut *connection)
        .await
        .map_err(Error::from)?;
        if filled {
            return Err(Problem::Seeded(table.name));
        }
    }
    if let Some(role) = role {
        admit(connection, schema, role).await?;
    }
    run_user_sql(connection, "seed", seed).await
}

/// A table that is to carry the gate must have a row for each entity, and room for its sequence.
pub(crate) async fn holds_gate(
    connection: &mut PgConnection,
    schema: &str,
    (table, key): (&str, &str),
    (of_type, type_name): (Oid, &str),
) -> Result<(), Problem> {
    let (is_table, is_of_type, is_primary, has_sequence, cascades): (bool, bool, bool, bool, bool) =
        sqlx::query_as(GATE_IN)
            .bind(schema)
            .bind(table)
            .bind(key)
            .bind(of_type)
            .fetch_one(connection)
            .await
            .map_err(Error::from)?;
    let problem = match (is_table, is_of_type, is_primary, has_sequence) {
        (true, true, true, true) if !cascades => return Ok(()),
        (true, true, true, true) => format!(
            "a foreign key of `{table}` is ON DELETE CASCADE; a row that is deleted takes its entity's gate along"
        ),
        (false, ..) => format!("setup makes no table `{table}`"),
        (_, false, ..) => format!(
            "`{table}` has no column `{key}` of type {type_name}, as entities are here; where it is of another type, that is their `entity_type`"
        ),
        (.., false, _) => format!(
            "`{key}` is not the primary key of `{table}`, or can be checked late (DEFERRABLE)"
        ),
        (.., false) => format!(
            "`{table}` has no column `_sequence bigint NOT NULL`, where each row carries its entity's last sequence"
        ),
    };
    Err(Problem::HoldsNoGate(problem))
}

/// Gives a role what a handler needs of a schema's tables, and nothing of the bookkeeping.
async fn admit(connection: &mut PgConnection, schema: &str, role: &str) -> Result<(), Problem> {
    let grants = GRANTS.replace("{schema}", schema).replace("{role}", role);
    let granted = sqlx::raw_sql(AssertSqlSafe(grants))
        .execute(connection)
        .await;
    granted.map_err(|error| Problem::UserSql {
        what: "granting the tables to `role`",
        error,
    })?;
    Ok(())
}

/// All relations must share the durability of the position (I1).
pub(crate) async fn all_permanent(
    connection: &mut PgConnection,
    schema: &str,
) -> Result<(), Problem> {
    let relations = relations(connection, schema).await?;
    match relations.into_iter().find(|table| table.unsafe_kind) {
        None => Ok(()),
        Some(table) => Err(Problem::UnsafeTable(table.name)),
    }
}

/// Empties all tables of a schema, restarts their identities and fills the seeds again, in the
/// caller's transaction.
pub(crate) async fn empty(
    connection: &mut PgConnection,
    schema: &str,
    seed: &str,
) -> Result<(), Problem> {
    let tables = relations(connection, schema).await?;
    let tables: Vec<String> = tables.iter().map(|table| table.quoted(schema)).collect();
    if !tables.is_empty() {
        let truncate = format!("TRUNCATE TABLE {} RESTART IDENTITY", tables.join(", "));
        sqlx::raw_sql(AssertSqlSafe(truncate))
            .execute(&mut *connection)
            .await
            .map_err(|error| Problem::UserSql {
                what: "emptying the tables",
                error,
            })?;
    }
    run_user_sql(connection, "seed", seed).await
}

/// The tables of a schema that are the user's, with the bytes that they take.
pub(crate) async fn tables(
    connection: &mut PgConnection,
    schema: Oid,
) -> Result<Vec<(String, i64)>, Error> {
    Ok(sqlx::query_as(TABLES)
        .bind(schema)
        .fetch_all(connection)
        .await?)
}

/// A table outside of a schema, and not Tidegate's own, that this transaction has written to.
pub(crate) async fn written_outside(
    connection: &mut PgConnection,
    schema: &str,
) -> Result<Option<String>, Error> {
    Ok(sqlx::query_scalar(WRITTEN_OUTSIDE)
        .bind(schema)
        .fetch_optional(connection)
        .await?)
}

/// A table of a schema.
struct Relation {
    name: String,
    unsafe_kind: bool,
}

impl Relation {
    fn quoted(&self, schema: &str) -> String {
        format!("\"{schema}\".\"{}\"", self.name.replace('"', "\"\""))
    }
}

async fn relations(connection: &mut PgConnection, schema: &str) -> Result<Vec<Relation>, Error> {
    let rows = sqlx::query(RELATIONS)
        .bind(schema)
        .fetch_all(connection)
        .await?;
    let relation = |row: &sqlx::postgres::PgRow| {
        Ok(Relation {
            name: row.try_get("name")?,
            unsafe_kind: row.try_get("unsafe")?,
        })
    };
    rows.iter().map(relation).collect()
}

/// Runs setup or seed, and notices if it ended the transaction.
pub(crate) async fn run_user_sql(
    connection: &mut PgConnection,
    what: &'static str,
    sql: &str,
) -> Result<(), Problem> {
    if sql.trim().is_empty() {
        return Ok(());
    }
    // I5: it runs again at every reset, and what it emitted would be sent again.
    transaction::forbid_emit(connection).await?;
    transaction::guard(connection).await?;
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(&mut *connection)
        .await;
    match done {
        Ok(_) if transaction::lift_guard(connection).await? => Ok(()),
        Ok(_) => Err(Problem::EndsTransaction(what)),
        Err(error) if transaction::is_refused_commit(&error) => Err(Problem::EndsTransaction(what)),
        Err(error) => Err(Problem::UserSql { what, error }),
    }
}
