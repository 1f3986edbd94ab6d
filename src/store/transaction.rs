//! BEGIN and COMMIT, with every setting a promise rests on.
//!
//! sqlx's own transaction type is used for apply transactions only, where it turns a handler's `begin`
//! into a savepoint. Its `begin` is not cancel safe and its `commit` returns Ok when Postgres has rolled
//! back: a connection whose future was dropped is thrown away, and COMMIT is sent only after a last
//! statement whose count was seen.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgTransaction, Row};

use super::{Error, Timeouts, describe, millis, sqlstate};

const SETTINGS: &str = include_str!("sql/transaction_settings.sql");
const OPEN: &str = include_str!("sql/transaction_open.sql");
const LOCK_ALONE: &str = include_str!("sql/generation_lock_alone.sql");
const LOCK_EXCLUSIVE: &str = include_str!("sql/generation_lock_exclusive.sql");

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// Keeps COMMIT from working while a user's code or SQL runs (I1): at COMMIT Postgres runs the query of
/// a cursor that is to outlive the transaction, and this query fails, which rolls everything back. It
/// costs no write. Whoever ran COMMIT meets an error that [`is_refused_commit`] knows.
const GUARD: &str = "DECLARE tidegate_guard NO SCROLL CURSOR WITH HOLD FOR SELECT pg_catalog.current_setting('tidegate.not_yours_to_commit')";

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
    let begun = sqlx::raw_sql(BEGIN).execute(&mut *connection).await;
    begun.map_err(not_begun)?;
    set(connection, search_path, application_name, timeouts).await
}

/// The same for a transaction that a user's code works in: it cannot commit, and its `begin` is a
/// savepoint. Dropped, it is rolled back by the next word to the connection.
pub(crate) async fn begin_guarded<'c>(
    connection: &'c mut PgConnection,
    search_path: &str,
    application_name: &str,
    timeouts: &Timeouts,
) -> Result<PgTransaction<'c>, Error> {
    let begin = AssertSqlSafe(format!("{BEGIN}; {GUARD}"));
    let mut transaction = connection.begin_with(begin).await.map_err(not_begun)?;
    set(&mut transaction, search_path, application_name, timeouts).await?;
    Ok(transaction)
}

/// Begins a transaction for a statement that would need none. A pooler in transaction mode wants it: a statement is
/// prepared in one turn and run in another, and between two transactions that may be another server process.
pub(crate) async fn begin_alone(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::raw_sql("BEGIN").execute(connection).await?;
    Ok(())
}

/// Ends it, whatever came of the statement.
pub(crate) async fn end_alone<T, E: Into<Error>>(
    connection: &mut PgConnection,
    answer: Result<T, E>,
) -> Result<T, Error> {
    match answer.map_err(Into::into) {
        Ok(answer) => {
            commit(connection).await?;
            Ok(answer)
        }
        Err(error) => {
            // What cannot be rolled back is thrown away by whoever has it.
            if error.connection_is_usable() {
                let _ = rollback(connection).await;
            }
            Err(error)
        }
    }
}

/// Begins a transaction that sees one moment, to read what must fit together.
pub(crate) async fn begin_snapshot(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .execute(connection)
        .await?;
    Ok(())
}

/// A standby cannot begin what we begin, and says so as of something that Postgres does not do at all.
fn not_begun(error: sqlx::Error) -> Error {
    match sqlstate(&error).as_deref() {
        Some("0A000") => Error::Standby(error),
        _ => Error::Sql(error),
    }
}

/// Sets where names lead, for the rest of a transaction that looks into a generation's schema.
pub(crate) async fn look_into(
    connection: &mut PgConnection,
    search_path: &str,
) -> Result<(), Error> {
    sqlx::query("SELECT pg_catalog.set_config('search_path', $1, true)")
        .bind(search_path)
        .execute(connection)
        .await?;
    Ok(())
}

