//! Reset in place: the live generation's tables are emptied and its positions moved, in one transaction that fences
//! every worker.
//!
//! A running service need not be stopped: its next batch is refused, it claims again under the new
//! generation and refills. Messages that a live generation has sent before are not sent again; those of records that
//! none has come to keep their right, wherever a reset begins. A topic that is another log than was read sends all of its
//! messages under new ids, and only if the operator has said so of that topic.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::reposition::Operator;
use super::start::made;
use super::topic_watch::TopicIds;
use crate::engine::rebuild;
use crate::failpoint;
use crate::kafka::{Cluster, ClusterError, Watermarks};
use crate::projection::{First, Gate, Projection};
use crate::store::generation::{self, State};
use crate::store::position::{Mark, Stood};
use crate::store::projection::Live;
use crate::store::schema::{self, Problem};
use crate::store::{self, Offsets, dead_letter, operation, position, transaction};
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
        "the live tables of `{projection}` are of another definition ({live}) than this process has ({mine}): a reset by it would make its own the live one, and whoever has that of now would stop. Ask a process that has it (one whose `/readyz` does not say `not_live`), or, if it is meant so, say `tidegate reset {projection}` with the configuration that is to be live"
    )]
    OtherDefinition {
        projection: String,
        live: String,
        mine: String,
    },
    #[error(
        "the setup SQL of `{0}` has changed since its tables were made; a reset empties tables and cannot change them. `tidegate rebuild start {0}` builds new ones beside them; raise `version` in [projections.{0}] first, so that processes with the old setup stay away from them"
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
    #[error(
        "{partition} would begin at {to}, and its log at {low}: the tables of `{projection}` would be without what is between. If they are right without it, set `begins_anywhere = true` in [projections.{projection}]; otherwise `--to earliest`"
    )]
    NotFromTheMiddle {
        projection: String,
        partition: TopicPartition,
        to: i64,
        low: i64,
    },
    #[error(
        "{partition} would begin at {to}, and its log at {low}: under gate `next` every entity that has events between would wait for them for ever. Set `first = \"any\"` in [projections.{projection}], which takes an entity's first event for its beginning, or `--to earliest`"
    )]
    GateNext {
        projection: String,
        partition: TopicPartition,
        to: i64,
        low: i64,
    },
    #[error(
        "no offset is given for {0}: all tables are emptied, so every partition needs its place"
    )]
    NoOffset(TopicPartition),
    #[error("an offset is given for {partition}, which `{projection}` does not read")]
    NotRead {
        projection: String,
        partition: TopicPartition,
    },
    #[error(
        "{partition} cannot begin at {to}: its log holds offsets from {low} on, and ends at {high}"
    )]
    NotInLog {
        partition: TopicPartition,
        to: i64,
        low: i64,
        high: i64,
    },
    #[error(
        "topic {topic} would be taken for a new log: {why}. All its records, of all partitions, would send their messages under new ids, those too whose messages were sent before. If it was made anew, say `--new-log {topic}`. If it is the log that was read so far, `tidegate accept-topic {projection} {topic} --same-log` first"
    )]
    NewLog {
        projection: String,
        topic: String,
        why: String,
    },
    #[error("`--new-log {topic}`: `{projection}` does not read that topic")]
    NotItsTopic { projection: String, topic: String },
    #[error(
        "somebody else has reset `{0}`, or accepted a topic, in this moment; look again at what there is to do"
    )]
    Meanwhile(String),
    #[error(transparent)]
    Schema(#[from] Problem),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Kafka(#[from] ClusterError),
}

/// Where to begin again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// At the oldest records kept.
    Earliest,
    /// Behind the newest records there are.
    Latest,
    /// At the first record of each partition that is not older; at its end if all are.
    Time(DateTime<Utc>),
    /// At these offsets, one for each partition.
    Offsets(Vec<(TopicPartition, i64)>),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Earliest => f.write_str("earliest"),
            Self::Latest => f.write_str("latest"),
            Self::Time(at) => f.write_str(&at.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
            Self::Offsets(_) => f.write_str("offsets"),
        }
    }
}

