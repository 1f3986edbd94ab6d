//! Why the database refused a batch, read and named afterwards. Decides nothing: the refusal stands.

use std::fmt;

use sqlx::PgConnection;
use uuid::Uuid;

use super::apply::Part;
use crate::store::position::Stored;
use crate::store::{self, generation as generations, position, transaction};
use crate::types::{NextOffset, TopicPartition};

/// Why positions did not move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// An operator began another generation.
    Reset { operation: String },
    /// Somebody else has claimed the partition.
    Lost { owner: String },
    /// Nobody owns it: an operator raised the epoch, or another worker has claimed it and left.
    Taken,
    /// The batch had been committed, and its answer was lost.
    AlreadyCommitted,
    /// The position is another than the one the batch begins at.
    Moved { next: NextOffset },
    /// The rows are as they should be: the handler has ended the transaction, or its schema is gone.
    TransactionEnded,
}

impl Refusal {
    /// The outcome's name, as it is counted.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Reset { .. } => "reset",
            Self::Lost { .. } => "lost",
            Self::Taken => "taken",
            Self::AlreadyCommitted => "already_committed",
            Self::Moved { .. } => "moved",
            Self::TransactionEnded => "transaction_ended",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset { operation } => write!(f, "reset by {operation}"),
            Self::Lost { owner } => write!(f, "lost to {owner}"),
            Self::Taken => f.write_str("taken away, and owned by nobody now"),
            Self::AlreadyCommitted => f.write_str("already committed by me"),
            Self::Moved { next } => write!(f, "the position is {next} now"),
            Self::TransactionEnded => f.write_str(
                "the handler has ended the transaction (COMMIT or ROLLBACK), or its schema was replaced",
            ),
        }
    }
}

/// Names why a batch was refused, from the rows as they stand now. Decides nothing: the refusal stands.
pub(crate) async fn why_refused(
    connection: &mut PgConnection,
    projection: &str,
    batch_id: Uuid,
    parts: &[Part<'_>],
) -> Result<Refusal, store::Error> {
    let Some(generation) = parts.first().map(|part| part.claim.generation) else {
        return Ok(Refusal::TransactionEnded);
    };
    if let Some((live, operation)) = store::projection::read_alone(connection, projection).await?
        && live.generation != generation
        && !is_building(connection, projection, generation).await?
    {
        return Ok(Refusal::Reset { operation });
    }
    let stored = position::read(connection, projection, generation).await?;
    let refusals = parts.iter().filter_map(|part| {
        let row = stored.iter().find(|row| is_of(row, part.partition));
        row.and_then(|row| refusal(part, row, batch_id))
    });
    Ok(refusals
        .into_iter()
        .next()
        .unwrap_or(Refusal::TransactionEnded))
}

async fn is_building(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
) -> Result<bool, store::Error> {
    transaction::begin_alone(connection).await?;
    let building = generations::building(connection, projection, generation).await;
    let building = transaction::end_alone(connection, building).await?;
    Ok(building.is_some())
}

fn is_of(row: &Stored, partition: &TopicPartition) -> bool {
    row.topic == partition.topic() && row.partition == partition.partition()
}

fn refusal(part: &Part<'_>, row: &Stored, batch_id: Uuid) -> Option<Refusal> {
    if row.epoch != part.claim.epoch || row.claim_token != part.claim.token {
        return Some(if row.owner.is_empty() {
            Refusal::Taken
        } else {
            Refusal::Lost {
                owner: row.owner.clone(),
            }
        });
    }
    if row.batch_id == Some(batch_id) {
        return Some(Refusal::AlreadyCommitted);
    }
    let next = NextOffset::from_raw(row.next_offset);
    (next != part.from).then_some(Refusal::Moved { next })
}
