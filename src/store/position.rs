//! `position`: the stored progress of a partition, and its fence.

use sqlx::postgres::types::Oid;
use sqlx::{FromRow, PgConnection, Row};
use uuid::Uuid;

use super::{Error, Timeouts, transaction};
use crate::types::{Anchor, NextOffset, TopicPartition};

const INSERT: &str = include_str!("sql/position_insert.sql");
const CLAIM: &str = include_str!("sql/position_claim.sql");
const ADVANCE: &str = include_str!("sql/position_advance.sql");
const READ: &str = include_str!("sql/position_read.sql");
const CONDITION: &str = include_str!("sql/position_condition.sql");
const CONFIRM: &str = include_str!("sql/position_confirm.sql");
const RELEASE: &str = include_str!("sql/position_release.sql");
const STATUS: &str = include_str!("sql/position_status.sql");
const LOCK: &str = include_str!("sql/position_lock.sql");
const MOVE: &str = include_str!("sql/position_move.sql");
const SAME_LOG: &str = include_str!("sql/position_same_log.sql");
const RESUME: &str = include_str!("sql/position_resume.sql");
const RESET: &str = include_str!("sql/position_reset.sql");
const HISTORY: &str = include_str!("sql/position_history.sql");
const BEGIN: &str = include_str!("sql/position_begin.sql");
const MARKS: &str = include_str!("sql/position_marks.sql");
const OF_LEFT_TOPICS: &str = include_str!("sql/position_of_left_topics.sql");

/// The right to apply one partition, until somebody claims it or an operator acts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) generation: i32,
    pub(crate) epoch: i64,
    pub(crate) token: Uuid,
    /// Which topic of that name: part of every message id.
    pub(crate) incarnation: i32,
    /// What Kafka calls it, once that is known.
    pub(crate) topic_id: Option<Uuid>,
    /// Below this offset records have spent their right to emit (I5).
    pub(crate) emitted_through: i64,
}

/// What a claim found.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) claim: Claim,
    pub(crate) next: NextOffset,
    /// The last batch that moved the position.
    pub(crate) batch_id: Option<Uuid>,
    /// The last applied record.
    pub(crate) anchor: Option<Anchor>,
}

/// Takes ownership (I3). None when there is no row: a partition nobody has seen.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    partition: &TopicPartition,
    owner: &str,
    topic_id: Option<Uuid>,
) -> Result<Option<Claimed>, Error> {
    let row = sqlx::query(CLAIM)
        .bind(projection)
        .bind(generation)
        .bind(partition.topic())
        .bind(partition.partition())
        .bind(owner)
        .bind(topic_id)
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let anchor: Option<i64> = row.try_get("anchor_offset")?;
    let digest: Option<Uuid> = row.try_get("anchor_digest")?;
    Ok(Some(Claimed {
        claim: Claim {
            generation,
            epoch: row.try_get("epoch")?,
            token: row.try_get("claim_token")?,
            incarnation: row.try_get("incarnation")?,
            topic_id: row.try_get("topic_id")?,
            emitted_through: row.try_get("emitted_through")?,
        },
        next: NextOffset::from_raw(row.try_get("next_offset")?),
        batch_id: row.try_get("batch_id")?,
        anchor: anchor
            .zip(digest)
            .map(|(offset, digest)| Anchor { offset, digest }),
    }))
}

/// Writes first rows; those that exist stay.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    starts: &[(TopicPartition, i64)],
) -> Result<(), Error> {
    sqlx::query(INSERT)
        .bind(projection)
        .bind(generation)
        .bind(starts.iter().map(|(p, _)| p.topic()).collect::<Vec<_>>())
        .bind(
            starts
                .iter()
                .map(|(p, _)| p.partition())
                .collect::<Vec<_>>(),
        )
        .bind(starts.iter().map(|(_, next)| *next).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// One partition's move in a batch.
#[derive(Clone, Debug)]
pub(crate) struct Advance<'a> {
    pub(crate) partition: &'a TopicPartition,
    pub(crate) claim: &'a Claim,
    pub(crate) from: NextOffset,
    pub(crate) to: NextOffset,
    /// Records handed over by the client, counted apart from what became of them (I6).
    pub(crate) consumed: i64,
    pub(crate) totals: Totals,
    /// The last record of them, if there is one.
    pub(crate) anchor: Option<Anchor>,
}

/// Records of a batch by what became of them (I6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) applied: i64,
    pub(crate) stale: i64,
    pub(crate) duplicate: i64,
    pub(crate) filtered: i64,
    pub(crate) parked: i64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.applied += other.applied;
        self.stale += other.stale;
        self.duplicate += other.duplicate;
        self.filtered += other.filtered;
        self.parked += other.parked;
    }
}

