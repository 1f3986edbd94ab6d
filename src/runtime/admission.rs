//! Asks gate and inbox which events of a batch pass (I4).
//!
//! The questions are one statement each, in the order of locks: gate rows sorted, then inbox ids
//! sorted. The decisions are `engine::gate`'s.

use sqlx::PgConnection;

use super::apply::Failure;
use crate::engine::gate::{self, Admission};
use crate::projection::{Events, First, Gate, Outcome, Projection, Ref};
use crate::store;

/// The events of one entity, in arrival order.
struct Group<'e> {
    entity: &'e str,
    refs: &'e [Ref],
    sequences: &'e [i64],
}

/// What becomes of each event: decided under the locks of the entities' gate rows.
pub(super) async fn admit(
    connection: &mut PgConnection,
    projection: &Projection,
    events: &Events<'_>,
    order: &[Ref],
) -> Result<Vec<Outcome>, Failure> {
    let filtered = |filtered: &bool| match filtered {
        true => Outcome::Filtered,
        false => Outcome::Applied,
    };
    let mut outcomes: Vec<Outcome> = events.filtered.iter().map(filtered).collect();
    if projection.gate != Gate::None {
        // The decoder lets no event without a sequence pass where there is a gate.
        let sequence = |event: &Ref| events.sequences[*event as usize].unwrap_or(i64::MIN);
        let sequences: Vec<i64> = order.iter().map(sequence).collect();
        let groups = groups(events, order, &sequences);
        match projection.gate {
            Gate::Newest => newest(connection, &groups, &mut outcomes).await?,
            Gate::Next { first } => next(connection, first, &groups, &mut outcomes).await?,
            Gate::None => {}
        }
    }
    if projection.event_id.is_some() {
        inbox(connection, events, &mut outcomes).await?;
    }
    Ok(outcomes)
}

fn groups<'e>(events: &'e Events<'_>, order: &'e [Ref], sequences: &'e [i64]) -> Vec<Group<'e>> {
    let same = |a: &Ref, b: &Ref| events.entity(*a) == events.entity(*b);
    let mut rest = sequences;
    let group = |refs: &'e [Ref]| {
        let (sequences, after) = rest.split_at(refs.len());
        rest = after;
        Group {
            entity: events.entity(refs[0]),
            refs,
            sequences,
        }
    };
    order.chunk_by(same).map(group).collect()
}

fn mark(group: &Group<'_>, admissions: &[Admission], outcomes: &mut [Outcome]) {
    for (event, admission) in group.refs.iter().zip(admissions) {
        if *admission == Admission::Stale {
            outcomes[*event as usize] = Outcome::Stale;
        }
    }
}