async fn set(
    connection: &mut PgConnection,
    search_path: &str,
    application_name: &str,
    timeouts: &Timeouts,
) -> Result<(), Error> {
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

/// Sets the search path again, which a handler may have changed.
pub(crate) async fn set_search_path(
    connection: &mut PgConnection,
    search_path: &str,
) -> Result<(), Error> {
    sqlx::query("SELECT pg_catalog.set_config('search_path', $1, true)")
        .bind(search_path)
        .execute(connection)
        .await?;
    Ok(())
}

/// From here on `tidegate.emit`, which is for applications, raises an error in this transaction.
pub(crate) async fn forbid_emit(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::raw_sql("SELECT pg_catalog.set_config('tidegate.applying', 'on', true)")
        .execute(connection)
        .await?;
    Ok(())
}

/// From here on COMMIT fails, until [`lift_guard`].
pub(crate) async fn guard(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::raw_sql(GUARD).execute(connection).await?;
    Ok(())
}

/// Lets COMMIT work again. False if the guarded transaction is not there any more.
pub(crate) async fn lift_guard(connection: &mut PgConnection) -> Result<bool, Error> {
    match sqlx::raw_sql("CLOSE tidegate_guard")
        .execute(connection)
        .await
    {
        Ok(_) => Ok(true),
        Err(error) if is_guard_gone(&error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether this is what a COMMIT under guard is answered.
pub(crate) fn is_refused_commit(error: &sqlx::Error) -> bool {
    sqlstate(error).as_deref() == Some("42704")
        && describe(error).contains("tidegate.not_yours_to_commit")
}

/// ROLLBACK has taken the cursor along.
fn is_guard_gone(error: &sqlx::Error) -> bool {
    sqlstate(error).as_deref() == Some("34000")
}

/// Takes the generation lock, shared with other batches or alone, and returns the transaction's id.
pub(crate) async fn open_apply(
    connection: &mut PgConnection,
    projection: &str,
    plan_cache_mode: &str,
    alone: bool,
) -> Result<String, Error> {
    if alone {
        sqlx::query(LOCK_ALONE)
            .bind(projection)
            .execute(&mut *connection)
            .await?;
    }
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

/// Whether the transaction is still the one that was opened, aborted or not. A handler's error says
/// nothing about its effects if it has rolled back and gone on outside.
pub(crate) async fn is_still_in(
    connection: &mut PgConnection,
    xact_id: &str,
) -> Result<bool, Error> {
    let current = sqlx::query_scalar::<_, Option<String>>(
        "SELECT pg_catalog.pg_current_xact_id_if_assigned()::text",
    );
    match current.fetch_one(connection).await {
        Ok(current) => Ok(current.as_deref() == Some(xact_id)),
        Err(error) if sqlstate(&error).as_deref() == Some("25P02") => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// From here on this role does what is done, until [`settle_effects`].
pub(crate) async fn act_as(connection: &mut PgConnection, role: &str) -> Result<(), Error> {
    sqlx::query("SELECT pg_catalog.set_config('role', $1, true)")
        .bind(role)
        .execute(connection)
        .await?;
    Ok(())
}

/// Lifts the guard, sets again what a handler may have set (the role too), raises what deferred constraints have to say
/// now, where it can still be told from a failed COMMIT, and returns the id of the transaction we are
/// in: none or another one if the handler has ended ours.
pub(crate) async fn settle_effects(
    connection: &mut PgConnection,
    synchronous_commit: bool,
) -> sqlx::Result<Option<String>> {
    let settle = if synchronous_commit {
        "CLOSE tidegate_guard; SET LOCAL synchronous_commit = on; SET CONSTRAINTS ALL IMMEDIATE; RESET ROLE; SELECT pg_catalog.pg_current_xact_id_if_assigned()::text"
    } else {
        "CLOSE tidegate_guard; SET LOCAL synchronous_commit = off; SET CONSTRAINTS ALL IMMEDIATE; RESET ROLE; SELECT pg_catalog.pg_current_xact_id_if_assigned()::text"
    };
    let settled = sqlx::raw_sql(settle).fetch_one(connection).await;
    match settled {
        Ok(row) => row.try_get(0),
        Err(error) if is_guard_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) async fn commit(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::raw_sql("COMMIT").execute(connection).await?;
    Ok(())
}

pub(crate) async fn rollback(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::raw_sql("ROLLBACK").execute(connection).await?;
    Ok(())
}
