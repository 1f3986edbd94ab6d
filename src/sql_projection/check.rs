//! Asks Postgres what it thinks of a projection's statements, without changing anything.
//!
//! In one transaction that is rolled back: a scratch schema, `setup`, and each statement parsed and
//! planned. Parsing finds names and types; planning finds a missing unique constraint for
//! ON CONFLICT and missing privileges, which parsing does not.

use sqlx::postgres::{PgDatabaseError, PgErrorPosition};
use sqlx::{
    AssertSqlSafe, Column as _, Executor as _, PgConnection, Row as _, SqlSafeStr as _,
    Statement as _, TypeInfo as _,
};

use super::lexer::{last_word, statements, word_at};
use super::message::RESULT;
use super::{SqlProjection, Statement};
use crate::projection::{Projection, is_near};
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

/// Why statements could not be checked.
#[derive(Debug)]
pub(crate) struct Unchecked {
    pub(crate) problem: Problem,
    /// Where it is in `setup` or `seed`, in characters.
    pub(crate) position: Option<usize>,
}

impl From<store::Error> for Unchecked {
    fn from(error: store::Error) -> Self {
        Self {
            problem: error.into(),
            position: None,
        }
    }
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
) -> Result<Vec<StatementProblem>, Unchecked> {
    let scratch = format!("tidegate_check_{}", uuid::Uuid::new_v4().simple());
    let search_path = transaction::search_path(&scratch, &projection.search_path);
    transaction::begin(connection, &search_path, "tidegate check", timeouts).await?;
    let made = schema::create(
        connection,
        &scratch,
        &projection.setup,
        &projection.seed,
        projection.role.as_deref(),
    )
    .await;
    let made = match (made, &projection.gate_in) {
        (Ok(()), Some(gate_in)) => gate_in.is_held(connection, &scratch).await,
        (made, _) => made,
    };
    if let Err(problem) = made {
        transaction::rollback(connection).await?;
        let position = match &problem {
            Problem::UserSql { what, error } => match original_position(error) {
                Some(sent) => sent.checked_sub(1),
                None if *what == "setup" => {
                    transaction::begin(connection, &search_path, "tidegate check", timeouts)
                        .await?;
                    let position = failing(connection, &scratch, &projection.setup).await;
                    transaction::rollback(connection).await?;
                    position
                }
                None => None,
            },
            _ => None,
        };
        return Err(Unchecked { problem, position });
    }
    let mut problems = Vec::new();
    let tables = tables(connection, &scratch).await?;
    let applies = sql.applies.iter().enumerate().map(|(i, s)| (false, i, s));
    let emits = sql.emits.iter().enumerate();
    let emits = emits.map(|(i, e)| (true, i, &e.statement));
    // A projection that says so may write into other schemas.
    let own_schema = (!projection.writes_elsewhere).then_some(&*scratch);
    for (emit, index, statement) in applies.chain(emits) {
        let found = statement_problems(connection, statement, emit, own_schema).await?;
        problems.extend(found.into_iter().map(|found| {
            StatementProblem {
                emit,
                index,
                position: found.position,
                hint: found
                    .hint
                    .clone()
                    .or_else(|| table_hint(statement, &found, &tables)),
                message: found.message,
            }
        }));
    }
    transaction::rollback(connection).await?;
    Ok(problems)
}

/// Where the statement of a script begins that fails, if Postgres gave no position: one by one.
async fn failing(connection: &mut PgConnection, schema: &str, script: &str) -> Option<usize> {
    schema::create(connection, schema, "", "", None)
        .await
        .ok()?;
    for (start, statement) in statements(script)? {
        let done = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&mut *connection)
            .await;
        if done.is_err() {
            return Some(start);
        }
    }
    None
}

fn original_position(error: &sqlx::Error) -> Option<usize> {
    let error = error.as_database_error()?;
    match error.try_downcast_ref::<PgDatabaseError>()?.position()? {
        PgErrorPosition::Original(position) => Some(position),
        PgErrorPosition::Internal { .. } => None,
    }
}

/// The tables and views that a statement can name without a schema.
async fn tables(connection: &mut PgConnection, schema: &str) -> Result<Vec<String>, store::Error> {
    let names = sqlx::query_scalar(
        "SELECT relname::text FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace n ON n.oid = relnamespace
         WHERE nspname = $1 AND relkind IN ('r', 'p', 'v', 'm') AND NOT starts_with(relname, '_')
         ORDER BY relname",
    );
    Ok(names.bind(schema).fetch_all(connection).await?)
}

/// Postgres suggests a column for a misspelt one, but no table.
fn table_hint(statement: &Statement, found: &Found, tables: &[String]) -> Option<String> {
    if found.sqlstate != "42P01" {
        return None;
    }
    let name = word_at(&statement.text.sql, found.position?)?;
    let near = tables.iter().find(|table| is_near(&name, table));
    Some(match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`setup` makes no such table; one of another schema is found if `search_path` names the schema".to_owned(),
    })
}

/// What is wrong, and where, in characters of the user's text.
struct Found {
    /// Empty if it was not Postgres that found it.
    sqlstate: String,
    message: String,
    hint: Option<String>,
    position: Option<usize>,
}

