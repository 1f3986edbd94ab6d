//! The demo's SQL: its database, the example's tables, and what a process is doing.
//!
//! Not in `store`: none of it is about Tidegate's own tables, apart from the outbox's ids.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::ledger::Day;

pub(super) const DATABASE_PREFIX: &str = "tidegate_demo_";
const MARK: &str = "Made by tidegate demo, dropped by the next one. Topics:";

/// Databases of earlier demos to which nobody is connected. The mark is written by a connection to the
/// database itself, which stays open: a marked one without connections is nobody's.
const LEFT: &str = "
SELECT d.datname, substr(shobj_description(d.oid, 'pg_database'), length($2) + 1)
FROM pg_catalog.pg_database d
WHERE starts_with(d.datname, $1) AND starts_with(shobj_description(d.oid, 'pg_database'), $2)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity a WHERE a.datname = d.datname)";

/// Transactions of a process that have written something and are not committed.
const OPEN: &str = "
SELECT count(*) FROM pg_catalog.pg_stat_activity
WHERE datname = current_database() AND backend_xid IS NOT NULL
  AND application_name LIKE 'tidegate %-' || $1 || '-% apply %'";

pub(super) async fn create_database(
    connection: &mut PgConnection,
    name: &str,
) -> anyhow::Result<()> {
    execute(connection, format!("CREATE DATABASE {name}")).await
}

/// Only when nobody is connected: Postgres refuses otherwise.
pub(super) async fn drop_database(connection: &mut PgConnection, name: &str) -> anyhow::Result<()> {
    execute(connection, format!("DROP DATABASE {name}")).await
}

/// Says in the database itself that it is the demo's.
pub(super) async fn mark_database(
    connection: &mut PgConnection,
    name: &str,
    topics: &[&str],
) -> anyhow::Result<()> {
    let connected: String = sqlx::query_scalar("SELECT current_database()")
        .fetch_one(&mut *connection)
        .await?;
    anyhow::ensure!(
        connected == name,
        "connected to `{connected}` instead of `{name}`: name the database in the path of TIDEGATE__POSTGRES__URL"
    );
    let topics = topics.join(" ");
    execute(
        connection,
        format!("COMMENT ON DATABASE {name} IS '{MARK} {topics}'"),
    )
    .await
}

/// Drops what earlier demos have left, and returns the topics that belong to it.
pub(super) async fn drop_left_databases(
    connection: &mut PgConnection,
) -> anyhow::Result<Vec<String>> {
    let left: Vec<(String, String)> = sqlx::query_as(LEFT)
        .bind(DATABASE_PREFIX)
        .bind(MARK)
        .fetch_all(&mut *connection)
        .await?;
    let mut topics = Vec::new();
    for (name, of) in left {
        // Another demo may have been faster, or somebody may have just connected.
        if drop_database(connection, &name).await.is_ok() {
            topics.extend(of.split_whitespace().map(str::to_owned));
        }
    }
    Ok(topics)
}

/// The names are ours: letters, digits, dots and underscores.
async fn execute(connection: &mut PgConnection, sql: String) -> anyhow::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await?;
    Ok(())
}

/// How many of a process's batches are in the middle of their transaction.
pub(super) async fn open_batches(connection: &mut PgConnection, pid: u32) -> anyhow::Result<i64> {
    Ok(sqlx::query_scalar(OPEN)
        .bind(pid.to_string())
        .fetch_one(connection)
        .await?)
}

/// Balance and number of entries of each account.
pub(super) async fn balances(
    connection: &mut PgConnection,
) -> anyhow::Result<BTreeMap<String, (i64, i64)>> {
    let rows: Vec<(String, i64, i64)> =
        sqlx::query_as("SELECT account, amount, entries FROM balances.balance")
            .fetch_all(connection)
            .await?;
    Ok(rows
        .into_iter()
        .map(|(account, amount, entries)| (account, (amount, entries)))
        .collect())
}

/// Turnover of each day.
pub(super) async fn turnover(
    connection: &mut PgConnection,
) -> anyhow::Result<BTreeMap<NaiveDate, Day>> {
    let rows: Vec<(NaiveDate, i64, i64, i64)> =
        sqlx::query_as("SELECT day, entries, credit, debit FROM turnover.turnover")
            .fetch_all(connection)
            .await?;
    let day = |(day, entries, credit, debit)| {
        (
            day,
            Day {
                entries,
                credit,
                debit,
            },
        )
    };
    Ok(rows.into_iter().map(day).collect())
}

/// The ids of all messages.
pub(super) async fn outbox_ids(connection: &mut PgConnection) -> anyhow::Result<Vec<Uuid>> {
    Ok(sqlx::query_scalar("SELECT id FROM tidegate.outbox")
        .fetch_all(connection)
        .await?)
}