/// What must still be true when the positions move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected<'a> {
    pub(crate) projection: &'a str,
    pub(crate) generation: i32,
    pub(crate) xact_id: &'a str,
    pub(crate) schema_name: &'a str,
    pub(crate) schema_oid: Oid,
}

/// Moves positions by compare-and-set and returns how many moved. The last statement before COMMIT.
pub(crate) async fn advance(
    connection: &mut PgConnection,
    expected: &Expected<'_>,
    batch_id: Uuid,
    moves: &[Advance<'_>],
) -> sqlx::Result<u64> {
    let totals =
        |pick: fn(&Totals) -> i64| moves.iter().map(|m| pick(&m.totals)).collect::<Vec<_>>();
    let anchors: Vec<Option<Anchor>> = moves.iter().map(|m| m.anchor).collect();
    let done = sqlx::query(ADVANCE)
        .bind(expected.projection)
        .bind(expected.generation)
        .bind(batch_id)
        .bind(
            moves
                .iter()
                .map(|m| m.partition.topic())
                .collect::<Vec<_>>(),
        )
        .bind(
            moves
                .iter()
                .map(|m| m.partition.partition())
                .collect::<Vec<_>>(),
        )
        .bind(moves.iter().map(|m| m.claim.epoch).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.claim.token).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.from.get()).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.to.get()).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.consumed).collect::<Vec<_>>())
        .bind(totals(|t| t.applied))
        .bind(totals(|t| t.stale))
        .bind(totals(|t| t.duplicate))
        .bind(totals(|t| t.filtered))
        .bind(expected.xact_id)
        .bind(expected.schema_name)
        .bind(expected.schema_oid)
        .bind(
            anchors
                .iter()
                .map(|a| a.map(|a| a.offset))
                .collect::<Vec<_>>(),
        )
        .bind(
            anchors
                .iter()
                .map(|a| a.map(|a| a.digest))
                .collect::<Vec<_>>(),
        )
        .bind(totals(|t| t.parked))
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}

/// A position row as it stands.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Stored {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) next_offset: i64,
    pub(crate) epoch: i64,
    pub(crate) claim_token: Uuid,
    pub(crate) owner: String,
    pub(crate) batch_id: Option<Uuid>,
}

/// Reads all positions of a generation.
pub(crate) async fn read(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
) -> Result<Vec<Stored>, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(READ)
        .bind(projection)
        .bind(generation)
        .fetch_all(&mut *connection)
        .await;
    transaction::end_alone(connection, answer).await
}

/// How a partition fares, as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Running,
    Retrying,
    Halted,
    /// Halted since the log is another one than was applied.
    HaltedInDoubt,
}

impl Condition {
    fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Halted | Self::HaltedInDoubt => "halted",
        }
    }
}

/// Stores how a partition fares, if the claim is still the newest.
pub(crate) async fn set_condition(
    connection: &mut PgConnection,
    projection: &str,
    partition: &TopicPartition,
    claim: &Claim,
    condition: Condition,
    cause: &str,
) -> Result<bool, Error> {
    transaction::begin_alone(connection).await?;
    let done = sqlx::query(CONDITION)
        .bind(projection)
        .bind(claim.generation)
        .bind(partition.topic())
        .bind(partition.partition())
        .bind(claim.epoch)
        .bind(claim.token)
        .bind(condition.name())
        // NUL cannot be stored, and an endless text helps nobody.
        .bind(
            cause
                .replace('\0', "\u{fffd}")
                .chars()
                .take(2_000)
                .collect::<String>(),
        )
        .bind(condition == Condition::HaltedInDoubt)
        .execute(&mut *connection)
        .await;
    let done = transaction::end_alone(connection, done).await?;
    Ok(done.rows_affected() == 1)
}

/// Says at a clean stop that nobody works on these partitions.
pub(crate) async fn release(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    claims: &[(&TopicPartition, &Claim)],
) -> Result<(), Error> {
    transaction::begin_alone(connection).await?;
    let done = sqlx::query(RELEASE)
        .bind(projection)
        .bind(generation)
        .bind(claims.iter().map(|(p, _)| p.topic()).collect::<Vec<_>>())
        .bind(
            claims
                .iter()
                .map(|(p, _)| p.partition())
                .collect::<Vec<_>>(),
        )
        .bind(claims.iter().map(|(_, c)| c.epoch).collect::<Vec<_>>())
        .bind(claims.iter().map(|(_, c)| c.token).collect::<Vec<_>>())
        .execute(&mut *connection)
        .await;
    transaction::end_alone(connection, done).await?;
    Ok(())
}

