//! Asks gate and inbox which events of a batch pass (I4), and which wait.
//!
//! The questions are one statement each, in the order of locks: gate rows sorted, then inbox ids
//! sorted. The decisions are `engine::gate`'s.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use sqlx::PgConnection;

use super::apply::Failure;
use crate::engine::gate::{self, Admission, Standing};
use crate::engine::parking::{Reason, Rejection};
use crate::projection::{Events, First, Gate, GateIn, GateRows, Outcome, Projection, Ref};
use crate::store;

/// The events of one entity, in arrival order.
struct Group<'e> {
    entity: &'e str,
    refs: &'e [Ref],
    sequences: &'e [i64],
}

/// What became of a batch's events at the gate.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    /// One for each event.
    pub(super) outcomes: Vec<Outcome>,
    /// Those that are parked, with the reason.
    pub(super) parked: BTreeMap<Ref, Rejection>,
    /// Gate `next`: entities that came on while records of theirs are parked, which may follow now.
    pub(super) to_drain: Vec<String>,
    /// With the gate in the row: the rows that were asked.
    pub(super) gate_rows: Option<GateRows>,
    /// And where they stand that have dropped an event.
    pub(super) stands: BTreeMap<Ref, i64>,
}

impl Admitted {
    fn park(&mut self, event: Ref, rejection: Rejection) {
        self.outcomes[event as usize] = Outcome::Parked;
        self.parked.insert(event, rejection);
    }
}

