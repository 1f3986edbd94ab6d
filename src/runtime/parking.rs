//! Parking: records that cannot be applied become dead letters in the batch's own transaction.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::PgConnection;

use super::apply::{Applier, Failure, Part, Then};
use crate::engine::parking::{Reason, Rejection};
use crate::failpoint;
use crate::projection::{Events, OnFailure, Outcome, Ref};
use crate::store::dead_letter::{self, Letter};
use crate::store::{self, Offsets};

/// Whether what was rejected before the transaction may be parked.
pub(super) fn allowed(applier: &Applier<'_>, events: &Events<'_>) -> Result<(), Failure> {
    let Some((at, rejection)) = events.rejected.first_key_value() else {
        return Ok(());
    };
    if let Some((at, rejection)) = events
        .halts_at
        .and_then(|at| Some((at, events.rejected.get(&at)?)))
    {
        return Err(halt(at, rejection.reason, rejection.detail.clone()));
    }
    may_park(applier, *at, rejection)?;
    let failed = (0..events.records.len() as Ref).map(|event| events.rejected.contains_key(&event));
    if let Some((index, why)) = applier.brake.clone().take(failed) {
        let at = index as Ref;
        let last = events.rejected.get(&at).map_or("", |last| &last.detail);
        let why = format!(
            "{why}, which looks like a bad deployment, so nothing more is parked. Repair it; if the records are at fault, raise `failed_consecutive_max` or `failed_share_max` until they are parked. The last one: {last}"
        );
        return Err(halt(at, rejection.reason, why));
    }
    Ok(())
}

/// A projection that does not park halts instead. A parked record needs its headers.
fn may_park(applier: &Applier<'_>, at: Ref, rejection: &Rejection) -> Result<(), Failure> {
    if applier.projection.on_failure == OnFailure::Halt {
        let then = match rejection.reason {
            // What it waits for may come, or be applied, elsewhere.
            Reason::Gap | Reason::Behind => Then::HaltAndLook,
            _ => Then::Halt,
        };
        return Err(Failure::Rejected {
            at: Some(at),
            rejection: rejection.clone(),
            then,
        });
    }
    match applier.with_headers {
        true => Ok(()),
        false => Err(Failure::NeedsHeaders),
    }
}

fn halt(at: Ref, reason: Reason, why: String) -> Failure {
    Failure::Rejected {
        at: Some(at),
        rejection: Rejection::new(reason, why),
        then: Then::Halt,
    }
}

/// The part of a batch that an event belongs to.
pub(super) fn part<'p, 'a>(events: &Events<'_>, parts: &'p [Part<'a>], event: Ref) -> &'p Part<'a> {
    &parts[events
        .shares
        .partition_point(|share| share.refs.end <= event)]
}

/// Records below the furthest a live generation came have spent their right to emit, unless they were parked
/// then, or left out by a reset. They spend it now, whatever becomes of them but being parked again; in a generation that is being built, only once
/// that is live. Returns those that had it (I5).
pub(super) async fn spend_rights(
    connection: &mut PgConnection,
    applier: &Applier<'_>,
    events: &Events<'_>,
    parts: &[Part<'_>],
    outcomes: &[Outcome],
) -> Result<BTreeSet<Ref>, Failure> {
    let again: Vec<Offsets> = parts
        .iter()
        .filter(|part| part.from.get() < part.claim.emitted_through)
        .map(|part| Offsets {
            partition: part.partition.clone(),
            incarnation: part.claim.incarnation,
            from: part.from.get(),
            to: part.to.get(),
        })
        .collect();
    if again.is_empty() {
        return Ok(BTreeSet::new());
    }
    let name = &applier.projection.name;
    let kept = match applier.generation.building {
        // The live generation may apply or discard such a record yet, and a build may never go live.
        true => store::right_to_emit(connection, name, &again).await?,
        false => store::spend_right_to_emit(connection, name, &again).await?,
    };
    let had = |event: &Ref| {
        let part = part(events, parts, *event);
        let offset = events.records[*event as usize].offset();
        kept.has(&Offsets::of(part.partition, part.claim.incarnation, offset))
    };
    Ok((0..outcomes.len() as Ref).filter(had).collect())
}

/// Stores what is parked, with its right to emit, unless there is too much of it.
pub(super) async fn park(
    connection: &mut PgConnection,
    applier: &Applier<'_>,
    events: &Events<'_>,
    parts: &[Part<'_>],
    parked: &BTreeMap<Ref, Rejection>,
    had_kept: &BTreeSet<Ref>,
) -> Result<(), Failure> {
    let Some((first, first_rejection)) = parked.first_key_value() else {
        return Ok(());
    };
    may_park(applier, *first, first_rejection)?;
    let (name, generation) = (&applier.projection.name, applier.generation.number);
    let mut letters = Vec::with_capacity(parked.len());
    let mut rights = Vec::new();
    for (event, rejection) in parked {
        let part = part(events, parts, *event);
        let record = events.records[*event as usize];
        if record.offset() >= part.claim.emitted_through || had_kept.contains(event) {
            let incarnation = part.claim.incarnation;
            rights.push(Offsets::of(part.partition, incarnation, record.offset()));
        }
        letters.push(Letter {
            partition: part.partition,
            incarnation: part.claim.incarnation,
            record,
            entity: events.readable_entity(*event),
            sequence: events.sequences[*event as usize],
            rejection: Rejection {
                detail: applier.secrets.cleaned(&rejection.detail),
                ..rejection.clone()
            },
        });
    }
    dead_letter::insert(connection, name, generation, &letters).await?;
    if !applier.generation.building {
        store::keep_right_to_emit(connection, name, &rights).await?; // I5
    }
    failpoint::reach(failpoint::PARK_AFTER_LETTERS);
    let entities: BTreeSet<&str> = letters.iter().filter_map(|letter| letter.entity).collect();
    let entities: Vec<&str> = entities.into_iter().collect();
    let waiting = dead_letter::count(connection, name, generation, &entities).await?;
    let limits = &applier.projection.parking;
    let too_many = if waiting.all > i64::from(limits.total_max) {
        Some(format!(
            "{} records of the projection would be parked; {} are allowed",
            waiting.all, limits.total_max
        ))
    } else if waiting.most_of_one > i64::from(limits.entity_max) {
        Some(format!(
            "{} records of one entity would be parked; {} are allowed",
            waiting.most_of_one, limits.entity_max
        ))
    } else {
        None
    };
    match too_many {
        None => Ok(()),
        Some(why) => {
            let why = format!(
                "{why}. `tidegate dead-letters list {name}` shows them. The next one: {}",
                first_rejection.detail
            );
            Err(halt(*first, first_rejection.reason, why))
        }
    }
}
