//! Reset in place: the live generation's tables are emptied and its positions moved back, in one
//! transaction that fences every worker.
//!
//! A running service need not be stopped: its next batch is refused, it claims again under the new
//! generation and refills. Messages that a live generation has sent before are not sent again.

use std::collections::BTreeSet;

use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::start::made;
use super::topic_watch::TopicIds;
use crate::failpoint;
use crate::kafka::{Cluster, ClusterError, Watermarks};
use crate::projection::Projection;
use crate::store::generation::{self, State};
use crate::store::operation::Operation;
use crate::store::position::{Stood, Stored};
use crate::store::schema::{self, Problem};
use crate::store::{self, Timeouts, operation, position, transaction};
use crate::types::TopicPartition;

/// Why a reset was refused. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ResetError {
    #[error(
        "projection `{0}` is not in the database: it has never been started, so there is nothing to reset"
    )]
    NotStarted(String),
    #[error(
        "the setup SQL of `{0}` has changed since its tables were made; a reset empties tables and cannot change them. `tidegate rebuild start {0}` builds new ones beside them; raise the projection's `version` first"
    )]
    SetupChanged(String),
    #[error(
        "generation {generation} of `{projection}` is being built beside the live one; `tidegate rebuild cut-over {projection}` first, or `tidegate rebuild abandon {projection}`"
    )]
    Building { projection: String, generation: i32 },
    #[error(
        "projection `{0}` writes to tables outside its schema (`writes_elsewhere`), which a reset cannot empty: what is in them would be counted twice"
    )]
    WritesElsewhere(String),
    #[error(transparent)]
    Schema(#[from] Problem),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Kafka(#[from] ClusterError),
}

/// What a reset did.
#[derive(Clone, Debug)]
pub(crate) struct Reset {
    pub(crate) operation: Uuid,
    pub(crate) generation: i32,
    /// Each partition, where it stood and where it stands now.
    pub(crate) moved: Vec<(TopicPartition, i64, i64)>,
    /// Topics that are others than before: their messages are new ones.
    pub(crate) made_anew: Vec<String>,
}

/// Resets to the oldest records kept. Safe to repeat, also in the middle of a refill.
pub(crate) async fn reset(
    connection: &mut PgConnection,
    cluster: &Cluster,
    projection: &Projection,
    who: &str,
    timeouts: &Timeouts,
) -> Result<Reset, ResetError> {
    if projection.writes_elsewhere {
        return Err(ResetError::WritesElsewhere(projection.name.clone()));
    }
    let name = &projection.name;
    let Some((live, _)) = store::projection::read(connection, name).await? else {
        return Err(ResetError::NotStarted(name.clone()));
    };
    // Read before Kafka is asked, which is before the transaction: no question to Kafka under a lock. A log that goes
    // on has all that was applied by now. What the workers apply after the answer may lie beyond the end it tells.
    let applied = position::read(connection, name, live.generation).await?;
    let logs = cluster.logs(&projection.topics).await?;
    let asked = Asked {
        topic_ids: topic_ids(cluster, &projection.topics).await?,
        shorter: shorter(&logs, &applied),
        logs,
    };
    let search_path = transaction::search_path(name, &projection.search_path);
    let application = format!("tidegate reset {name}");
    transaction::begin(connection, &search_path, &application, timeouts).await?;
    let done = in_transaction(connection, projection, &asked, who).await;
    match &done {
        Ok(_) => {
            failpoint::reach(failpoint::RESET_BEFORE_COMMIT);
            transaction::commit(connection).await?;
            failpoint::reach(failpoint::RESET_AFTER_COMMIT);
        }
        Err(_) => transaction::rollback(connection).await?,
    }
    done
}

/// What Kafka has answered.
struct Asked {
    logs: Vec<(TopicPartition, Watermarks)>,
    topic_ids: TopicIds,
    /// Topics of whose records more were applied than a partition's log has.
    shorter: BTreeSet<String>,
}

