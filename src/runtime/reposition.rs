//! Positions moved by hand, the tables kept: over records that are gone or that nobody wants, or to the
//! beginning of a topic that was made anew.
//!
//! As with every operator action a running service need not be stopped: its claim is fenced in the same
//! transaction, and it claims again from where the position stands then.

use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::reset::topic_ids;
use crate::failpoint;
use crate::kafka::{Cluster, ClusterError, Watermarks};
use crate::store::generation::Beside;
use crate::store::operation::Operation;
use crate::store::position::Stood;
use crate::store::{self, Timeouts, generation, operation, position, skipped, transaction};
use crate::types::TopicPartition;

/// Why positions were not moved. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RepositionError {
    #[error("projection `{0}` is not in the database: it has never been started")]
    NotStarted(String),
    #[error("projection `{projection}` has no position in {what}; `tidegate status` lists them")]
    NoPosition { projection: String, what: String },
    #[error(
        "{partition} stands at {next} already: a skip goes forward, to a later offset than {to}"
    )]
    NotForward {
        partition: TopicPartition,
        next: i64,
        to: i64,
    },
    #[error("{partition} ends at {high}: there is nothing to skip up to {to}")]
    BeyondEnd {
        partition: TopicPartition,
        high: i64,
        to: i64,
    },
    #[error(
        "the live generation stands at {live} in {partition}: a build does not pass it, so it can skip up to there"
    )]
    BeyondLive {
        partition: TopicPartition,
        live: i64,
    },
    #[error("no generation of `{0}` is being built; without --build the live one skips")]
    NotBuilding(String),
    #[error(
        "topic {0} is the one that was read so far, and no partition of it was found to be another log: there is nothing to accept"
    )]
    NothingToAccept(String),
    #[error(
        "{partition} stands at {next}, and the log ends at {high}: what is written there next would be taken for records that were applied. If the log is still being copied, wait until it ends at {next} or behind it, and say this again. If its last records are lost, it is not the same log: without --same-log it is read from its beginning, and its messages are new ones"
    )]
    EndsBefore {
        partition: TopicPartition,
        next: i64,
        high: i64,
    },
    #[error(
        "{partition} stands at {next}, and the topic has no such partition, only {partitions}: what is added would begin empty, and be taken for records that were applied. If it is the same log, give the topic its partitions and copy what they had to the same offsets, then say this again. If the records are lost, it is not the same log: without --same-log it is read from its beginning, and its messages are new ones"
    )]
    NoPartition {
        partition: TopicPartition,
        next: i64,
        partitions: usize,
    },
    #[error(
        "{partition} stands at {next}, and the log begins at {low}: records between were never applied. If it is the same log, and they are gone, `tidegate skip {projection} {}/{} --to {low}` goes on without them, on record; then say this again. Otherwise it is read from its beginning without --same-log",
        .partition.topic(), .partition.partition()
    )]
    BeginsBehind {
        projection: String,
        partition: TopicPartition,
        next: i64,
        low: i64,
    },
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Kafka(#[from] ClusterError),
}

/// What was done: each partition, where it stood and where it stands now.
#[derive(Clone, Debug)]
pub(crate) struct Repositioned {
    pub(crate) operation: Uuid,
    pub(crate) moved: Vec<(TopicPartition, i64, i64)>,
}

/// An operator, what is asked for, and how long the database may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operator<'a> {
    pub(crate) who: &'a str,
    /// The id of what is done: what has this id is done once, since its row is in the same transaction.
    pub(crate) operation: Uuid,
    /// What was asked for, if it must be known again.
    pub(crate) request: Option<&'a Value>,
    pub(crate) timeouts: &'a Timeouts,
}

impl<'a> Operator<'a> {
    /// Somebody at a command line, who sees what becomes of it.
    pub(crate) fn at_a_terminal(who: &'a str, timeouts: &'a Timeouts) -> Self {
        Self {
            who,
            operation: Uuid::new_v4(),
            request: None,
            timeouts,
        }
    }