/// Makes positions durable that were committed without waiting for the disk, and returns them.
pub(crate) async fn confirm(
    connection: &mut PgConnection,
    projection: &str,
    claims: &[(&TopicPartition, &Claim)],
    application_name: &str,
    timeouts: &Timeouts,
) -> Result<Vec<(TopicPartition, NextOffset)>, Error> {
    transaction::begin(
        connection,
        transaction::OWN_SEARCH_PATH,
        application_name,
        timeouts,
    )
    .await?;
    let rows: Vec<(String, i32, i64)> = sqlx::query_as(CONFIRM)
        .bind(projection)
        .bind(claims.iter().map(|(_, c)| c.generation).collect::<Vec<_>>())
        .bind(claims.iter().map(|(p, _)| p.topic()).collect::<Vec<_>>())
        .bind(
            claims
                .iter()
                .map(|(p, _)| p.partition())
                .collect::<Vec<_>>(),
        )
        .bind(claims.iter().map(|(_, c)| c.epoch).collect::<Vec<_>>())
        .bind(claims.iter().map(|(_, c)| c.token).collect::<Vec<_>>())
        .fetch_all(&mut *connection)
        .await?;
    transaction::commit(connection).await?;
    let row = |(topic, partition, next): (String, i32, i64)| {
        let partition = TopicPartition::new(topic, partition);
        (partition, NextOffset::from_raw(next))
    };
    Ok(rows.into_iter().map(row).collect())
}

/// A partition as `status` and `verify` show it.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Status {
    pub(crate) projection: String,
    pub(crate) desired_state: String,
    #[sqlx(rename = "live_generation")]
    pub(crate) generation: i32,
    /// The generation that is being built beside it.
    pub(crate) building: Option<i32>,
    pub(crate) definition: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) next_offset: i64,
    pub(crate) epoch: i64,
    pub(crate) owner: String,
    /// Whether a process of that name is connected to the database now.
    pub(crate) connected: bool,
    pub(crate) consumed: i64,
    pub(crate) applied: i64,
    pub(crate) stale: i64,
    pub(crate) duplicate: i64,
    pub(crate) filtered: i64,
    /// Records that became dead letters, ever.
    pub(crate) parked: i64,
    /// Dead letters that wait.
    pub(crate) waiting: i64,
    pub(crate) condition: String,
    pub(crate) cause: String,
    pub(crate) since: chrono::DateTime<chrono::Utc>,
}

/// Reads the partitions of all live generations.
pub(crate) async fn status(connection: &mut PgConnection) -> Result<Vec<Status>, Error> {
    Ok(sqlx::query_as(STATUS).fetch_all(connection).await?)
}

/// Where a partition stood when an operator took it.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Stood {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) next_offset: i64,
    pub(crate) incarnation: i32,
    pub(crate) topic_id: Option<Uuid>,
    pub(crate) epoch: i64,
    /// Its log was found to be another one than was applied.
    pub(crate) in_doubt: bool,
}

/// Takes a topic for the same log in other generations that have read it under this incarnation.
pub(crate) async fn same_log(
    connection: &mut PgConnection,
    projection: &str,
    generations: &[i32],
    topic: &str,
    incarnation: i32,
    topic_id: Option<Uuid>,
) -> Result<(), Error> {
    sqlx::query(SAME_LOG)
        .bind(projection)
        .bind(generations)
        .bind(topic)
        .bind(incarnation)
        .bind(topic_id)
        .execute(connection)
        .await?;
    Ok(())
}

/// Locks the positions of one topic.
pub(crate) async fn lock(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    topic: &str,
) -> Result<Vec<Stood>, Error> {
    Ok(sqlx::query_as(LOCK)
        .bind(projection)
        .bind(generation)
        .bind(topic)
        .fetch_all(connection)
        .await?)
}

/// Moves a locked position by hand, and fences its owner.
pub(crate) async fn move_by_hand(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    to: &Stood,
) -> Result<(), Error> {
    sqlx::query(MOVE)
        .bind(projection)
        .bind(generation)
        .bind(&to.topic)
        .bind(to.partition)
        .bind(to.next_offset)
        .bind(to.incarnation)
        .bind(to.topic_id)
        .execute(connection)
        .await?;
    Ok(())
}

/// Raises the epochs of halted partitions, or of all, so that they are claimed again.
pub(crate) async fn resume(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    all: bool,
) -> Result<(), Error> {
    sqlx::query(RESUME)
        .bind(projection)
        .bind(generation)
        .bind(all)
        .execute(connection)
        .await?;
    Ok(())
}

/// Locks a generation's positions and raises their epochs.
pub(crate) async fn reset(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
) -> Result<Vec<Stood>, Error> {
    Ok(sqlx::query_as(RESET)
        .bind(projection)
        .bind(generation)
        .fetch_all(connection)
        .await?)
}

