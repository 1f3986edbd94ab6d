//! The one transaction of what a build has taken in: gates, states and positions of many batches at once (I1).
//!
//! Of the same shape as `apply`'s, and a second one for these reasons: here all is decided before, from memory, so gates are
//! compared instead of asked; and there is no handler, no message and no letter, since only plain events are taken in.
//! The position statement is the same one, and the last.
//!
//! There is deliberately no way to write a part of what is in memory: its states belong to its positions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::apply::{Applier, Failure, failure_of, stays_inside};
use crate::failpoint;
use crate::projection::{Bulk, Events};
use crate::store::position::{Advance, Expected};
use crate::store::{self, Offsets, Rights, gate, position, transaction};
use crate::telemetry::{Phase, Phases};

/// Entities that can be written within one statement's time, by a wide margin.
const ENTITIES_OF_A_STATEMENT: usize = 50_000;

/// Why what was taken in was not written.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// A gate is not where it was believed to be: its entity has events elsewhere too.
    Moved,
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Unwritten {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Looks at the tables; answers why they must be written batch by batch, if they must.
pub(super) async fn begin(
    applier: &Applier<'_>,
    connection: &mut PgConnection,
    states: &mut dyn Bulk,
) -> Result<Option<String>, Failure> {
    begin_to_load(applier, connection).await?;
    let begun = states.begin(connection).await;
    transaction::rollback(connection).await?;
    begun.map_err(|error| failure_of(applier.projection, error))
}

/// Loads what a batch's events need and memory does not have yet, and reads which of its records have kept their right
/// to emit.
pub(super) async fn load(
    applier: &Applier<'_>,
    connection: &mut PgConnection,
    states: &mut dyn Bulk,
    events: &Events<'_>,
    offsets: &[Offsets],
) -> Result<Rights, Failure> {
    let projection = applier.projection;
    let entities = states.unknown(events);
    begin_to_load(applier, connection).await?;
    let kept = store::right_to_emit(connection, &projection.name, offsets).await?;
    let loaded = match entities.is_empty() {
        true => Ok(()),
        false => {
            let gates = gate::believe(connection, &entities).await?;
            states.load(connection, &entities, gates).await
        }
    };
    transaction::rollback(connection).await?;
    loaded.map_err(|error| failure_of(projection, error))?;
    Ok(kept)
}

async fn begin_to_load(
    applier: &Applier<'_>,
    connection: &mut PgConnection,
) -> Result<(), store::Error> {
    let (projection, generation) = (applier.projection, applier.generation);
    let search_path = transaction::search_path(&generation.schema_name, &projection.search_path);
    let name = format!("tidegate {} load {}", applier.owner, projection.name);
    transaction::begin(connection, &search_path, &name, &applier.timeouts).await
}

/// Writes what was taken in. `None` for the connection afterwards means that it is in doubt and was dropped.
pub(super) async fn write(
    applier: &Applier<'_>,
    connection: PgConnection,
    batch_id: Uuid,
    moves: &[Advance<'_>],
    states: &dyn Bulk,
) -> (Option<PgConnection>, Result<Phases, Unwritten>) {
    let mut connection = connection;
    let gates = states.moves();
    let statements = u32::try_from(gates.len() / ENTITIES_OF_A_STATEMENT).unwrap_or(u32::MAX);
    let limit = applier.timeouts.transaction() * statements.saturating_add(1).min(1_000);
    let committing = AtomicBool::new(false);
    let writing = in_transaction(
        applier,
        &mut connection,
        batch_id,
        moves,
        (&gates, states),
        &committing,
    );
    let result = match tokio::time::timeout(limit, writing).await {
        Ok(result) => result,
        Err(_) if committing.load(Ordering::Relaxed) => Err(Unwritten::Failed(Failure::Unknown(
            store::Error::Deadline("the commit", limit),
        ))),
        Err(_) => Err(Unwritten::Failed(too_slow(limit))),
    };
    let result = result.map_err(|unwritten| match unwritten {
        // The same again would take as long again.
        Unwritten::Failed(Failure::Store(store::Error::Sql(error)))
            if store::sqlstate(&error).as_deref() == Some("57014") =>
        {
            Unwritten::Failed(Failure::Slow(store::describe(&error)))
        }
        other => other,
    });
    let usable = match &result {
        Ok(_) => return (Some(connection), result),
        Err(Unwritten::Moved) => true,
        Err(Unwritten::Failed(failure)) => failure.leaves_connection_usable(),
    };
    if !usable {
        return (None, result);
    }
    // The dropped transaction's ROLLBACK goes out with the next word: let its locks go now.
    let ping = async { connection.ping().await.map_err(store::Error::from) };
    let done = store::within("rolling back", applier.timeouts.transaction(), ping).await;
    (done.is_ok().then_some(connection), result)
}

fn too_slow(limit: Duration) -> Failure {
    Failure::Slow(format!(
        "what was taken in was not written within {limit:?}"
    ))
}

/// From BEGIN to COMMIT. Whoever leaves in between rolls back.
async fn in_transaction(
    applier: &Applier<'_>,
    connection: &mut PgConnection,
    batch_id: Uuid,
    moves: &[Advance<'_>],
    (gates, states): (&[gate::Move<'_>], &dyn Bulk),
    committing: &AtomicBool,
) -> Result<Phases, Unwritten> {
    let mut phases = Phases::begin();
    let (projection, generation) = (applier.projection, applier.generation);
    let search_path = transaction::search_path(&generation.schema_name, &projection.search_path);
    let name = format!("tidegate {} bulk {}", applier.owner, projection.name);
    // I1: a trigger is a user's code too.
    let mut transaction =
        transaction::begin_guarded(connection, &search_path, &name, &applier.timeouts).await?;
    let connection = &mut *transaction;
    let (schema, plans) = (&generation.schema_name, "force_generic_plan");
    let xact_id = transaction::open_apply(connection, schema, plans, false).await?;
    phases.end(Phase::Begin);

    if !gate::compare_and_move(connection, gates).await? {
        return Err(Unwritten::Moved); // I4
    }
    failpoint::reach(failpoint::BULK_AFTER_GATES);
    phases.end(Phase::Gate);
    let of_handler = |error| failure_of(projection, error);
    states.write(connection).await.map_err(of_handler)?;
    let still_in = transaction::settle_effects(connection, applier.synchronous_commit)
        .await
        .map_err(|error| of_handler(error.into()))?;
    if still_in.as_deref() != Some(&*xact_id) {
        return Err(Failure::Refused.into());
    }
    phases.end(Phase::Handler);

    stays_inside(connection, generation).await?; // I8
    let expected = Expected {
        projection: &projection.name,
        generation: generation.number,
        xact_id: &xact_id,
        schema_name: &generation.schema_name,
        schema_oid: generation.schema_oid,
    };
    let moved = position::advance(connection, &expected, batch_id, moves)
        .await
        .map_err(store::Error::from)?;
    if moved != moves.len() as u64 {
        return Err(Failure::Refused.into()); // I1, I2, I3: seen before COMMIT is sent
    }
    phases.end(Phase::Position);
    failpoint::reach(failpoint::BULK_BEFORE_COMMIT);
    committing.store(true, Ordering::Relaxed);
    match transaction.commit().await.map_err(store::Error::from) {
        Ok(()) => {}
        // Postgres says no: rolled back.
        Err(error) if error.connection_is_usable() => return Err(Failure::Store(error).into()),
        Err(error) => return Err(Failure::Unknown(error).into()),
    }
    failpoint::reach(failpoint::BULK_AFTER_COMMIT);
    phases.end(Phase::Commit);
    Ok(phases)
}
