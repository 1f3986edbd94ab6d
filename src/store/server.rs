//! What the server is and may do: for `doctor`. The service itself never asks.

use chrono::{DateTime, Utc};
use sqlx::{Executor as _, FromRow, PgConnection, Row as _};

use super::{Error, transaction};

const FACTS: &str = include_str!("sql/server_facts.sql");
const PID: &str = include_str!("sql/server_pid.sql");
const PRIVILEGES: &str = include_str!("sql/server_privileges.sql");

/// What a server says of itself, and of this role.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Facts {
    /// 150004 is 15.4.
    pub(crate) version: i32,
    pub(crate) version_name: String,
    pub(crate) in_recovery: bool,
    pub(crate) reads_only: bool,
    pub(crate) fsync: bool,
    pub(crate) full_page_writes: bool,
    pub(crate) synchronous_commit: String,
    pub(crate) synchronous_standbys: String,
    pub(crate) connections_max: i32,
    pub(crate) connections: i64,
    pub(crate) superuser: bool,
    pub(crate) role: String,
    pub(crate) may_create: bool,
    pub(crate) tls: bool,
    pub(crate) clock: DateTime<Utc>,
    pub(crate) size: i64,
    /// Of the server's process that answers: two connections with one of it share it through a pooler.
    pub(crate) pid: i32,
}

pub(crate) async fn facts(connection: &mut PgConnection) -> Result<Facts, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(FACTS).fetch_one(&mut *connection).await;
    transaction::end_alone(connection, answer).await
}

/// Whether two connections that are both open share processes of the server, as behind a pooler in transaction mode.
///
/// Both are asked several times in turn: a pooler hands out one session or another, as others leave them free.
pub(crate) async fn is_shared(
    one: &mut PgConnection,
    other: &mut PgConnection,
) -> Result<bool, Error> {
    let (first, second) = (pid(one).await?, pid(other).await?);
    for _ in 0..10 {
        if first == second || pid(one).await? != first || pid(other).await? != second {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Without a prepared statement, which a pooler may forget.
async fn pid(connection: &mut PgConnection) -> Result<i32, Error> {
    let row = connection.fetch_one(sqlx::raw_sql(PID)).await?;
    Ok(row.try_get(0)?)
}

/// What the role lacks. To be asked of a database that is migrated.
pub(crate) async fn missing_privileges(
    connection: &mut PgConnection,
) -> Result<Vec<String>, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_scalar(PRIVILEGES)
        .fetch_all(&mut *connection)
        .await;
    transaction::end_alone(connection, answer).await
}