/// Whose definition the live tables have before a reset; afterwards it is the one of whoever resets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// Anybody's: an operator has chosen the configuration.
    Any,
    /// The same: whichever process is reached has not been chosen.
    Same,
}

/// What a reset would do to a partition.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) partition: TopicPartition,
    /// Where it stands; none if nobody has read it yet.
    pub(crate) stands: Option<i64>,
    pub(crate) to: i64,
    pub(crate) log: Watermarks,
    /// Records are gone from the log's beginning that the live generation has read.
    pub(crate) is_truncated: bool,
}

/// A reset before it is done.
#[derive(Clone, Debug)]
pub(crate) struct ResetPlan {
    pub(crate) generation: i32,
    pub(crate) moves: Vec<Move>,
    /// The tables that are emptied, with the bytes that they take.
    pub(crate) tables: Vec<(String, i64)>,
    /// Dead letters that wait and whose records are not read again.
    pub(crate) left_behind: i64,
    /// Topics that would be taken for new logs, all of whose messages would be new ones, each with the reason.
    pub(crate) made_anew: BTreeMap<String, String>,
    topic_ids: TopicIds,
    /// Topics of whose records more were applied than a partition's log has, with the reason.
    shorter: BTreeMap<String, String>,
    /// The incarnations that this was found of.
    incarnations: BTreeMap<String, i32>,
}