    /// What is recorded of it.
    pub(super) fn record(
        &self,
        kind: &'a str,
        projection: &'a str,
        mut arguments: Value,
        (before, after): (Value, Value),
    ) -> Operation<'a> {
        if let (Some(request), Some(arguments)) = (self.request, arguments.as_object_mut()) {
            arguments.insert("request".to_owned(), request.clone());
        }
        Operation {
            id: self.operation,
            kind,
            projection,
            who: self.who,
            arguments,
            before,
            after,
        }
    }
}

/// Whose position is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Live,
    /// The generation that is being built.
    Build,
}

/// Leaves out the records from a partition's position up to, without, `to`. The range is recorded.
pub(crate) async fn skip(
    connection: &mut PgConnection,
    cluster: &Cluster,
    projection: &str,
    (of, partition, to): (Of, &TopicPartition, i64),
    operator: Operator<'_>,
) -> Result<Repositioned, RepositionError> {
    // Asked before the transaction: no question to Kafka under a lock.
    let log = cluster.watermarks(partition).await?;
    if to > log.high {
        return Err(RepositionError::BeyondEnd {
            partition: partition.clone(),
            high: log.high,
            to,
        });
    }
    begin(connection, "skip", projection, operator).await?;
    let done = skip_in(connection, projection, (of, partition, to), operator).await;
    end(connection, done, AROUND_COMMIT).await
}

async fn skip_in(
    connection: &mut PgConnection,
    projection: &str,
    (of, partition, to): (Of, &TopicPartition, i64),
    operator: Operator<'_>,
) -> Result<Repositioned, RepositionError> {
    let (generation, rows) = match of {
        Of::Live => lock(connection, projection, partition.topic()).await?,
        Of::Build => lock_build(connection, projection, partition, to).await?,
    };
    let Some(stood) = rows.iter().find(|p| p.partition == partition.partition()) else {
        return Err(RepositionError::NoPosition {
            projection: projection.to_owned(),
            what: partition.to_string(),
        });
    };
    if to <= stood.next_offset {
        return Err(RepositionError::NotForward {
            partition: partition.clone(),
            next: stood.next_offset,
            to,
        });
    }
    let moved = Stood {
        next_offset: to,
        ..stood.clone()
    };
    let operation = record(
        connection,
        "skip",
        projection,
        operator,
        json!({ "partition": partition.to_string(), "to": to, "generation": generation }),
        (std::slice::from_ref(stood), std::slice::from_ref(&moved)),
    )
    .await?;
    skipped::insert(connection, projection, generation, stood, to, operation).await?; // I6
    position::move_by_hand(connection, projection, generation, &moved).await?;
    Ok(Repositioned {
        operation,
        moved: vec![(partition.clone(), stood.next_offset, to)],
    })
}

/// Takes a topic for what it is now. One that was made anew is read from its beginning, and its messages
/// are new ones; `same_log` keeps the positions, for a log that has moved to another cluster.
pub(crate) async fn accept_topic(
    connection: &mut PgConnection,
    cluster: &Cluster,
    projection: &str,
    topic: &str,
    same_log: bool,
    operator: Operator<'_>,
) -> Result<Repositioned, RepositionError> {
    let topics = [topic.to_owned()];
    let logs = cluster.logs(&topics).await?;
    let topic_id = topic_ids(cluster, &topics)
        .await?
        .get(topic)
        .copied()
        .flatten();
    begin(connection, "accept-topic", projection, operator).await?;
    let accept = Accept {
        logs: &logs,
        topic_id,
        same_log,
    };
    let done = accept_in(connection, projection, topic, accept, operator).await;
    end(connection, done, AROUND_COMMIT).await
}

struct Accept<'a> {
    logs: &'a [(TopicPartition, Watermarks)],
    topic_id: Option<Uuid>,
    same_log: bool,
}

