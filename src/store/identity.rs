//! Which database this is.

use sqlx::PgConnection;

use super::{Error, transaction};

const READ: &str = include_str!("sql/identity_read.sql");

/// The database's name, and the identifier of the Postgres cluster that it is in.
pub(crate) async fn read(connection: &mut PgConnection) -> Result<(String, String), Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(READ).fetch_one(&mut *connection).await;
    transaction::end_alone(connection, answer).await
}
