//! Claims: taking a partition's position row, with everything that must be true for it.

use std::fmt;

use sqlx::PgConnection;
use uuid::Uuid;

use super::apply::Generation;
use crate::failpoint;
use crate::projection::Projection;
use crate::store::position::Claimed;
use crate::store::{self, Timeouts, position, transaction};
use crate::types::TopicPartition;

/// Why a claim waits. It is tried again; nothing is wrong with the partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    Paused,
    /// Another version of the handler owns the tables.
    OtherDefinition {
        stored: String,
        mine: String,
    },
    NoProjection,
    /// Kafka has not said yet which topic this is.
    TopicUnknown,
    /// Nobody has seen this partition before.
    NewPartition {
        generation: i32,
    },
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("the projection is paused"),
            Self::OtherDefinition { stored, mine } => write!(
                f,
                "the tables were built by another definition ({stored}); this process has ({mine}); `tidegate reset` builds them anew"
            ),
            Self::NoProjection => f.write_str("the projection is not in the database"),
            Self::TopicUnknown => f.write_str("kafka has not said yet which topic this is"),
            Self::NewPartition { .. } => f.write_str("the partition is new"),
        }
    }
}

/// Takes one partition in a transaction of its own, if generation, definition and desired state allow
/// it; all are read from the rows, under a lock that keeps an operator's action out (I3).
pub(super) async fn claim(
    connection: &mut PgConnection,
    projection: &Projection,
    partition: &TopicPartition,
    topic_id: Option<Uuid>,
    owner: &str,
    timeouts: &Timeouts,
) -> Result<Result<(Generation, Claimed), Waits>, store::Error> {
    let name = format!("tidegate {owner} claim {}", projection.name);
    transaction::begin(connection, transaction::OWN_SEARCH_PATH, &name, timeouts).await?;
    failpoint::reach(failpoint::CLAIM_BEFORE_ROW);
    let claimed = claim_row(connection, projection, partition, topic_id, owner).await;
    match &claimed {
        Ok(Ok(_)) => {
            failpoint::reach(failpoint::CLAIM_BEFORE_COMMIT);
            transaction::commit(connection).await?;
            failpoint::reach(failpoint::CLAIM_AFTER_COMMIT);
        }
        Ok(Err(_)) => transaction::rollback(connection).await?,
        Err(error) if error.connection_is_usable() => transaction::rollback(connection).await?,
        Err(_) => {}
    }
    claimed
}

async fn claim_row(
    connection: &mut PgConnection,
    projection: &Projection,
    partition: &TopicPartition,
    topic_id: Option<Uuid>,
    owner: &str,
) -> Result<Result<(Generation, Claimed), Waits>, store::Error> {
    let Some(live) = store::projection::share(connection, &projection.name).await? else {
        return Ok(Err(Waits::NoProjection));
    };
    if live.paused() {
        return Ok(Err(Waits::Paused));
    }
    let mine = projection.definition();
    if live.definition != mine {
        return Ok(Err(Waits::OtherDefinition {
            stored: live.definition,
            mine,
        }));
    }
    let (name, generation) = (&projection.name, live.generation);
    let claimed = position::claim(connection, name, generation, partition, owner, topic_id).await?;
    Ok(match claimed {
        None => Err(Waits::NewPartition { generation }),
        Some(claimed) => Ok((
            Generation {
                number: generation,
                schema_name: live.schema_name,
                schema_oid: live.schema_oid,
            },
            claimed,
        )),
    })
}
