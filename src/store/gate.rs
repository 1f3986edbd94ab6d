//! `_gate`, in the generation's schema: the last sequence of each entity.

use std::collections::HashSet;

use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, Row};

use super::copy::Copy;
use super::{Error, sqlstate};
use crate::engine::gate::Standing;

const NEWEST: &str = include_str!("sql/gate_newest.sql");
const NEXT: &str = include_str!("sql/gate_next.sql");
const LOCK: &str = include_str!("sql/gate_lock.sql");
const MOVE: &str = include_str!("sql/gate_move.sql");
const MET: &str = include_str!("sql/gate_met.sql");
const COPY: &str = include_str!("sql/gate_copy.sql");
const COMPARE: &str = include_str!("sql/gate_compare.sql");
const STANDS: &str = include_str!("sql/gate_stands.sql");
const READ: &str = include_str!("sql/gate_read.sql");
const PARKED: &str = include_str!("sql/gate_parked.sql");

/// Gates that one statement writes of many, so that none of them runs into a timeout.
const ROWS_MAX: usize = 50_000;

/// An entity whose gate moved.
///
/// Keeps its row, and borrows the entity from it: there is one for every entity of a batch.
pub(crate) struct Moved {
    row: PgRow,
    /// The sequence before, none for an entity never seen.
    pub(crate) previous: Option<i64>,
    /// Records of the entity wait.
    pub(crate) parked: bool,
    /// Only gate `next`: the row is new, and `previous` is what the batch claims, not what was stored.
    pub(crate) inserted: bool,
}

/// Moves gates to the newest sequences; entities sorted, each once.
pub(crate) async fn newest(
    connection: &mut PgConnection,
    entities: &[&str],
    sequences: &[i64],
) -> Result<Vec<Moved>, Error> {
    let rows = sqlx::query(NEWEST)
        .bind(entities)
        .bind(sequences)
        .fetch_all(connection)
        .await?;
    rows.into_iter().map(|row| moved(row, false)).collect()
}

/// Moves gates over dense runs: `last` of each run, and the sequence `before` its first; entities sorted, each once.
pub(crate) async fn next(
    connection: &mut PgConnection,
    entities: &[&str],
    last: &[i64],
    before: &[i64],
) -> Result<Vec<Moved>, Error> {
    let rows = sqlx::query(NEXT)
        .bind(entities)
        .bind(last)
        .bind(before)
        .fetch_all(connection)
        .await?;
    let with_inserted = |row: PgRow| {
        let inserted = row.try_get("inserted")?;
        moved(row, inserted)
    };
    rows.into_iter().map(with_inserted).collect()
}

fn moved(row: PgRow, inserted: bool) -> Result<Moved, Error> {
    let _: &str = row.try_get(0)?;
    Ok(Moved {
        previous: row.try_get(1)?,
        parked: row.try_get("parked")?,
        inserted,
        row,
    })
}

impl Moved {
    /// The entity, which was seen to be text when the row came.
    pub(crate) fn entity(&self) -> &str {
        self.row.try_get(0).unwrap_or_default()
    }
}

/// Locks gates, making rows at `initial` for entities never seen; returns where each stands, in the order asked.
pub(crate) async fn lock(
    connection: &mut PgConnection,
    entities: &[&str],
    initial: &[i64],
) -> Result<Vec<Standing>, Error> {
    let rows = sqlx::query(LOCK)
        .bind(entities)
        .bind(initial)
        .fetch_all(connection)
        .await?;
    let mut stands: Vec<(String, Standing)> = Vec::with_capacity(rows.len());
    for row in &rows {
        let standing = Standing {
            sequence: row.try_get(1)?,
            parked: row.try_get(2)?,
        };
        stands.push((row.try_get(0)?, standing));
    }
    stands.sort_by(|(a, _), (b, _)| a.cmp(b));
    if !stands
        .iter()
        .map(|(entity, _)| &**entity)
        .eq(entities.iter().copied())
    {
        return Err(Error::Unexpected(
            "the gate answered other entities than it was asked for".to_owned(),
        ));
    }
    Ok(stands.into_iter().map(|(_, standing)| standing).collect())
}