async fn accept_in(
    connection: &mut PgConnection,
    projection: &str,
    topic: &str,
    accept: Accept<'_>,
    operator: Operator<'_>,
) -> Result<Repositioned, RepositionError> {
    let (generation, rows) = lock(connection, projection, topic).await?;
    if rows.is_empty() {
        return Err(RepositionError::NoPosition {
            projection: projection.to_owned(),
            what: format!("topic {topic}"),
        });
    }
    // An answer that was lost, and a command that is repeated, must not begin yet another log (I5).
    let known = |p: &Stood| p.topic_id.is_some() && p.topic_id == accept.topic_id;
    if rows.iter().all(|p| known(p) && !p.in_doubt) {
        return Err(RepositionError::NothingToAccept(topic.to_owned()));
    }
    let mut moved = Vec::new();
    let mut after = Vec::new();
    for stood in &rows {
        let partition = TopicPartition::new(topic, stood.partition);
        // A topic with fewer partitions than before: what is left over begins at 0 if it comes back.
        let log = accept.logs.iter().find(|(p, _)| *p == partition);
        let is_there = log.is_some();
        let log = log.map_or(Watermarks { low: 0, high: 0 }, |(_, log)| *log);
        let next = match accept.same_log {
            true => stood.next_offset,
            false => log.low,
        };
        // A position beyond the end cannot stay, nor go back: what comes there would have the message ids of what was (I5).
        if next > log.high && !is_there {
            return Err(RepositionError::NoPartition {
                partition,
                next,
                partitions: accept.logs.len(),
            });
        }
        if next > log.high {
            return Err(RepositionError::EndsBefore {
                partition,
                next,
                high: log.high,
            });
        }
        if next < log.low {
            return Err(RepositionError::BeginsBehind {
                projection: projection.to_owned(),
                partition,
                next,
                low: log.low,
            });
        }
        after.push(Stood {
            next_offset: next,
            incarnation: stood.incarnation + i32::from(!accept.same_log), // I5
            topic_id: accept.topic_id,
            ..stood.clone()
        });
        moved.push((partition, stood.next_offset, next));
    }
    let arguments = json!({ "topic": topic, "same_log": accept.same_log });
    let before_after = (&*rows, &*after);
    let operation = record(
        connection,
        "accept-topic",
        projection,
        operator,
        arguments,
        before_after,
    )
    .await?;
    for row in &after {
        position::move_by_hand(connection, projection, generation, row).await?;
    }
    if accept.same_log {
        let beside = generation::beside(connection, projection).await?;
        let beside: Vec<i32> = beside.iter().map(|beside| beside.number).collect();
        let incarnation = after.iter().map(|row| row.incarnation).max().unwrap_or(1);
        let id = accept.topic_id;
        position::same_log(connection, projection, &beside, topic, incarnation, id).await?;
    }
    Ok(Repositioned { operation, moved })
}

/// Stops a projection on purpose, in all processes, or lets it go on; what was halted is tried again then.
pub(crate) async fn set_running(
    connection: &mut PgConnection,
    projection: &str,
    running: bool,
    operator: Operator<'_>,
) -> Result<Uuid, RepositionError> {
    let kind = if running { "resume" } else { "pause" };
    begin(connection, kind, projection, operator).await?;
    let done = set_running_in(connection, projection, running, kind, operator).await;
    match &done {
        Ok(_) => transaction::commit(connection).await?,
        Err(_) => transaction::rollback(connection).await?,
    }
    done
}

async fn set_running_in(
    connection: &mut PgConnection,
    projection: &str,
    running: bool,
    kind: &str,
    operator: Operator<'_>,
) -> Result<Uuid, RepositionError> {
    transaction::lock_generation(connection, projection).await?;
    let Some(live) = store::projection::lock(connection, projection).await? else {
        return Err(RepositionError::NotStarted(projection.to_owned()));
    };
    let desired = if running { "running" } else { "paused" };
    store::projection::set_desired(connection, projection, desired).await?;
    position::resume(connection, projection, live.generation, !running).await?;
    let before_after = (
        json!({ "desired_state": live.desired_state }),
        json!({ "desired_state": desired }),
    );
    let record = operator.record(kind, projection, json!({}), before_after);
    operation::insert(connection, &record).await?;
    Ok(record.id)
}