async fn statement_problems(
    connection: &mut PgConnection,
    statement: &Statement,
    emit: bool,
    own_schema: Option<&str>,
) -> Result<Vec<Found>, store::Error> {
    sqlx::raw_sql("SAVEPOINT statement")
        .execute(&mut *connection)
        .await?;
    let found = match plan(connection, statement, emit, own_schema).await {
        Ok(found) => found,
        Err(error) if error.as_database_error().is_some() => vec![problem(statement, &error)],
        Err(error) => return Err(error.into()),
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
    own_schema: Option<&str>,
) -> Result<Vec<Found>, sqlx::Error> {
    let prepared = (&mut *connection)
        .prepare(statement.sql().into_sql_str())
        .await?;
    let mut found = match emit {
        true => result_problems(statement, prepared.columns()),
        false => Vec::new(),
    };
    let count: usize = statement.relations.iter().map(|r| r.parameters.len()).sum();
    let nulls = vec!["NULL"; count].join(", ");
    let wrapped = &statement.wrapped;
    // A prepared statement outlives the savepoint, so each has its own name.
    let name = format!("tidegate_checked_{}", uuid::Uuid::new_v4().simple());
    for sql in [
        "SET LOCAL plan_cache_mode = force_generic_plan".to_owned(),
        format!("PREPARE {name} AS {wrapped}"),
        format!("EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE {name}({nulls})"),
        format!("DEALLOCATE {name}"),
    ] {
        match sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_optional(&mut *connection)
            .await
        {
            Ok(None) => {}
            Ok(Some(row)) => {
                let plan: serde_json::Value = row.try_get(0)?;
                let own = |schema: &str| own_schema.is_none_or(|own| own == schema);
                let elsewhere = written(&plan).into_iter().find(|(schema, _)| !own(schema));
                found.extend(elsewhere.map(|table| elsewhere_problem(statement, &table)));
            }
            Err(error) if error.as_database_error().is_some() => {
                found.push(planning_problem(statement, &error));
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The tables that a plan writes, with their schemas.
fn written(plan: &serde_json::Value) -> Vec<(String, String)> {
    match plan {
        serde_json::Value::Array(nodes) => nodes.iter().flat_map(written).collect(),
        serde_json::Value::Object(fields) => {
            let text = |name: &str| fields.get(name)?.as_str().map(str::to_owned);
            let writes = text("Node Type").is_some_and(|kind| kind == "ModifyTable");
            let table = writes.then(|| Some((text("Schema")?, text("Relation Name")?)));
            let inside = fields.values().flat_map(written);
            table.flatten().into_iter().chain(inside).collect()
        }
        _ => Vec::new(),
    }
}

fn elsewhere_problem(statement: &Statement, (schema, table): &(String, String)) -> Found {
    Found {
        sqlstate: String::new(),
        message: format!(
            "the statement writes to `{schema}.{table}`, outside the projection's own schema, where a reset empties nothing"
        ),
        hint: Some(
            "make the table in `setup`; or set `writes_elsewhere = true` and do without `tidegate reset`"
                .to_owned(),
        ),
        position: last_word(&statement.text.sql, table),
    }
}

/// What is wrong with the result columns of an `emit`.
fn result_problems(statement: &Statement, columns: &[sqlx::postgres::PgColumn]) -> Vec<Found> {
    let mut problems = Vec::new();
    for (required, hint) in [
        (
            "_ref",
            "select `_ref` of `events`: it names the event that the message comes from",
        ),
        ("payload", "select what is to be sent AS payload"),
    ] {
        if !columns.iter().any(|column| column.name() == required) {
            problems.push(Found {
                sqlstate: String::new(),
                message: format!("the result has no column `{required}`"),
                hint: Some(hint.to_owned()),
                position: None,
            });
        }
    }
    for column in columns {
        let found = sql_name(column.type_info().name());
        let known = RESULT.iter().find(|(name, _)| *name == column.name());
        let (message, hint) = match known {
            None => {
                let names: Vec<&str> = RESULT.iter().map(|(name, _)| *name).collect();
                (
                    format!("the result column `{}` means nothing", column.name()),
                    format!("name it one of {}", names.join(", ")),
                )
            }
            Some((_, types)) if types.contains(&column.type_info().name()) => continue,
            Some((name, types)) => {
                let types: Vec<String> = types.iter().map(|name| sql_name(name)).collect();
                (
                    format!("the result column `{name}` has type {found}"),
                    format!("cast it to {}", types.join(", ")),
                )
            }
        };
        problems.push(Found {
            sqlstate: String::new(),
            message,
            hint: Some(hint),
            // Where it is named last is where the result gets it from, as a rule.
            position: last_word(&statement.text.sql, column.name()),
        });
    }
    problems
}

/// A type as people write it.
fn sql_name(type_name: &str) -> String {
    match type_name {
        "INT8" => "bigint".to_owned(),
        "INT4" => "integer".to_owned(),
        "INT2" => "smallint".to_owned(),
        "FLOAT8" => "double precision".to_owned(),
        "FLOAT4" => "real".to_owned(),
        "BOOL" => "boolean".to_owned(),
        other => other.to_lowercase(),
    }
}

/// The statement was parsed before, so what planning finds has no place in its text, but for one.
fn planning_problem(statement: &Statement, error: &sqlx::Error) -> Found {
    let found = problem(statement, error);
    match &*found.sqlstate {
        "42P10" => Found {
            position: last_word(&statement.text.sql, "conflict"),
            hint: Some(
                "make a PRIMARY KEY or UNIQUE constraint on exactly these columns in `setup`"
                    .to_owned(),
            ),
            ..found
        },
        _ => Found {
            position: None,
            ..found
        },
    }
}

fn problem(statement: &Statement, error: &sqlx::Error) -> Found {
    let database = error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    let Some(database) = database else {
        return Found {
            sqlstate: String::new(),
            message: error.to_string(),
            hint: None,
            position: None,
        };
    };
    Found {
        sqlstate: database.code().to_owned(),
        message: format!("{} (SQLSTATE {})", database.message(), database.code()),
        hint: database.hint().map(str::to_owned),
        position: original_position(error).and_then(|sent| statement.position(sent)),
    }
}
