//! Asks Postgres what it thinks of a projection's statements, without changing anything.
//!
//! In one transaction that is rolled back: a scratch schema, `setup`, and each statement parsed and
//! planned. Parsing finds names and types; planning finds a missing unique constraint for
//! ON CONFLICT and missing privileges, which parsing does not.

use sqlx::postgres::{PgDatabaseError, PgErrorPosition};
use sqlx::{
    AssertSqlSafe, Column as _, Executor as _, PgConnection, SqlSafeStr as _, Statement as _,
    TypeInfo as _,
};

use super::message::RESULT;
use super::{SqlProjection, Statement};
use crate::projection::Projection;
use crate::store::schema::{self, Problem};
use crate::store::{self, Timeouts, transaction};

/// What is wrong with a statement.
#[derive(Debug)]
pub(crate) struct StatementProblem {
    /// Index among the applies, or the emits.
    pub(crate) emit: bool,
    pub(crate) index: usize,
    /// Characters from the beginning of the user's text.
    pub(crate) position: Option<usize>,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

/// Checks all statements.
///
/// # Errors
/// When the scratch schema cannot be made: `setup` is wrong, or the database is out of reach.
pub(crate) async fn check(
    connection: &mut PgConnection,
    projection: &Projection,
    sql: &SqlProjection,
    timeouts: &Timeouts,
) -> Result<Vec<StatementProblem>, Problem> {
    let scratch = format!("tidegate_check_{}", uuid::Uuid::new_v4().simple());
    let search_path = transaction::search_path(&scratch, &projection.search_path);
    transaction::begin(connection, &search_path, "tidegate check", timeouts).await?;
    let made = schema::create(connection, &scratch, &projection.setup, &projection.seed).await;
    let mut problems = Vec::new();
    if made.is_ok() {
        let applies = sql.applies.iter().enumerate().map(|(i, s)| (false, i, s));
        let emits = sql
            .emits
            .iter()
            .enumerate()
            .map(|(i, e)| (true, i, &e.statement));
        for (emit, index, statement) in applies.chain(emits) {
            let found = statement_problem(connection, statement, emit).await?;
            problems.extend(found.map(|(message, hint, position)| StatementProblem {
                emit,
                index,
                position,
                message,
                hint,
            }));
        }
    }
    transaction::rollback(connection).await?;
    made.map(|()| problems)
}

type Found = Option<(String, Option<String>, Option<usize>)>;

async fn statement_problem(
    connection: &mut PgConnection,
    statement: &Statement,
    emit: bool,
) -> Result<Found, store::Error> {
    sqlx::raw_sql("SAVEPOINT statement")
        .execute(&mut *connection)
        .await?;
    let found = match plan(connection, statement, emit).await {
        Ok(found) => found,
        Err(error) => Some(problem(statement, &error)),
    };
    sqlx::raw_sql("ROLLBACK TO SAVEPOINT statement")
        .execute(connection)
        .await?;
    Ok(found)
}

async fn plan(
    connection: &mut PgConnection,
    statement: &Statement,
    emit: bool,
) -> Result<Found, sqlx::Error> {
    let prepared = (&mut *connection)
        .prepare(statement.sql().into_sql_str())
        .await?;
    if emit && let Some(why) = result_problem(prepared.columns()) {
        return Ok(Some((why, None, None)));
    }
    let count: usize = statement.relations.iter().map(|r| r.parameters.len()).sum();
    let nulls = vec!["NULL"; count].join(", ");
    let wrapped = &statement.wrapped;
    for sql in [
        "SET LOCAL plan_cache_mode = force_generic_plan".to_owned(),
        format!("PREPARE tidegate_checked AS {wrapped}"),
        format!("EXPLAIN EXECUTE tidegate_checked({nulls})"),
        "DEALLOCATE tidegate_checked".to_owned(),
    ] {
        if let Err(error) = sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut *connection)
            .await
        {
            // Parsed before, so what planning finds has no place in the text.
            let (message, hint, _) = problem(statement, &error);
            return Ok(Some((message, hint, None)));
        }
    }
    Ok(None)
}

/// What is wrong with the result columns of an `emit`.
fn result_problem(columns: &[sqlx::postgres::PgColumn]) -> Option<String> {
    for required in ["_ref", "payload"] {
        if !columns.iter().any(|column| column.name() == required) {
            return Some(format!("the result has no column `{required}`"));
        }
    }
    columns.iter().find_map(|column| {
        let known = RESULT.iter().find(|(name, _)| *name == column.name());
        let Some((name, types)) = known else {
            let names: Vec<&str> = RESULT.iter().map(|(name, _)| *name).collect();
            return Some(format!(
                "the result column `{}` means nothing; known are {}",
                column.name(),
                names.join(", ")
            ));
        };
        let found = column.type_info().name();
        (!types.contains(&found)).then(|| {
            format!(
                "the result column `{name}` has type {}; cast it to one of {}",
                found.to_lowercase(),
                types.join(", ").to_lowercase()
            )
        })
    })
}

fn problem(statement: &Statement, error: &sqlx::Error) -> (String, Option<String>, Option<usize>) {
    let database = error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    let Some(database) = database else {
        return (error.to_string(), None, None);
    };
    let position = match database.position() {
        Some(PgErrorPosition::Original(sent)) => statement.position(sent),
        _ => None,
    };
    (
        format!("{} (SQLSTATE {})", database.message(), database.code()),
        database.hint().map(str::to_owned),
        position,
    )
}
