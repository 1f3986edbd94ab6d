//! Claims: taking a partition's position row, with everything that must be true for it.

use std::fmt;

use sqlx::PgConnection;
use uuid::Uuid;

use super::apply::Generation;
use crate::failpoint;
use crate::projection::Projection;
use crate::store::position::Claimed;
use crate::store::projection::Live;
use crate::store::{self, Timeouts, generation, position, transaction};
use crate::types::TopicPartition;

/// Which generation is worked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Whichever is the live one.
    Live,
    /// The one of this number, which is built beside the live one.
    Build(i32),
}

impl Role {
    /// Reads the generation, and keeps it from changing until the transaction ends.
    pub(super) async fn share(
        self,
        connection: &mut PgConnection,
        projection: &str,
    ) -> Result<Option<Live>, store::Error> {
        match self {
            Self::Live => store::projection::share(connection, projection).await,
            Self::Build(number) => generation::building(connection, projection, number).await,
        }
    }
}

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
    /// The generation is live by now, or given up.
    NotBuilding,
    /// Kafka has not said yet which topic this is.
    TopicUnknown,
    /// Nobody has seen this partition before.
    NewPartition {
        generation: i32,
    },
}

impl Waits {
    /// In a few words.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::OtherDefinition { .. } => {
                "the tables were built by another definition than this process has"
            }
            Self::NoProjection => "the projection is not in the database",
            Self::NotBuilding => "the generation is live by now, or given up",
            Self::TopicUnknown => "kafka has not said yet which topic this is",
            Self::NewPartition { .. } => "the partition is new",
        }
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("the projection is paused"),
            Self::OtherDefinition { stored, mine } => write!(
                f,
                "the tables were built by another definition ({stored}); this process has ({mine}). Nothing is applied to them. `tidegate rebuild start` builds new ones beside them while the others serve on; `tidegate reset` empties them and builds them anew, where their setup is still the same"
            ),
            Self::NoProjection => f.write_str("the projection is not in the database"),
            Self::NotBuilding => f.write_str("the generation is not being built any more"),
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
    role: Role,
    partition: &TopicPartition,
    topic_id: Option<Uuid>,
    owner: &str,
    timeouts: &Timeouts,
) -> Result<Result<(Generation, Claimed), Waits>, store::Error> {
    let name = format!("tidegate {owner} claim {}", projection.name);
    transaction::begin(connection, transaction::OWN_SEARCH_PATH, &name, timeouts).await?;
    failpoint::reach(failpoint::CLAIM_BEFORE_ROW);
    let claimed = claim_row(connection, projection, role, partition, topic_id, owner).await;
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
    role: Role,
    partition: &TopicPartition,
    topic_id: Option<Uuid>,
    owner: &str,
) -> Result<Result<(Generation, Claimed), Waits>, store::Error> {
    let Some(live) = role.share(connection, &projection.name).await? else {
        return Ok(Err(match role {
            Role::Live => Waits::NoProjection,
            Role::Build(_) => Waits::NotBuilding,
        }));
    };
    // A build stays behind the live generation, which stands still then.
    if live.paused() && role == Role::Live {
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
        Some(mut claimed) => {
            if role != Role::Live {
                // I5: nothing is sent, whatever was sent before; see `parking::spend_rights`.
                claimed.claim.emitted_through = i64::MAX;
            }
            Ok((Generation::of(live, role), claimed))
        }
    })
}

/// Writes the first position of a partition that appeared later, and returns it. A build begins where the live
/// generation began, or what retention has removed meanwhile would be missing without a word; if it has, the
/// partition halts. None where that has not begun yet.
pub(super) async fn add(
    connection: &mut PgConnection,
    projection: &str,
    role: Role,
    generation: i32,
    partition: &TopicPartition,
    low: i64,
) -> Result<Option<i64>, store::Error> {
    let first = match role {
        Role::Live => low,
        Role::Build(_) => {
            let Some((live, _)) = store::projection::read(connection, projection).await? else {
                return Ok(None);
            };
            let marks = position::marks(connection, projection, &[live.generation]).await?;
            match marks.into_iter().find(|mark| mark.of() == *partition) {
                Some(mark) => mark.first_offset.unwrap_or(low),
                None => return Ok(None),
            }
        }
    };
    let start = [(partition.clone(), first)];
    position::insert(connection, projection, generation, &start).await?;
    Ok(Some(first))
}
