//! `emission`: the right to emit, which a record keeps or has spent over all generations.

use sqlx::PgConnection;

use super::Error;
use super::position::Stood;

const RAISE: &str = include_str!("sql/emission_raise.sql");

/// Remembers how far a live generation came.
pub(crate) async fn raise(
    connection: &mut PgConnection,
    projection: &str,
    stood: &[Stood],
) -> Result<(), Error> {
    sqlx::query(RAISE)
        .bind(projection)
        .bind(stood.iter().map(|p| &*p.topic).collect::<Vec<_>>())
        .bind(stood.iter().map(|p| p.incarnation).collect::<Vec<_>>())
        .bind(stood.iter().map(|p| p.partition).collect::<Vec<_>>())
        .bind(stood.iter().map(|p| p.next_offset).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}
