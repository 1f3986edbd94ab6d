//! Operators' decisions about messages in quarantine: to send them again, or to give them up.
//!
//! The relay's rows are locked first: a relay reads what is in quarantine under the same lock, so that it sees
//! either none of this or all.

use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::letters::AROUND_COMMIT;
use super::reposition::{Operator, end};
use crate::store::operation;
use crate::store::quarantine::{self, Place};
use crate::store::{self, transaction};

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum QuarantineError {
    #[error(
        "the messages were released or discarded meanwhile; nothing of this was done. Look again"
    )]
    Changed,
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// What was done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    pub(crate) operation: Uuid,
    /// Messages that the relay sends next, in order, those behind them included.
    pub(crate) released: u64,
}

/// Lets messages be sent again, with all that waits behind them.
pub(crate) async fn release(
    connection: &mut PgConnection,
    places: &[Place],
    operator: Operator<'_>,
) -> Result<Decided, QuarantineError> {
    begin(connection, "release", operator).await?;
    let done = async {
        quarantine::lock(connection, places).await?;
        let released = quarantine::release(connection, places).await?;
        let operation = record(connection, "release", places, json!({}), operator).await?;
        Ok(Decided {
            operation,
            released,
        })
    };
    let done = done.await;
    end(connection, done, AROUND_COMMIT).await
}

/// Gives messages up, for a reason that is recorded. What waits behind them alone is sent.
pub(crate) async fn discard(
    connection: &mut PgConnection,
    places: &[Place],
    why: &str,
    operator: Operator<'_>,
) -> Result<Decided, QuarantineError> {
    begin(connection, "discard", operator).await?;
    let done = async {
        quarantine::lock(connection, places).await?;
        if quarantine::discard(connection, places).await? != places.len() as u64 {
            return Err(QuarantineError::Changed);
        }
        let behind = quarantine::left_behind(connection, places).await?;
        let released = quarantine::release(connection, &behind).await?;
        let arguments = json!({ "why": why });
        let operation = record(connection, "discard", places, arguments, operator).await?;
        Ok(Decided {
            operation,
            released,
        })
    };
    let done = done.await;
    end(connection, done, AROUND_COMMIT).await
}

async fn record(
    connection: &mut PgConnection,
    kind: &str,
    places: &[Place],
    arguments: Value,
    operator: Operator<'_>,
) -> Result<Uuid, store::Error> {
    let messages = places.chunk_by(|a, b| a.stream == b.stream).map(|of| {
        let numbers: Vec<i64> = of.iter().map(|place| place.number).collect();
        (of[0].stream.clone(), json!(numbers))
    });
    let before = json!({ "messages": messages.collect::<serde_json::Map<_, _>>() });
    let record = operator.record(kind, "", arguments, (before, json!({})));
    operation::insert(connection, &record).await?;
    Ok(record.id)
}

async fn begin(
    connection: &mut PgConnection,
    what: &str,
    operator: Operator<'_>,
) -> Result<(), store::Error> {
    let name = format!("tidegate outbox {what}");
    let path = transaction::OWN_SEARCH_PATH;
    transaction::begin(connection, path, &name, operator.timeouts).await
}