async fn begin(
    connection: &mut PgConnection,
    what: &str,
    projection: &str,
    operator: Operator<'_>,
) -> Result<(), RepositionError> {
    let name = format!("tidegate {what} {projection}");
    let path = transaction::OWN_SEARCH_PATH;
    Ok(transaction::begin(connection, path, &name, operator.timeouts).await?)
}

/// The failpoints around the COMMIT of a repositioning.
const AROUND_COMMIT: [&str; 2] = [
    failpoint::REPOSITION_BEFORE_COMMIT,
    failpoint::REPOSITION_AFTER_COMMIT,
];

/// Ends an operator's transaction, between two failpoints if it is committed.
pub(super) async fn end<T, E: From<store::Error>>(
    connection: &mut PgConnection,
    done: Result<T, E>,
    [before, after]: [&'static str; 2],
) -> Result<T, E> {
    match &done {
        Ok(_) => {
            failpoint::reach(before);
            transaction::commit(connection).await?;
            failpoint::reach(after);
        }
        Err(_) => transaction::rollback(connection).await?,
    }
    done
}

/// The locks in the order that all operator actions share: generation lock, projection and generation
/// rows, position rows.
async fn lock(
    connection: &mut PgConnection,
    projection: &str,
    topic: &str,
) -> Result<(i32, Vec<Stood>), RepositionError> {
    transaction::lock_generation(connection, projection).await?;
    let Some(live) = store::projection::lock(connection, projection).await? else {
        return Err(RepositionError::NotStarted(projection.to_owned()));
    };
    let rows = position::lock(connection, projection, live.generation, topic).await?;
    Ok((live.generation, rows))
}

/// The same of the generation that is being built: under its own generation lock, so that the live one goes on. It stays
/// behind that.
async fn lock_build(
    connection: &mut PgConnection,
    projection: &str,
    partition: &TopicPartition,
    to: i64,
) -> Result<(i32, Vec<Stood>), RepositionError> {
    let building = |beside: Vec<Beside>| beside.into_iter().find(Beside::is_building);
    let none = || RepositionError::NotBuilding(projection.to_owned());
    let seen = building(generation::beside(connection, projection).await?).ok_or_else(none)?;
    transaction::lock_generation(connection, &seen.schema_name).await?;
    let Some(live) = store::projection::lock(connection, projection).await? else {
        return Err(RepositionError::NotStarted(projection.to_owned()));
    };
    let now = building(generation::beside(connection, projection).await?);
    if now.is_none_or(|now| now.number != seen.number) {
        return Err(none());
    }
    let marks = position::marks(connection, projection, &[live.generation]).await?;
    let stands = marks.iter().find(|mark| mark.of() == *partition);
    let stands = stands.map_or(0, |mark| mark.next_offset);
    if to > stands {
        return Err(RepositionError::BeyondLive {
            partition: partition.clone(),
            live: stands,
        });
    }
    let rows = position::lock(connection, projection, seen.number, partition.topic()).await?;
    Ok((seen.number, rows))
}

/// Records who did what, with the positions before and after (I2).
async fn record(
    connection: &mut PgConnection,
    kind: &str,
    projection: &str,
    operator: Operator<'_>,
    arguments: Value,
    (before, after): (&[Stood], &[Stood]),
) -> Result<Uuid, store::Error> {
    let rows = |rows: &[Stood]| -> Value {
        let row = |p: &Stood| {
            json!({
                "partition": format!("{}[{}]", p.topic, p.partition), "next_offset": p.next_offset,
                "incarnation": p.incarnation, "topic_id": p.topic_id.map(|id| id.to_string()),
            })
        };
        rows.iter().map(row).collect()
    };
    let before_after = (rows(before), rows(after));
    let record = operator.record(kind, projection, arguments, before_after);
    operation::insert(connection, &record).await?;
    Ok(record.id)
}