/// The locks come in the order that all operator actions share: generation lock, projection and
/// generation rows, tables, position rows.
async fn in_transaction(
    connection: &mut PgConnection,
    projection: &Projection,
    asked: &Asked,
    who: &str,
) -> Result<Reset, ResetError> {
    let Asked {
        logs, topic_ids, ..
    } = asked;
    let name = &projection.name;
    transaction::lock_generation(connection, name).await?;
    let Some(live) = store::projection::lock(connection, name).await? else {
        return Err(ResetError::NotStarted(name.clone()));
    };
    let made = made(projection);
    if live.setup != made.setup {
        return Err(ResetError::SetupChanged(name.clone()));
    }
    let beside = generation::beside(connection, name).await?;
    if let Some(building) = beside.iter().find(|beside| beside.is_building()) {
        return Err(ResetError::Building {
            projection: name.clone(),
            generation: building.number,
        });
    }
    let old = live.generation;
    schema::empty(connection, &live.schema_name, &projection.seed).await?;

    let stood = position::reset(connection, name, old).await?;
    store::raise_emission(connection, name, &stood).await?; // I5

    generation::set_state(connection, name, old, State::Retired).await?;
    let new = generation::insert(connection, name, true, &live.schema_name, &made).await?;
    store::projection::set_live(connection, name, new).await?;
    let anew = made_anew(asked, &stood);
    let begin: Vec<Stood> = logs
        .iter()
        .map(|(partition, log)| begin(partition, *log, topic_ids, &stood, &anew))
        .collect();
    position::begin(connection, name, new, &begin).await?;

    let operation = Uuid::new_v4();
    let offsets = |rows: &[Stood]| -> serde_json::Value {
        let row = |p: &Stood| {
            (
                format!("{}[{}]", p.topic, p.partition),
                p.next_offset.into(),
            )
        };
        rows.iter()
            .map(row)
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let record = Operation {
        id: operation,
        kind: "reset",
        projection: name,
        who,
        arguments: json!({ "to": "earliest" }),
        before: json!({ "generation": old, "definition": live.definition, "next_offset": offsets(&stood) }),
        after: json!({ "generation": new, "definition": made.definition, "next_offset": offsets(&begin) }),
    };
    operation::insert(connection, &record).await?; // I2
    let moved = logs.iter().map(|(partition, log)| {
        let before = find(&stood, partition).map_or(log.low, |p| p.next_offset);
        (partition.clone(), before, log.low)
    });
    Ok(Reset {
        operation,
        generation: new,
        moved: moved.collect(),
        made_anew: anew.into_iter().collect(),
    })
}

fn find<'a>(rows: &'a [Stood], partition: &TopicPartition) -> Option<&'a Stood> {
    rows.iter()
        .find(|p| p.topic == partition.topic() && p.partition == partition.partition())
}

/// The present ids of topics.
pub(super) async fn topic_ids(
    cluster: &Cluster,
    topics: &[String],
) -> Result<TopicIds, ClusterError> {
    let mut ids = TopicIds::new();
    for topic in topics {
        ids.insert(topic.clone(), cluster.topic_id(topic).await?);
    }
    Ok(ids)
}

/// Topics with a partition whose log ends before what was applied when it was asked for its end (I5).
fn shorter(logs: &[(TopicPartition, Watermarks)], applied: &[Stored]) -> BTreeSet<String> {
    let ends_before = |(partition, log): &&(TopicPartition, Watermarks)| {
        let is_it =
            |p: &&Stored| p.topic == partition.topic() && p.partition == partition.partition();
        applied
            .iter()
            .find(is_it)
            .is_some_and(|p| p.next_offset > log.high)
    };
    let shorter = logs.iter().filter(ends_before);
    shorter
        .map(|(partition, _)| partition.topic().to_owned())
        .collect()
}

/// Topics that have another id than before, a log that is too short, or a partition that was found to be another
/// log: deleted and made again, or overwritten. They are the next incarnation, with new message ids and a right to
/// emit of their own (I5).
fn made_anew(asked: &Asked, stood: &[Stood]) -> BTreeSet<String> {
    let mut anew = asked.shorter.clone();
    for (partition, _) in &asked.logs {
        let Some(before) = find(stood, partition) else {
            continue;
        };
        let present = asked.topic_ids.get(partition.topic()).copied().flatten();
        let differs = before.topic_id.is_some() && present.is_some() && before.topic_id != present;
        if differs || before.in_doubt {
            anew.insert(partition.topic().to_owned());
        }
    }
    anew
}

/// A new generation's position, with an epoch above all that were claimed.
fn begin(
    partition: &TopicPartition,
    log: Watermarks,
    topic_ids: &TopicIds,
    stood: &[Stood],
    anew: &BTreeSet<String>,
) -> Stood {
    let before = find(stood, partition);
    // All partitions of a topic are of one incarnation; a partition that is new takes that of the others.
    let of_topic = stood.iter().filter(|p| p.topic == partition.topic());
    let incarnation = of_topic.map(|p| p.incarnation).max().unwrap_or(1);
    Stood {
        topic: partition.topic().to_owned(),
        partition: partition.partition(),
        next_offset: log.low,
        incarnation: incarnation + i32::from(anew.contains(partition.topic())),
        topic_id: topic_ids.get(partition.topic()).copied().flatten(),
        epoch: before.map_or(0, |p| p.epoch),
        in_doubt: false,
    }
}