/// Moves and marks gates that this transaction has locked.
pub(crate) async fn set(
    connection: &mut PgConnection,
    moves: &[(&str, Standing)],
) -> Result<(), Error> {
    if moves.is_empty() {
        return Ok(());
    }
    sqlx::query(MOVE)
        .bind(moves.iter().map(|(entity, _)| *entity).collect::<Vec<_>>())
        .bind(moves.iter().map(|(_, to)| to.sequence).collect::<Vec<_>>())
        .bind(moves.iter().map(|(_, to)| to.parked).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Gate `none`: locks and returns those of these entities that have parked records.
pub(crate) async fn parked(
    connection: &mut PgConnection,
    entities: &[&str],
) -> Result<HashSet<String>, Error> {
    let parked: Vec<String> = sqlx::query_scalar(PARKED)
        .bind(entities)
        .fetch_all(connection)
        .await?;
    Ok(parked.into_iter().collect())
}

/// With the gate in the row: those of these entities that have a row here all the same.
pub(crate) async fn met(
    connection: &mut PgConnection,
    entities: &[&str],
) -> Result<HashSet<String>, Error> {
    let met: Vec<String> = sqlx::query_scalar(MET)
        .bind(entities)
        .fetch_all(connection)
        .await?;
    Ok(met.into_iter().collect())
}

/// A gate's row.
#[derive(Clone, Copy, Debug, FromRow)]
pub(crate) struct Stands {
    pub(crate) sequence: i64,
    pub(crate) previous: Option<i64>,
    pub(crate) parked: bool,
}

/// Reads where an entity's gate stands, if it has been met.
pub(crate) async fn read(
    connection: &mut PgConnection,
    entity: &str,
) -> Result<Option<Stands>, Error> {
    Ok(sqlx::query_as(READ)
        .bind(entity)
        .fetch_optional(connection)
        .await?)
}

/// Reads where gates stand, without a lock: only to be believed until they are compared.
pub(crate) async fn believe(
    connection: &mut PgConnection,
    entities: &[String],
) -> Result<Vec<(String, Stands)>, Error> {
    let rows = sqlx::query(STANDS)
        .bind(entities)
        .fetch_all(connection)
        .await?;
    let stands = |row: &PgRow| Ok((row.try_get(0)?, Stands::from_row(row)?));
    rows.iter().map(stands).collect()
}

/// A gate that moves from where it is believed to stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move<'a> {
    pub(crate) entity: &'a str,
    /// None for an entity never seen.
    pub(crate) from: Option<i64>,
    pub(crate) to: i64,
}

/// Moves gates that still stand where they are believed to; false if one does not, which leaves the transaction
/// good for nothing but a ROLLBACK. Entities sorted, each once (I4).
pub(crate) async fn compare_and_move(
    connection: &mut PgConnection,
    moves: &[Move<'_>],
) -> Result<bool, Error> {
    let (new, known): (Vec<&Move<'_>>, Vec<&Move<'_>>) =
        moves.iter().partition(|gate| gate.from.is_none());
    for new in new.chunks(ROWS_MAX) {
        match copy(connection, new).await {
            Ok(()) => {}
            Err(Error::Sql(error)) if sqlstate(&error).as_deref() == Some("23505") => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    for known in known.chunks(ROWS_MAX) {
        let moved: i64 = sqlx::query_scalar(COMPARE)
            .bind(known.iter().map(|gate| gate.entity).collect::<Vec<_>>())
            .bind(known.iter().map(|gate| gate.to).collect::<Vec<_>>())
            .bind(known.iter().map(|gate| gate.from).collect::<Vec<_>>())
            .fetch_one(&mut *connection)
            .await?;
        if usize::try_from(moved) != Ok(known.len()) {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn copy(connection: &mut PgConnection, new: &[&Move<'_>]) -> Result<(), Error> {
    let mut copy = Copy::begin(connection, COPY).await?;
    for gate in new {
        let mut row = copy.row(2);
        row.text(gate.entity)?;
        row.bigint(gate.to)?;
        copy.send_if_full().await?;
    }
    match copy.finish().await? == new.len() as u64 {
        true => Ok(()),
        false => Err(Error::Unexpected("a gate was not stored".to_owned())),
    }
}
