//! Which database this is.

use sqlx::PgConnection;

use super::Error;

const READ: &str = include_str!("sql/identity_read.sql");

/// The database's name, and the identifier of the Postgres cluster that it is in.
pub(crate) async fn read(connection: &mut PgConnection) -> Result<(String, String), Error> {
    Ok(sqlx::query_as(READ).fetch_one(connection).await?)
}
