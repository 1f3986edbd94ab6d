//! `registry_schema`: what the numbers of a schema registry stand for.

use chrono::{DateTime, Utc};
use sqlx::Connection as _;
use uuid::Uuid;

use super::{Database, Error, transaction, within};

const REMEMBER: &str = include_str!("sql/registry_schema_remember.sql");

/// Whether a number stands for what it stood for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remembered {
    /// It does, or is new.
    Same,
    Other {
        first_seen: DateTime<Utc>,
    },
}

/// Remembers what a number stands for, and compares with what is remembered. On a connection of its own: it is
/// done once for each number, outside of any transaction.
pub(crate) async fn remember(
    database: &Database,
    registry: &str,
    id: u32,
    fingerprint: Uuid,
) -> Result<Remembered, Error> {
    let mut connection = database.connect("tidegate registry").await?;
    let asked = async {
        transaction::begin_alone(&mut connection).await?;
        let row = sqlx::query_as(REMEMBER)
            .bind(registry)
            .bind(i64::from(id))
            .bind(fingerprint)
            .fetch_one(&mut connection)
            .await;
        transaction::end_alone(&mut connection, row).await
    };
    let limit = database.timeouts.statement;
    let (remembered, first_seen): (Uuid, DateTime<Utc>) =
        within("remembering a schema", limit, asked).await?;
    let _ = connection.close().await;
    Ok(match remembered == fingerprint {
        true => Remembered::Same,
        false => Remembered::Other { first_seen },
    })
}
