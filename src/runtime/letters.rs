//! Operators' decisions about dead letters: to give some up, or to accept that what an entity waits for will
//! not come.
//!
//! The locks come in the order that all operator actions share: generation lock, projection row, gate rows,
//! dead letters.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::reposition::{Operator, end};
use crate::engine::gate::{self, Standing};
use crate::failpoint;
use crate::projection::{Gate, Projection};
use crate::store::dead_letter::{self, Chosen};
use crate::store::operation;
use crate::store::{self, Offsets, transaction};
use crate::types::TopicPartition;

/// The failpoints around the COMMIT of a decision.
pub(super) const AROUND_COMMIT: [&str; 2] = [
    failpoint::LETTERS_BEFORE_COMMIT,
    failpoint::LETTERS_AFTER_COMMIT,
];

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum LetterError {
    #[error("projection `{0}` is not in the database: it has never been started")]
    NotStarted(String),
    #[error("the gate of `{0}` is not `next`: nothing waits for what is missing")]
    NoGaps(String),
    #[error(
        "the tables of `{projection}` were built by another definition ({stored}) than this one ({mine})"
    )]
    OtherDefinition {
        projection: String,
        stored: String,
        mine: String,
    },
    #[error(
        "entity `{entity}` of `{projection}` does not wait for a missing event; `tidegate dead-letters list {projection} --entity {entity}` shows what waits and why"
    )]
    NoGap { projection: String, entity: String },
    #[error("the letters were resolved or moved meanwhile; nothing of this was done. Look again")]
    Changed,
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Gives up waiting letters of one projection, for a reason that is recorded. Under gate `next` the entity goes
/// on behind them.
pub(crate) async fn discard(
    connection: &mut PgConnection,
    projection: &Projection,
    letters: &[Chosen],
    why: &str,
    operator: Operator<'_>,
) -> Result<Uuid, LetterError> {
    begin(connection, "discard", &projection.name, operator).await?;
    let done = discard_in(connection, projection, letters, why, operator).await;
    end(connection, done, AROUND_COMMIT).await
}

async fn discard_in(
    connection: &mut PgConnection,
    projection: &Projection,
    letters: &[Chosen],
    why: &str,
    operator: Operator<'_>,
) -> Result<Uuid, LetterError> {
    let generation = lock(connection, projection).await?;
    let moves_gates = matches!(projection.gate, Gate::Next { .. });
    let projection = &*projection.name;
    let entities: BTreeSet<&str> = letters.iter().filter_map(|l| l.entity.as_deref()).collect();
    let entities: Vec<&str> = entities.into_iter().collect();
    let stands = store::gate::lock(connection, &entities, &vec![0; entities.len()]).await?;
    let numbers: Vec<i64> = letters.iter().map(|letter| letter.number).collect();
    let given_up = dead_letter::discard(connection, projection, generation, &numbers).await?;
    if given_up.len() != numbers.len() {
        return Err(LetterError::Changed);
    }
    let rights: Vec<Offsets> = given_up
        .iter()
        .map(|d| {
            let partition = TopicPartition::new(&*d.topic, d.partition);
            Offsets::of(&partition, d.incarnation, d.record_offset)
        })
        .collect();
    store::spend_right_to_emit(connection, projection, &rights).await?; // I5
    let left = dead_letter::remaining(connection, projection, generation, &entities).await?;
    let mut moves: BTreeMap<&str, Standing> = entities.iter().copied().zip(stands).collect();
    for (entity, standing) in &mut moves {
        standing.parked = left.contains_key(*entity);
        let sequences = given_up
            .iter()
            .filter(|d| d.entity.as_deref() == Some(*entity));
        let sequences: BTreeSet<i64> = sequences.filter_map(|d| d.sequence).collect();
        if moves_gates {
            // What was given up is not missing any more; if its turn is later, a redrive passes over it.
            *standing = gate::over(*standing, &sequences);
        }
    }
    let moves: Vec<(&str, Standing)> = moves.into_iter().collect();
    store::gate::set(connection, &moves).await?;
    let before_after = (json!({ "dead_letters": numbers }), json!({}));
    let record = operator.record("discard", projection, json!({ "why": why }), before_after);
    operation::insert(connection, &record).await?;
    Ok(record.id)
}