/// What becomes of each event: decided under the locks of the entities' gate rows. `alone`: the transaction holds the
/// generation's lock exclusively.
pub(super) async fn admit(
    connection: &mut PgConnection,
    projection: &Projection,
    events: &Events<'_>,
    order: &[Ref],
    alone: bool,
) -> Result<Admitted, Failure> {
    let filtered = |filtered: &bool| match filtered {
        true => Outcome::Filtered,
        false => Outcome::Applied,
    };
    let mut admitted = Admitted {
        outcomes: events.filtered.iter().map(filtered).collect(),
        ..Admitted::default()
    };
    for (event, rejection) in &events.rejected {
        admitted.park(*event, rejection.clone());
    }
    if projection.gate != Gate::None || projection.entity.is_some() {
        // The decoder rejects what has no sequence where there is a gate.
        let sequence = |event: &Ref| events.sequences[*event as usize].unwrap_or(i64::MAX);
        let sequences: Vec<i64> = order.iter().map(sequence).collect();
        let groups = groups(events, order, &sequences);
        match projection.gate {
            gate if let Some(gate_in) = &projection.gate_in => {
                in_row(
                    connection,
                    gate,
                    gate_in,
                    alone,
                    events,
                    &groups,
                    &mut admitted,
                )
                .await?;
            }
            Gate::Newest => newest(connection, events, &groups, &mut admitted).await?,
            Gate::Next { first } => next(connection, first, events, &groups, &mut admitted).await?,
            Gate::None => {
                let lock_all = projection.handler.keeps_states();
                none(connection, lock_all, events, &groups, &mut admitted).await?;
            }
        }
    }
    if projection.event_id.is_some() {
        inbox(connection, events, &mut admitted.outcomes).await?;
    }
    Ok(admitted)
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

/// Takes in what was decided of one entity's events. `gap_after`: the first that waits does so for what
/// comes after this sequence, under gate `next`.
fn mark(
    group: &Group<'_>,
    events: &Events<'_>,
    admissions: &[Admission],
    gap_after: Option<i64>,
    admitted: &mut Admitted,
) {
    let mut gap_after = gap_after;
    let decided = group.refs.iter().zip(group.sequences).zip(admissions);
    for ((event, sequence), admission) in decided {
        match admission {
            Admission::Admitted => gap_after = gap_after.map(|_| *sequence),
            Admission::Stale => {
                admitted.outcomes[*event as usize] = Outcome::Stale;
                admitted.parked.remove(event);
            }
            Admission::Waits => {
                let gap = gap_after.take();
                // Its own reason stands.
                if !events.rejected.contains_key(event) {
                    admitted.park(*event, waiting(group.entity, *sequence, gap));
                }
            }
        }
    }
}

fn waiting(entity: &str, sequence: i64, gap_after: Option<i64>) -> Rejection {
    match gap_after {
        Some(last) => {
            let due = last.saturating_add(1);
            let detail = format!(
                "gate next: entity `{entity}` has sequence {sequence} where {due} is due; the events between are missing or still to come"
            );
            Rejection::new(Reason::Gap, detail)
        }
        None => {
            let detail = format!("waits behind an earlier record of entity `{entity}`");
            Rejection::new(Reason::Behind, detail)
        }
    }
}

/// Whether a group has an event that cannot be applied: those are decided event by event.
fn is_slow(group: &Group<'_>, events: &Events<'_>) -> bool {
    !events.rejected.is_empty() && group.refs.iter().any(|e| events.rejected.contains_key(e))
}

async fn newest(
    connection: &mut PgConnection,
    events: &Events<'_>,
    groups: &[Group<'_>],
    admitted: &mut Admitted,
) -> Result<(), Failure> {
    let (slow, fast): (Vec<&Group<'_>>, Vec<&Group<'_>>) =
        groups.iter().partition(|group| is_slow(group, events));
    let entities: Vec<&str> = fast.iter().map(|group| group.entity).collect();
    let highest = |group: &&Group<'_>| group.sequences.iter().copied().max().unwrap_or(i64::MIN);
    let sequences: Vec<i64> = fast.iter().map(highest).collect();
    let mut moved = store::gate::newest(connection, &entities, &sequences).await?;
    moved.sort_by(|a, b| a.entity().cmp(b.entity()));
    let mut answers = moved.iter().peekable();
    for group in fast {
        let answer = answers.next_if(|answer| answer.entity() == group.entity);
        let admissions = match answer {
            Some(answer) => {
                gate::newest(answer.previous, answer.parked, group.sequences, |_| false).0
            }
            None => vec![Admission::Stale; group.refs.len()],
        };
        mark(group, events, &admissions, None, admitted);
    }
    let initial = |group: &Group<'_>| group.initial(Gate::Newest, events);
    one_by_one(connection, Gate::Newest, events, &slow, initial, admitted).await
}

/// Without a gate there are rows for entities with parked records, and for those whose states must not be read by two
/// writers at once.
async fn none(
    connection: &mut PgConnection,
    lock_all: bool,
    events: &Events<'_>,
    groups: &[Group<'_>],
    admitted: &mut Admitted,
) -> Result<(), Failure> {
    let entities: Vec<&str> = groups.iter().map(|group| group.entity).collect();
    let parked = match lock_all {
        true => HashSet::new(),
        false => store::gate::parked(connection, &entities).await?,
    };
    let slow: Vec<&Group<'_>> = groups
        .iter()
        .filter(|group| lock_all || parked.contains(group.entity) || is_slow(group, events))
        .collect();
    one_by_one(connection, Gate::None, events, &slow, |_| 0, admitted).await
}

/// Entities whose events form a dense run take one statement; the others are decided one by one, with
/// their rows locked first.
async fn next(
    connection: &mut PgConnection,
    first: First,
    events: &Events<'_>,
    groups: &[Group<'_>],
    admitted: &mut Admitted,
) -> Result<(), Failure> {
    let mut runs = Vec::new();
    let mut slow: Vec<&Group<'_>> = Vec::new();
    for group in groups {
        match gate::run(group.sequences) {
            Some((lo, hi)) if !is_slow(group, events) => runs.push((group, lo, hi)),
            _ => slow.push(group),
        }
    }
    let entities: Vec<&str> = runs.iter().map(|(group, ..)| group.entity).collect();
    let last: Vec<i64> = runs.iter().map(|(.., hi)| *hi).collect();
    let before: Vec<i64> = runs.iter().map(|(_, lo, _)| lo - 1).collect();
    let mut moved = store::gate::next(connection, &entities, &last, &before).await?;
    moved.sort_by(|a, b| a.entity().cmp(b.entity()));
    let mut answers = moved.iter().peekable();
    let mut taken_back: Vec<(&str, Standing)> = Vec::new();
    for (group, lo, _) in &runs {
        let Some(answer) = answers.next_if(|answer| answer.entity() == group.entity) else {
            slow.push(group);
            continue;
        };
        if let First::At(first) = first
            && answer.inserted
            && first != *lo
        {
            // The statement cannot know with what an entity begins; its row is put right.
            let standing = Standing {
                sequence: first.saturating_sub(1),
                parked: true,
            };
            taken_back.push((group.entity, standing));
            let admissions = vec![Admission::Waits; group.refs.len()];
            mark(
                group,
                events,
                &admissions,
                Some(standing.sequence),
                admitted,
            );
            continue;
        }
        let standing = Standing {
            sequence: answer.previous.unwrap_or(i64::MIN),
            parked: answer.parked,
        };
        let (admissions, _) = gate::next(standing, group.sequences, &BTreeSet::new(), |_| false);
        mark(group, events, &admissions, None, admitted);
        if answer.parked {
            admitted.to_drain.push(group.entity.to_owned());
        }
    }
    store::gate::set(connection, &taken_back).await?;
    slow.sort_by_key(|group| group.entity);
    let gate = Gate::Next { first };
    let initial = |group: &Group<'_>| group.initial(gate, events);
    one_by_one(connection, gate, events, &slow, initial, admitted).await
}

/// The gate in the row: what the rows carry decides, and whoever writes them compares (I4). An entity that has a row in
/// `_gate` is decided by that one. Such rows are made by whoever has the generation to itself alone, so that nobody
/// else can have decided by the entity's own row meanwhile.
async fn in_row(
    connection: &mut PgConnection,
    gate: Gate,
    gate_in: &GateIn,
    alone: bool,
    events: &Events<'_>,
    groups: &[Group<'_>],
    admitted: &mut Admitted,
) -> Result<(), Failure> {
    let entities: Vec<&str> = groups.iter().map(|group| group.entity).collect();
    let apart = store::gate::met(connection, &entities).await?;
    let mut rows = gate_in.read(connection, &entities).await?;
    rows.alone = alone;
    let (mut walk, mut slow) = (rows.walk(), Vec::new());
    for group in groups {
        let carried = walk.sequence(group.entity);
        let before = Standing {
            sequence: carried.unwrap_or_else(|| group.initial(gate, events)),
            parked: false,
        };
        if apart.contains(group.entity) {
            slow.push((group, before.sequence));
            continue;
        }
        let (admissions, after) = group.decide(gate, before, events);
        match after.parked {
            false => {
                mark(group, events, &admissions, None, admitted);
                let decided = group.refs.iter().zip(&admissions);
                let stale = decided.filter(|(_, admission)| **admission == Admission::Stale);
                admitted
                    .stands
                    .extend(stale.map(|(event, _)| (*event, after.sequence)));
            }
            true if alone => slow.push((group, before.sequence)),
            true => {
                let why = format!("a record of entity `{}` is to be parked", group.entity);
                return Err(Failure::NeedsToBeAlone(why));
            }
        }
    }
    let (slow, initial): (Vec<&Group<'_>>, Vec<i64>) = slow.into_iter().unzip();
    let mut initial = initial.into_iter();
    let initial = |_: &Group<'_>| initial.next().unwrap_or(i64::MIN);
    one_by_one(connection, gate, events, &slow, initial, admitted).await?;
    admitted.gate_rows = Some(rows);
    Ok(())
}

/// Where the gate of an entity stands that was never met, before the first event: of these sequences, if any will do.
pub(super) fn initial(gate: Gate, known: impl IntoIterator<Item = i64>) -> i64 {
    match gate {
        Gate::None => 0,
        Gate::Newest => i64::MIN,
        Gate::Next {
            first: First::At(first),
        } => first.saturating_sub(1),
        Gate::Next { first: First::Any } => gate::before_any(known),
    }
}

/// What becomes of an entity's events, and where its gate stands after them. `sequences` are theirs; under gate `next`
/// those that were `given_up` are passed over.
pub(super) fn decide(
    gate: Gate,
    standing: Standing,
    events: &Events<'_>,
    refs: &[Ref],
    sequences: &[i64],
    given_up: &BTreeSet<i64>,
) -> (Vec<Admission>, Standing) {
    let rejected = |index: usize| events.rejected.contains_key(&refs[index]);
    match gate {
        Gate::None => gate::none(standing, refs.len(), rejected),
        Gate::Newest => {
            let previous = (standing.sequence > i64::MIN).then_some(standing.sequence);
            gate::newest(previous, standing.parked, sequences, rejected)
        }
        Gate::Next { first } => {
            // Of its records none could be read so far.
            let begins = first == First::Any && standing.sequence == i64::MIN;
            let from = Standing {
                sequence: match begins {
                    true => initial(gate, readable(events, refs)),
                    false => standing.sequence,
                },
                ..standing
            };
            gate::next(from, sequences, given_up, rejected)
        }
    }
}

/// The sequences that could be read.
fn readable(events: &Events<'_>, refs: &[Ref]) -> impl Iterator<Item = i64> {
    refs.iter()
        .filter_map(|event| events.sequences[*event as usize])
}

impl Group<'_> {
    fn decide(
        &self,
        gate: Gate,
        standing: Standing,
        events: &Events<'_>,
    ) -> (Vec<Admission>, Standing) {
        decide(
            gate,
            standing,
            events,
            self.refs,
            self.sequences,
            &BTreeSet::new(),
        )
    }

    fn initial(&self, gate: Gate, events: &Events<'_>) -> i64 {
        initial(gate, readable(events, self.refs))
    }
}

/// Decides entities event by event, with their rows locked first.
async fn one_by_one(
    connection: &mut PgConnection,
    gate: Gate,
    events: &Events<'_>,
    groups: &[&Group<'_>],
    initial: impl FnMut(&Group<'_>) -> i64,
    admitted: &mut Admitted,
) -> Result<(), Failure> {
    if groups.is_empty() {
        return Ok(());
    }
    let is_next = matches!(gate, Gate::Next { .. });
    let entities: Vec<&str> = groups.iter().map(|group| group.entity).collect();
    let mut initial = initial;
    let initial: Vec<i64> = groups.iter().map(|group| initial(group)).collect();
    let stands = store::gate::lock(connection, &entities, &initial).await?;
    let mut moved = Vec::new();
    for (group, before) in groups.iter().zip(stands) {
        let (admissions, after) = group.decide(gate, before, events);
        let gap_after = (!before.parked && is_next).then_some(before.sequence);
        mark(group, events, &admissions, gap_after, admitted);
        if is_next && before.parked && after.sequence != before.sequence {
            admitted.to_drain.push(group.entity.to_owned());
        }
        if after != before {
            moved.push((group.entity, after));
        }
    }
    store::gate::set(connection, &moved).await?;
    Ok(())
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
