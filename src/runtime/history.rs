//! History, for projections that keep one: what a batch has taken and dropped, in the batch's own transaction.
//!
//! What is not dropped and not parked was applied, so one row for each partition and one for each dropped record tell
//! of every record. Without a history not one statement is sent.

use sqlx::PgConnection;
use uuid::Uuid;

use super::admission::Admitted;
use super::apply::{Applier, Part};
use super::parking;
use crate::projection::{Events, Outcome, Ref};
use crate::store;
use crate::store::history::{self, Dropped};
use crate::store::position::Advance;

/// Remembers what gate and inbox have dropped, before a handler could change where names lead.
pub(super) async fn dropped(
    connection: &mut PgConnection,
    applier: &Applier<'_>,
    events: &Events<'_>,
    parts: &[Part<'_>],
    admitted: &Admitted,
) -> Result<(), store::Error> {
    let outcomes = &admitted.outcomes;
    let Some(keep) = applier.projection.history else {
        return Ok(());
    };
    let dropped = (0..outcomes.len() as Ref).filter_map(|event| {
        let outcome = match outcomes[event as usize] {
            Outcome::Applied | Outcome::Parked => return None,
            Outcome::Stale => "stale",
            Outcome::Duplicate => "duplicate",
            Outcome::Filtered => "filtered",
        };
        let part = parking::part(events, parts, event);
        Some(Dropped {
            partition: part.partition,
            incarnation: part.claim.incarnation,
            record_offset: events.records[event as usize].offset(),
            entity: events.readable_entity(event),
            sequence: events.sequences[event as usize],
            outcome,
            gate_sequence: admitted.stands.get(&event).copied(),
        })
    });
    let dropped: Vec<Dropped<'_>> = dropped.collect();
    if dropped.is_empty() {
        return Ok(());
    }
    let (name, generation) = (&applier.projection.name, applier.generation.number);
    history::insert_dropped(connection, name, generation, keep, &dropped).await
}

/// Remembers what the batch takes from each of its partitions.
pub(super) async fn batch(
    connection: &mut PgConnection,
    applier: &Applier<'_>,
    batch_id: Uuid,
    moves: &[Advance<'_>],
) -> Result<(), store::Error> {
    let Some(keep) = applier.projection.history else {
        return Ok(());
    };
    let (name, generation) = (&applier.projection.name, applier.generation.number);
    history::insert_batch(connection, name, generation, batch_id, keep, moves).await
}