async fn newest(
    connection: &mut PgConnection,
    groups: &[Group<'_>],
    outcomes: &mut [Outcome],
) -> Result<(), Failure> {
    let entities: Vec<&str> = groups.iter().map(|group| group.entity).collect();
    let highest = |group: &Group<'_>| group.sequences.iter().copied().max().unwrap_or(i64::MIN);
    let sequences: Vec<i64> = groups.iter().map(highest).collect();
    let mut moved = store::gate::newest(connection, &entities, &sequences).await?;
    moved.sort_by(|a, b| a.entity().cmp(b.entity()));
    let mut answers = moved.iter().peekable();
    for group in groups {
        let answer = answers.next_if(|answer| answer.entity() == group.entity);
        let admissions = match answer {
            Some(answer) => gate::newest(answer.previous, group.sequences),
            None => vec![Admission::Stale; group.refs.len()],
        };
        mark(group, &admissions, outcomes);
    }
    Ok(())
}

/// Entities whose events form a dense run take one statement; the others are decided one by one, with
/// their rows locked first.
async fn next(
    connection: &mut PgConnection,
    first: First,
    groups: &[Group<'_>],
    outcomes: &mut [Outcome],
) -> Result<(), Failure> {
    let mut runs = Vec::new();
    let mut slow: Vec<&Group<'_>> = Vec::new();
    for group in groups {
        if let First::At(first) = first
            && let Some(index) = group.sequences.iter().position(|s| *s < first)
        {
            return Err(before_first(group, index, first));
        }
        match gate::run(group.sequences) {
            Some((lo, hi)) => runs.push((group, lo, hi)),
            None => slow.push(group),
        }
    }
    let entities: Vec<&str> = runs.iter().map(|(group, ..)| group.entity).collect();
    let last: Vec<i64> = runs.iter().map(|(.., hi)| *hi).collect();
    let before: Vec<i64> = runs.iter().map(|(_, lo, _)| lo - 1).collect();
    let mut moved = store::gate::next(connection, &entities, &last, &before).await?;
    moved.sort_by(|a, b| a.entity().cmp(b.entity()));
    let mut answers = moved.iter().peekable();
    for (group, lo, _) in &runs {
        match answers.next_if(|answer| answer.entity() == group.entity) {
            Some(answer) => {
                let previous = answer.previous.unwrap_or(i64::MIN);
                if let First::At(first) = first
                    && answer.inserted
                    && first != *lo
                {
                    return Err(gap(group, 0, first));
                }
                let (admissions, _, missing) = gate::next(previous, group.sequences);
                if let Some(missing) = missing {
                    return Err(gap(group, missing.index, missing.expected));
                }
                mark(group, &admissions, outcomes);
            }
            None => slow.push(group),
        }
    }
    if slow.is_empty() {
        return Ok(());
    }
    slow.sort_by_key(|group| group.entity);
    one_by_one(connection, first, &slow, outcomes).await
}

async fn one_by_one(
    connection: &mut PgConnection,
    first: First,
    groups: &[&Group<'_>],
    outcomes: &mut [Outcome],
) -> Result<(), Failure> {
    let entities: Vec<&str> = groups.iter().map(|group| group.entity).collect();
    let before = |group: &&Group<'_>| match first {
        First::At(first) => first.saturating_sub(1),
        First::Any => group.sequences[0].saturating_sub(1),
    };
    let initial: Vec<i64> = groups.iter().map(before).collect();
    let stands = store::gate::lock(connection, &entities, &initial).await?;
    let mut moved = Vec::new();
    // The first gap in batch order is the one to report: the records before it can be applied.
    let mut first_gap: Option<(Ref, Failure)> = None;
    for (group, current) in groups.iter().zip(&stands) {
        let (admissions, last, missing) = gate::next(*current, group.sequences);
        if let Some(missing) = missing {
            let at = group.refs[missing.index];
            if first_gap.as_ref().is_none_or(|(before, _)| at < *before) {
                first_gap = Some((at, gap(group, missing.index, missing.expected)));
            }
            continue;
        }
        mark(group, &admissions, outcomes);
        if last != *current {
            moved.push((group.entity, last));
        }
    }
    if let Some((_, failure)) = first_gap {
        return Err(failure);
    }
    if !moved.is_empty() {
        let (entities, sequences): (Vec<&str>, Vec<i64>) = moved.into_iter().unzip();
        store::gate::set(connection, &entities, &sequences).await?;
    }
    Ok(())
}

fn gap(group: &Group<'_>, index: usize, expected: i64) -> Failure {
    Failure::Rejected {
        at: Some(group.refs[index]),
        waits: true,
        why: format!(
            "gate next: entity `{}` has sequence {} where {expected} is due; the events between are missing or still to come",
            group.entity, group.sequences[index]
        ),
    }
}

fn before_first(group: &Group<'_>, index: usize, first: i64) -> Failure {
    Failure::Rejected {
        at: Some(group.refs[index]),
        waits: false,
        why: format!(
            "gate next: entity `{}` has sequence {}, below the first one allowed, {first}; set `first` of the projection if that is right",
            group.entity, group.sequences[index]
        ),
    }
}

async fn inbox(
    connection: &mut PgConnection,
    events: &Events<'_>,
    outcomes: &mut [Outcome],
) -> Result<(), Failure> {
    let id = |event: Ref| events.event_ids.get(event as usize).unwrap_or_default();
    let mut order: Vec<Ref> = (0..outcomes.len() as Ref)
        .filter(|event| outcomes[*event as usize] == Outcome::Applied)
        .collect();
    order.sort_by(|a, b| id(*a).cmp(id(*b)).then(a.cmp(b)));
    // Of several copies in one batch the first counts.
    let copies: Vec<&[Ref]> = order.chunk_by(|a, b| id(*a) == id(*b)).collect();
    let ids: Vec<&str> = copies.iter().map(|refs| id(refs[0])).collect();
    let new = store::inbox::insert(connection, &ids).await?;
    for refs in copies {
        let applied = usize::from(new.contains(id(refs[0])));
        for event in &refs[applied..] {
            outcomes[*event as usize] = Outcome::Duplicate;
        }
    }
    Ok(())
}