/// Gate `next`: lets an entity go on with the first event that waits, without those before it.
pub(crate) async fn accept_gap(
    connection: &mut PgConnection,
    projection: &Projection,
    entity: &str,
    operator: Operator<'_>,
) -> Result<(Uuid, i64, i64), LetterError> {
    if !matches!(projection.gate, Gate::Next { .. }) {
        return Err(LetterError::NoGaps(projection.name.clone()));
    }
    begin(connection, "accept-gap", &projection.name, operator).await?;
    let done = accept_gap_in(connection, projection, entity, operator).await;
    end(connection, done, AROUND_COMMIT).await
}

async fn accept_gap_in(
    connection: &mut PgConnection,
    projection: &Projection,
    entity: &str,
    operator: Operator<'_>,
) -> Result<(Uuid, i64, i64), LetterError> {
    let generation = lock(connection, projection).await?;
    let spelled = projection.spelled(entity);
    let (entity, projection) = (spelled.as_deref().unwrap_or(entity), &*projection.name);
    let stands = store::gate::lock(connection, &[entity], &[i64::MIN]).await?;
    let no_gap = || LetterError::NoGap {
        projection: projection.to_owned(),
        entity: entity.to_owned(),
    };
    let standing = *stands.first().ok_or_else(no_gap)?;
    let first = dead_letter::first_sequence(
        connection,
        projection,
        generation,
        entity,
        standing.sequence,
    )
    .await?
    .ok_or_else(no_gap)?;
    if first - 1 == standing.sequence {
        return Err(no_gap());
    }
    let after = Standing {
        sequence: first - 1,
        ..standing
    };
    store::gate::set(connection, &[(entity, after)]).await?;
    let before_after = (
        json!({ "sequence": standing.sequence }),
        json!({ "sequence": after.sequence }),
    );
    let arguments = json!({ "entity": entity });
    let record = operator.record("accept-gap", projection, arguments, before_after);
    operation::insert(connection, &record).await?;
    Ok((record.id, standing.sequence, first))
}

/// Records that letters are to be applied again, before any is: whoever asks for it once more finds that it has
/// begun. What becomes of each is in its own row.
pub(crate) async fn begin_redrive(
    connection: &mut PgConnection,
    projection: &str,
    letters: usize,
    operator: Operator<'_>,
) -> Result<Uuid, LetterError> {
    begin(connection, "redrive", projection, operator).await?;
    let before_after = (json!({ "waiting": letters }), json!({}));
    let record = operator.record("redrive", projection, json!({}), before_after);
    let done = operation::begin(connection, &record).await;
    let done = done.map(|()| record.id).map_err(LetterError::from);
    end(connection, done, AROUND_COMMIT).await
}

async fn begin(
    connection: &mut PgConnection,
    what: &str,
    projection: &str,
    operator: Operator<'_>,
) -> Result<(), LetterError> {
    let Some((live, _)) = store::projection::read_alone(connection, projection).await? else {
        return Err(LetterError::NotStarted(projection.to_owned()));
    };
    // The gate's table is in the generation's schema; that it is still the live one is seen under the lock.
    let path = transaction::search_path(&live.schema_name, &[]);
    let name = format!("tidegate {what} {projection}");
    Ok(transaction::begin(connection, &path, &name, operator.timeouts).await?)
}

async fn lock(connection: &mut PgConnection, projection: &Projection) -> Result<i32, LetterError> {
    let name = &projection.name;
    transaction::lock_generation(connection, name).await?;
    let Some(live) = store::projection::lock(connection, name).await? else {
        return Err(LetterError::NotStarted(name.clone()));
    };
    let mine = projection.definition();
    match live.definition == mine {
        true => Ok(live.generation),
        false => Err(LetterError::OtherDefinition {
            projection: name.clone(),
            stored: live.definition,
            mine,
        }),
    }
}