impl ResetPlan {
    /// New logs are those that the operator has named (I5).
    pub(crate) fn all_said(
        &self,
        projection: &Projection,
        new_logs: &[String],
    ) -> Result<(), ResetError> {
        said(projection, &self.made_anew, new_logs)
    }
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

/// Looks what a reset would do. Changes nothing.
pub(crate) async fn plan(
    connection: &mut PgConnection,
    cluster: &Cluster,
    projection: &Projection,
    before: Before,
    target: &Target,
) -> Result<ResetPlan, ResetError> {
    if projection.writes_elsewhere {
        return Err(ResetError::WritesElsewhere(projection.name.clone()));
    }
    let name = &projection.name;
    let Some((live, _)) = store::projection::read_alone(connection, name).await? else {
        return Err(ResetError::NotStarted(name.clone()));
    };
    // Read before Kafka is asked. A log that goes on has all that was applied by now. What the workers apply after the
    // answer may lie beyond the end it tells.
    let read = async {
        transaction::begin_alone(connection).await?;
        allowed(connection, projection, before, &live).await?;
        let marks = position::marks(connection, name, &[live.generation]).await?;
        let left = position::of_left_topics(connection, name, live.generation).await?;
        Ok::<_, ResetError>((marks, left))
    };
    let read = read.await;
    let _ = transaction::rollback(connection).await; // it has read only
    let (marks, left) = read?;
    let known: Vec<Stood> = marks.iter().map(Mark::stood).chain(left).collect();
    let logs = cluster.logs(&projection.topics).await?;
    let topic_ids = topic_ids(cluster, &projection.topics).await?;
    let tos = resolve(cluster, projection, target, &logs).await?;
    let moves: Vec<Move> = logs
        .iter()
        .zip(tos)
        .map(|(log, to)| moved(log, to, &marks))
        .collect();
    may_begin_there(projection, &moves)?;
    let shorter = shorter(&logs, &known);
    let begin: Vec<_> = moves
        .iter()
        .map(|it| {
            let mark = marks.iter().find(|mark| mark.of() == it.partition);
            (
                it.partition.clone(),
                mark.map_or(1, |mark| mark.incarnation),
                it.to,
            )
        })
        .collect();
    transaction::begin_alone(connection).await?;
    let tables = schema::tables(connection, live.schema_oid).await?;
    let unreachable =
        dead_letter::unreachable(connection, name, live.generation, &begin, &[], None, None).await;
    let left_behind = transaction::end_alone(connection, unreachable).await?;
    Ok(ResetPlan {
        generation: live.generation,
        tables,
        left_behind,
        made_anew: made_anew(&moves, &topic_ids, &shorter, &known),
        incarnations: incarnations(&known),
        topic_ids,
        shorter,
        moves,
    })
}

fn said(
    projection: &Projection,
    made_anew: &BTreeMap<String, String>,
    new_logs: &[String],
) -> Result<(), ResetError> {
    let name = &projection.name;
    let is_read = |topic: &String| projection.topics.contains(topic);
    if let Some(stranger) = new_logs.iter().find(|topic| !is_read(topic)) {
        return Err(ResetError::NotItsTopic {
            projection: name.clone(),
            topic: stranger.clone(),
        });
    }
    match made_anew
        .iter()
        .find(|(topic, _)| !new_logs.contains(topic))
    {
        None => Ok(()),
        Some((topic, why)) => Err(ResetError::NewLog {
            projection: name.clone(),
            topic: topic.clone(),
            why: why.clone(),
        }),
    }
}

fn moved((partition, log): &(TopicPartition, Watermarks), to: i64, marks: &[Mark]) -> Move {
    let mark = marks.iter().find(|mark| mark.of() == *partition);
    let reads = mark.map(|mark| {
        let begun = rebuild::Partition {
            low: log.low,
            first: mark.first_offset.unwrap_or(0),
            next: mark.next_offset,
            from_the_oldest: true,
        };
        begun.reads()
    });
    Move {
        partition: partition.clone(),
        stands: mark.map(|mark| mark.next_offset),
        to,
        log: *log,
        is_truncated: to == log.low && reads.is_some_and(|reads| reads.is_truncated),
    }
}

/// The offset that each partition begins at.
async fn resolve(
    cluster: &Cluster,
    projection: &Projection,
    target: &Target,
    logs: &[(TopicPartition, Watermarks)],
) -> Result<Vec<i64>, ResetError> {
    Ok(match target {
        Target::Earliest => logs.iter().map(|(_, log)| log.low).collect(),
        Target::Latest => logs.iter().map(|(_, log)| log.high).collect(),
        Target::Time(at) => {
            let partitions = logs
                .iter()
                .map(|(partition, _)| partition.clone())
                .collect();
            let found = cluster
                .offsets_at(partitions, at.timestamp_millis())
                .await?;
            // The log's end was asked for before, so that nothing is left out that has come since.
            let to = |((_, log), found): (&(_, Watermarks), Option<i64>)| {
                found.unwrap_or(log.high).clamp(log.low, log.high)
            };
            logs.iter().zip(found).map(to).collect()
        }
        Target::Offsets(offsets) => {
            let is_read = |of: &TopicPartition| logs.iter().any(|(partition, _)| partition == of);
            if let Some((stranger, _)) = offsets.iter().find(|(of, _)| !is_read(of)) {
                return Err(ResetError::NotRead {
                    projection: projection.name.clone(),
                    partition: stranger.clone(),
                });
            }
            let to = |(partition, log): &(TopicPartition, Watermarks)| {
                let given = offsets.iter().find(|(of, _)| of == partition);
                let (_, to) = given.ok_or_else(|| ResetError::NoOffset(partition.clone()))?;
                match (log.low..=log.high).contains(to) {
                    true => Ok(*to),
                    false => Err(ResetError::NotInLog {
                        partition: partition.clone(),
                        to: *to,
                        low: log.low,
                        high: log.high,
                    }),
                }
            };
            logs.iter().map(to).collect::<Result<_, _>>()?
        }
    })
}

/// Only who says so can do without what is older than where it begins.
fn may_begin_there(projection: &Projection, moves: &[Move]) -> Result<(), ResetError> {
    let Some(it) = moves.iter().find(|it| it.to > it.log.low) else {
        return Ok(());
    };
    let (name, partition) = (projection.name.clone(), it.partition.clone());
    let (to, low) = (it.to, it.log.low);
    if !projection.may_begin_anywhere() {
        return Err(ResetError::NotFromTheMiddle {
            projection: name,
            partition,
            to,
            low,
        });
    }
    match projection.gate {
        Gate::Next {
            first: First::At(_),
        } => Err(ResetError::GateNext {
            projection: name,
            partition,
            to,
            low,
        }),
        _ => Ok(()),
    }
}

/// What else keeps a projection from being reset.
async fn allowed(
    connection: &mut PgConnection,
    projection: &Projection,
    before: Before,
    live: &Live,
) -> Result<(), ResetError> {
    let name = &projection.name;
    let mine = projection.definition();
    if before == Before::Same && live.definition != mine {
        return Err(ResetError::OtherDefinition {
            projection: name.clone(),
            live: live.definition.clone(),
            mine,
        });
    }
    if live.setup != made(projection).setup {
        return Err(ResetError::SetupChanged(name.clone()));
    }
    let beside = generation::beside(connection, name).await?;
    match beside.iter().find(|beside| beside.is_building()) {
        None => Ok(()),
        Some(building) => Err(ResetError::Building {
            projection: name.clone(),
            generation: building.number,
        }),
    }
}

/// Resets. Safe to repeat, also in the middle of a refill. `new_logs` are the topics whose messages may all be new ones.
pub(crate) async fn reset(
    connection: &mut PgConnection,
    cluster: &Cluster,
    projection: &Projection,
    before: Before,
    (target, new_logs): (&Target, &[String]),
    operator: Operator<'_>,
) -> Result<Reset, ResetError> {
    let name = &projection.name;
    // Kafka is asked here, before the transaction: no question to it under a lock.
    let plan = plan(connection, cluster, projection, before, target).await?;
    let search_path = transaction::search_path(name, &projection.search_path);
    let application = format!("tidegate reset {name}");
    transaction::begin(connection, &search_path, &application, operator.timeouts).await?;
    let asked = (target, new_logs);
    let done = in_transaction(connection, projection, before, asked, &plan, operator).await;
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

/// The locks come in the order that all operator actions share: generation lock, projection and
/// generation rows, tables, position rows.
async fn in_transaction(
    connection: &mut PgConnection,
    projection: &Projection,
    before: Before,
    (target, new_logs): (&Target, &[String]),
    plan: &ResetPlan,
    operator: Operator<'_>,
) -> Result<Reset, ResetError> {
    let name = &projection.name;
    transaction::lock_generation(connection, name).await?;
    let Some(live) = store::projection::lock(connection, name).await? else {
        return Err(ResetError::NotStarted(name.clone()));
    };
    allowed(connection, projection, before, &live).await?;
    let made = made(projection);
    let old = live.generation;
    schema::empty(connection, &live.schema_name, &projection.seed).await?;

    let stood = position::reset(connection, name, old).await?;
    let left = position::of_left_topics(connection, name, old).await?;
    let known: Vec<Stood> = stood.iter().cloned().chain(left).collect();
    // What was asked of Kafka was compared with these: another operator's new log is not taken for a new one again.
    if incarnations(&known) != plan.incarnations {
        return Err(ResetError::Meanwhile(name.clone()));
    }
    let anew = made_anew(&plan.moves, &plan.topic_ids, &plan.shorter, &known);
    said(projection, &anew, new_logs)?; // I5
    store::raise_emission(connection, name, &stood).await?; // I5

    generation::set_state(connection, name, old, State::Retired).await?;
    let new = generation::insert(connection, name, true, &live.schema_name, &made).await?;
    store::projection::set_live(connection, name, new).await?;
    let begin: Vec<Stood> = plan
        .moves
        .iter()
        .map(|it| begin(it, &plan.topic_ids, &known, &anew))
        .collect();
    position::begin(connection, name, new, &begin).await?;
    let left_out: Vec<Offsets> = begin.iter().zip(&plan.moves).map(left_out).collect();
    store::leave_out_rights_to_emit(connection, name, &left_out).await?; // I5

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
    let arguments = json!({ "to": target.to_string(), "new_log": anew.keys().collect::<Vec<_>>() });
    let before =
        json!({ "generation": old, "definition": live.definition, "next_offset": offsets(&stood) });
    let after =
        json!({ "generation": new, "definition": made.definition, "next_offset": offsets(&begin) });
    let record = operator.record("reset", name, arguments, (before, after));
    operation::insert(connection, &record).await?; // I2
    let moved = plan.moves.iter().map(|it| {
        let before = find(&stood, &it.partition).map_or(it.log.low, |p| p.next_offset);
        (it.partition.clone(), before, it.to)
    });
    Ok(Reset {
        operation: record.id,
        generation: new,
        moved: moved.collect(),
        made_anew: anew.into_keys().collect(),
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
fn shorter(logs: &[(TopicPartition, Watermarks)], known: &[Stood]) -> BTreeMap<String, String> {
    let ends_before = |(partition, log): &(TopicPartition, Watermarks)| {
        let next = find(known, partition)?.next_offset;
        let why = || {
            format!(
                "{partition} ends at {}, and was read up to {next}",
                log.high
            )
        };
        (next > log.high).then(|| (partition.topic().to_owned(), why()))
    };
    logs.iter().filter_map(ends_before).collect()
}

/// The incarnation that each topic is known under.
fn incarnations(known: &[Stood]) -> BTreeMap<String, i32> {
    let mut incarnations = BTreeMap::new();
    for row in known {
        let incarnation = incarnations.entry(row.topic.clone()).or_default();
        *incarnation = row.incarnation.max(*incarnation);
    }
    incarnations
}

/// Topics that have another id than before, a log that is too short, or a partition that was found to be another
/// log: deleted and made again, or overwritten. They are the next incarnation, with new message ids and a right to
/// emit of their own (I5).
fn made_anew(
    moves: &[Move],
    topic_ids: &TopicIds,
    shorter: &BTreeMap<String, String>,
    known: &[Stood],
) -> BTreeMap<String, String> {
    let mut anew = shorter.clone();
    for Move { partition, .. } in moves {
        let Some(before) = find(known, partition) else {
            continue;
        };
        let present = topic_ids.get(partition.topic()).copied().flatten();
        let ids = before.topic_id.zip(present);
        let other = ids.filter(|(before, present)| before != present);
        let why = match other {
            Some((before, present)) => format!("its id was {before} and is {present}"),
            None if before.in_doubt => format!("{partition} was found to be another log"),
            None => continue,
        };
        anew.insert(partition.topic().to_owned(), why);
    }
    anew
}

/// A new generation's position, with an epoch above all that were claimed.
fn begin(
    Move { partition, to, .. }: &Move,
    topic_ids: &TopicIds,
    known: &[Stood],
    anew: &BTreeMap<String, String>,
) -> Stood {
    let before = find(known, partition);
    // All partitions of a topic are of one incarnation; a partition that is new takes that of the others.
    let of_topic = known.iter().filter(|p| p.topic == partition.topic());
    let incarnation = of_topic.map(|p| p.incarnation).max().unwrap_or(1);
    Stood {
        topic: partition.topic().to_owned(),
        partition: partition.partition(),
        next_offset: *to,
        incarnation: incarnation + i32::from(anew.contains_key(partition.topic())),
        topic_id: topic_ids.get(partition.topic()).copied().flatten(),
        epoch: before.map_or(0, |p| p.epoch),
        in_doubt: false,
    }
}

/// The records of a log before where a generation begins.
fn left_out((begin, it): (&Stood, &Move)) -> Offsets {
    Offsets {
        partition: it.partition.clone(),
        incarnation: begin.incarnation,
        from: it.log.low,
        to: begin.next_offset,
    }
}
