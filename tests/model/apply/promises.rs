//! What must be true in every state.

use stateright::Property;

use super::database::{Database, PARTITIONS, Place};
use super::{Event, Gate, Protocol, State};

pub(crate) const APPLIED_ONCE: &str = "no event is applied twice (I1, I4)";
pub(crate) const NOTHING_SKIPPED: &str = "no record below the position is skipped (I1, I6)";
pub(crate) const IN_ORDER: &str = "the events of an entity are applied in order (I4)";
pub(crate) const ONLY_GROWS: &str = "a position only grows (I2)";
pub(crate) const NEWEST_OWNER: &str = "only the newest owner commits (I3)";
pub(crate) const ACCOUNTED: &str = "every record is accounted for (I6)";
pub(crate) const EMITTED_ONCE: &str = "a message is emitted once (I5)";
pub(crate) const NO_MESSAGE_LOST: &str = "what is applied has emitted (I5)";
pub(crate) const MIRRORS_DURABLE: &str = "only what was durable is mirrored (I7)";
/// Between a reset and the owner's next claim the mirror shows what was: two systems do not change at once.
pub(crate) const MIRROR_SETTLES: &str =
    "once the owner has mirrored its claim, the mirror shows no more than the position (I7)";

pub(super) fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(APPLIED_ONCE, |_, state: &State| {
            state.database.tables.iter().all(|table| is_once(table))
        }),
        Property::always(NOTHING_SKIPPED, |protocol: &Protocol, state: &State| {
            below_the_positions(&state.database).all(|place| protocol.is_settled(state, place))
        }),
        Property::always(IN_ORDER, |protocol: &Protocol, state: &State| {
            let mut tables = state.database.tables.iter();
            tables.all(|table| protocol.is_in_order(table))
        }),
        Property::always(ONLY_GROWS, |_, state: &State| {
            !state.seen.a_position_went_back
        }),
        Property::always(NEWEST_OWNER, |_, state: &State| {
            !state.seen.an_old_owner_committed
        }),
        Property::always(ACCOUNTED, |_, state: &State| is_accounted(&state.database)),
        Property::always(EMITTED_ONCE, |_, state: &State| {
            state.database.outbox.iter().all(|stream| is_once(stream))
        }),
        Property::always(NO_MESSAGE_LOST, |protocol: &Protocol, state: &State| {
            let mut applied = state.database.tables.iter().flatten();
            applied.all(|place| protocol.has_emitted(state, *place))
        }),
        Property::always(MIRRORS_DURABLE, |_, state: &State| {
            (0..PARTITIONS).all(|p| state.mirrored[p] <= state.seen.durable[p])
        }),
        Property::always(MIRROR_SETTLES, |_, state: &State| {
            let durable = &state.durable().positions;
            let settled = (0..PARTITIONS).filter(|p| state.owner_has_mirrored(*p));
            settled
                .into_iter()
                .all(|p| state.mirrored[p] <= durable[p].next)
        }),
    ]
}

fn is_once<T: PartialEq>(list: &[T]) -> bool {
    let mut numbered = list.iter().enumerate();
    numbered.all(|(at, one)| !list[..at].contains(one))
}

fn below_the_positions(database: &Database) -> impl Iterator<Item = Place> {
    let rows = database.positions.iter().enumerate();
    rows.flat_map(|(partition, row)| (0..row.next).map(move |offset| (partition, offset)))
}

/// As `tidegate verify` has it; the log of a model has no offsets that are no records.
fn is_accounted(database: &Database) -> bool {
    let mut rows = database.positions.iter().zip(database.skipped);
    rows.all(|(row, skipped)| {
        let skipped = u8::try_from(skipped.count_ones()).unwrap();
        row.consumed == row.applied + row.stale && row.consumed + skipped == row.next
    })
}

impl State {
    /// The worker that has the partition has its newest claim too, and nothing left to mirror.
    fn owner_has_mirrored(&self, partition: usize) -> bool {
        self.assigned[partition].is_some_and(|owner| {
            let me = &self.workers[owner];
            let claim = me.partitions[partition].claim();
            claim.is_some_and(|claim| claim.newest) && me.noted[partition].is_none()
        })
    }
}

impl Protocol {
    /// Applied, left out by hand, or rightly dropped: something at least as new was applied.
    fn is_settled(&self, state: &State, place: Place) -> bool {
        let (partition, offset) = place;
        let Event { entity, sequence } = self.event(place);
        let table = &state.database.tables[entity];
        let newer = |other: &Place| self.event(*other).sequence >= sequence;
        table.contains(&place)
            || state.database.skipped[partition] >> offset & 1 == 1
            || (self.gate == Gate::Newest && table.iter().any(newer))
    }

    fn is_in_order(&self, table: &[Place]) -> bool {
        table.windows(2).all(|pair| match self.gate {
            Gate::Newest => self.event(pair[0]).sequence < self.event(pair[1]).sequence,
            Gate::None => pair[0].0 != pair[1].0 || pair[0].1 < pair[1].1,
        })
    }

    /// In this generation or an earlier one, unless its right to emit was spent without a message: it was
    /// left out by hand, or, of two copies in two partitions, it was the one that came too late then.
    fn has_emitted(&self, state: &State, (partition, offset): Place) -> bool {
        let emitted = state.database.outbox[partition].contains(&offset);
        let below = offset < state.database.emitted_through[partition];
        let left_out = state.seen.left_out[partition] >> offset & 1 == 1;
        emitted || (below && (left_out || self.gate == Gate::Newest))
    }

    /// Whether all that the log has was applied or left out, and the mirror shows it.
    pub(super) fn is_all_applied(&self, state: &State) -> bool {
        let database = &state.database;
        let next = database.positions.map(|row| row.next);
        let at_end = (0..PARTITIONS).all(|p| next[p] == self.len(p));
        let settled = (0..PARTITIONS).all(|partition| {
            let mut offsets = 0..self.len(partition);
            offsets.all(|offset| self.is_settled(state, (partition, offset)))
        });
        at_end && settled && (!self.mirrors || state.mirrored == next)
    }
}
