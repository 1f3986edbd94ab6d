//! BEGIN and COMMIT, with every setting a promise rests on.
//!
//! sqlx's own transaction type is not used: its `begin` is not cancel safe, and its `commit`
//! returns Ok when Postgres has rolled back. Here COMMIT is sent only after a last statement whose
//! count was seen, and its failure is the caller's to settle.

use sqlx::{PgConnection, Row};

use super::{Error, Timeouts, millis};

const SETTINGS: &str = include_str!("sql/transaction_settings.sql");
const OPEN: &str = include_str!("sql/transaction_open.sql");
const LOCK_EXCLUSIVE: &str = include_str!("sql/generation_lock_exclusive.sql");

/// The `search_path` of a transaction that runs no user's statement.
pub(crate) const OWN_SEARCH_PATH: &str = "pg_catalog, pg_temp";

/// `search_path` of a generation: its schema, what else its statements may see, and pg_temp last, so
/// that nothing temporary shadows a table.
pub(crate) fn search_path(schema: &str, further: &[String]) -> String {
    let mut path = format!("\"{schema}\"");
    for name in further {
        path.push_str(&format!(", \"{name}\""));
    }
    path + ", pg_temp"
}

/// Begins a transaction and sets what must not depend on connection, role or pooler.
pub(crate) async fn begin(
    connection: &mut PgConnection,
    search_path: &str,
    application_name: &str,
    timeouts: &Timeouts,
) -> Result<(), Error> {
    sqlx::raw_sql("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        .execute(&mut *connection)
        .await?;
    sqlx::query(SETTINGS)
        .bind(search_path)
        // Postgres cuts longer names; cut here, the notice is spared.
        .bind(application_name.chars().take(63).collect::<String>())
        .bind(millis(timeouts.lock).to_string())
        .bind(millis(timeouts.statement).to_string())
        .bind(millis(timeouts.idle_in_transaction).to_string())
        .execute(connection)
        .await?;
    Ok(())
}

/// Takes the shared generation lock and returns the transaction's id.
pub(crate) async fn open_apply(
    connection: &mut PgConnection,
    projection: &str,
    plan_cache_mode: &str,
) -> Result<String, Error> {
    let row = sqlx::query(OPEN)
        .bind(projection)
        .bind(plan_cache_mode)
        .fetch_one(connection)
        .await?;
    Ok(row.try_get("xact_id")?)
}

/// Takes the exclusive generation lock: waits for open batches, keeps new ones out.
pub(crate) async fn lock_generation(
    connection: &mut PgConnection,
    projection: &str,
) -> Result<(), Error> {
    sqlx::query(LOCK_EXCLUSIVE)
        .bind(projection)
        .execute(connection)
        .await?;
    Ok(())
}

/// Raises what deferred constraints have to say now, where it can still be told from a failed COMMIT,
/// and returns the id of the transaction we are in: another one if the handler has ended ours.
pub(crate) async fn settle_effects(connection: &mut PgConnection) -> sqlx::Result<Option<String>> {
    sqlx::raw_sql(
        "SET CONSTRAINTS ALL IMMEDIATE; SELECT pg_catalog.pg_current_xact_id_if_assigned()::text",
    )
    .fetch_one(connection)
    .await?
    .try_get(0)
}

pub(crate) async fn commit(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::raw_sql("COMMIT").execute(connection).await?;
    Ok(())
}

pub(crate) async fn rollback(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::raw_sql("ROLLBACK").execute(connection).await?;
    Ok(())
}