/// Reads where topics stood when they were read last, that a generation does not read and others have. They come back
/// under the incarnation that they had (I5).
pub(crate) async fn of_left_topics(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
) -> Result<Vec<Stood>, Error> {
    Ok(sqlx::query_as(OF_LEFT_TOPICS)
        .bind(projection)
        .bind(generation)
        .fetch_all(connection)
        .await?)
}

/// Writes the positions of a new generation.
pub(crate) async fn begin(
    connection: &mut PgConnection,
    projection: &str,
    generation: i32,
    starts: &[Stood],
) -> Result<(), Error> {
    sqlx::query(BEGIN)
        .bind(projection)
        .bind(generation)
        .bind(starts.iter().map(|p| &*p.topic).collect::<Vec<_>>())
        .bind(starts.iter().map(|p| p.partition).collect::<Vec<_>>())
        .bind(starts.iter().map(|p| p.next_offset).collect::<Vec<_>>())
        .bind(starts.iter().map(|p| p.incarnation).collect::<Vec<_>>())
        .bind(starts.iter().map(|p| p.topic_id).collect::<Vec<_>>())
        .bind(starts.iter().map(|p| p.epoch).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// A partition as a rebuild looks at it.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Mark {
    pub(crate) generation: i32,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) next_offset: i64,
    /// Where it began; none if that was before anybody wrote it down.
    pub(crate) first_offset: Option<i64>,
    pub(crate) incarnation: i32,
    /// Of the log that it began with.
    pub(crate) first_incarnation: i32,
    pub(crate) topic_id: Option<Uuid>,
    pub(crate) in_doubt: bool,
    pub(crate) consumed: i64,
    pub(crate) parked: i64,
    pub(crate) cause: String,
    /// It stands, and does not look again by itself.
    pub(crate) halted: bool,
}

impl Mark {
    pub(crate) fn of(&self) -> TopicPartition {
        TopicPartition::new(&*self.topic, self.partition)
    }

    /// As it is, and nobody has locked it: the epoch says nothing.
    pub(crate) fn stood(&self) -> Stood {
        Stood {
            topic: self.topic.clone(),
            partition: self.partition,
            next_offset: self.next_offset,
            incarnation: self.incarnation,
            topic_id: self.topic_id,
            epoch: 0,
            in_doubt: self.in_doubt,
        }
    }
}

/// Reads where some generations stand, in one moment.
pub(crate) async fn marks(
    connection: &mut PgConnection,
    projection: &str,
    generations: &[i32],
) -> Result<Vec<Mark>, Error> {
    Ok(sqlx::query_as(MARKS)
        .bind(projection)
        .bind(generations)
        .fetch_all(connection)
        .await?)
}

/// Where a partition stands in one generation.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Passed {
    pub(crate) generation: i32,
    pub(crate) incarnation: i32,
    pub(crate) next_offset: i64,
    /// Where it began; none if that was before anybody wrote it down.
    pub(crate) first_offset: Option<i64>,
    pub(crate) desired_state: String,
    pub(crate) owner: String,
    pub(crate) connected: bool,
    pub(crate) applied: i64,
    pub(crate) stale: i64,
    pub(crate) duplicate: i64,
    pub(crate) filtered: i64,
    pub(crate) condition: String,
    pub(crate) cause: String,
    pub(crate) since: chrono::DateTime<chrono::Utc>,
}

/// Reads where a partition stands and stood, the live generation first.
pub(crate) async fn history(
    connection: &mut PgConnection,
    projection: &str,
    partition: &TopicPartition,
) -> Result<Vec<Passed>, Error> {
    Ok(sqlx::query_as(HISTORY)
        .bind(projection)
        .bind(partition.topic())
        .bind(partition.partition())
        .fetch_all(connection)
        .await?)
}

/// A record, and the generations that may have read it.
#[derive(Clone, Debug)]
pub(crate) struct OfRecord<'a> {
    pub(crate) projection: &'a str,
    pub(crate) partition: &'a TopicPartition,
    pub(crate) offset: i64,
    pub(crate) generations: Vec<i32>,
    /// Which topic of that name each of them read.
    pub(crate) incarnations: Vec<i32>,
}

impl OfRecord<'_> {
    /// Asks a statement that takes a record.
    pub(super) async fn ask<T>(
        &self,
        connection: &mut PgConnection,
        statement: &'static str,
    ) -> Result<Vec<T>, Error>
    where
        T: for<'r> FromRow<'r, sqlx::postgres::PgRow> + Send + Unpin,
    {
        Ok(sqlx::query_as(statement)
            .bind(self.projection)
            .bind(&self.generations)
            .bind(&self.incarnations)
            .bind(self.partition.topic())
            .bind(self.partition.partition())
            .bind(self.offset)
            .fetch_all(connection)
            .await?)
    }
}
