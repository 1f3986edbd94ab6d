//! What Postgres holds, and what a transaction does to it.

use super::{Event, Gate, Protocol};
use crate::mistake::Mistake;

pub(super) const PARTITIONS: usize = 2;
pub(super) const ENTITIES: usize = 2;

/// Partition and offset of a record.
pub(super) type Place = (usize, u8);

/// A row of `position`. Its epoch and token are not kept here, see [`Claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Position {
    pub(super) next: u8,
    pub(super) consumed: u8,
    pub(super) applied: u8,
    pub(super) stale: u8,
}

pub(super) type Positions = [Position; PARTITIONS];

/// What is committed, and so visible.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Database {
    /// The live generation.
    pub(super) generation: u8,
    pub(super) positions: Positions,
    /// Positions of former generations, where a mistake lets somebody come to them.
    pub(super) retired: Vec<(u8, Positions)>,
    /// Offsets of the live generation that were left out by hand, a bit for each.
    pub(super) skipped: [u8; PARTITIONS],
    /// The last sequence of each entity.
    pub(super) gate: [u8; ENTITIES],
    /// What the handler has written: the records of each entity, in the order they were applied.
    pub(super) tables: [Vec<Place>; ENTITIES],
    pub(super) emitted_through: [u8; PARTITIONS],
    /// A stream for each partition: the offsets whose message is in it, in number order.
    pub(super) outbox: [Vec<u8>; PARTITIONS],
}

impl Database {
    /// As the first start leaves it.
    pub(super) fn started() -> Self {
        Self {
            generation: 1,
            positions: Positions::default(),
            retired: Vec::new(),
            skipped: [0; PARTITIONS],
            gate: [0; ENTITIES],
            tables: [Vec::new(), Vec::new()],
            emitted_through: [0; PARTITIONS],
            outbox: [Vec::new(), Vec::new()],
        }
    }

    pub(super) fn positions(&self, generation: u8) -> &Positions {
        let retired = || {
            self.retired
                .iter()
                .find(|(number, _)| *number == generation)
        };
        match generation == self.generation {
            true => &self.positions,
            false => retired().map_or(&self.positions, |(_, positions)| positions),
        }
    }

    fn positions_mut(&mut self, generation: u8) -> &mut Positions {
        let retired = self.retired.iter_mut();
        match retired
            .into_iter()
            .find(|(number, _)| *number == generation)
        {
            Some((_, positions)) => positions,
            None => &mut self.positions,
        }
    }
}

/// The right to apply a partition.
///
/// Epoch and token are compared for equality and for nothing else, both change at every claim and every
/// reset, and both do so in a synchronous commit, which no crash takes back. So it is enough to know of
/// each claim whether the row still carries it. Numbers would only make the same states different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    pub(super) generation: u8,
    /// Epoch and token are those of the row.
    pub(super) newest: bool,
    pub(super) emitted_through: u8,
}

/// A partition's part of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Part {
    pub(super) claim: Claim,
    /// The position that the batch expects.
    pub(super) from: u8,
    /// The first of its records. The same as `from`, or else records were kept that should not have been.
    pub(super) first: u8,
    pub(super) count: u8,
}

impl Part {
    pub(super) fn to(&self) -> u8 {
        self.first + self.count
    }
}

/// How far a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Begun,
    /// Gate, effects and outbox are written, the entities' gate rows are locked. A bit for each record that
    /// was admitted, in batch order.
    Applied {
        admitted: u8,
    },
    /// The position statement was run; whether it has moved all rows. If it has, they are locked.
    Moved {
        admitted: u8,
        all: bool,
    },
    /// COMMIT is on its way.
    Committing {
        admitted: u8,
        all: bool,
    },
    /// Done, and the answer is on its way.
    Committed,
}

/// The one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Transaction {
    pub(super) generation: u8,
    pub(super) parts: [Option<Part>; PARTITIONS],
    pub(super) step: Step,
}

impl Transaction {
    pub(super) fn parts(&self) -> impl Iterator<Item = (usize, Part)> {
        let parts = self.parts.into_iter().enumerate();
        parts.filter_map(|(partition, part)| Some((partition, part?)))
    }

    /// The records, in batch order.
    pub(super) fn records(&self) -> impl Iterator<Item = Place> {
        self.parts().flat_map(|(partition, part)| {
            (part.first..part.to()).map(move |offset| (partition, offset))
        })
    }

    pub(super) fn locks_position(&self, generation: u8, partition: usize) -> bool {
        let moved = matches!(
            self.step,
            Step::Moved { all: true, .. } | Step::Committing { all: true, .. }
        );
        moved && self.generation == generation && self.parts[partition].is_some()
    }

    pub(super) fn is_open(&self) -> bool {
        self.step != Step::Committed
    }
}

impl Protocol {
    pub(super) fn event(&self, (partition, offset): Place) -> Event {
        self.log[partition][usize::from(offset)]
    }

    /// Whether this transaction holds the gate row of one of the other's entities.
    pub(super) fn locks_gate_of(&self, holder: &Transaction, other: &Transaction) -> bool {
        let holds = match holder.step {
            Step::Applied { .. } | Step::Moved { .. } | Step::Committing { .. } => {
                self.gate == Gate::Newest && !self.makes(Mistake::GateAlone)
            }
            Step::Begun | Step::Committed => false,
        };
        let entity = |place| self.event(place).entity;
        holds
            && other.records().any(|wanted| {
                let mut held = holder.records();
                held.any(|place| entity(place) == entity(wanted))
            })
    }

    /// Which events pass the gate (I4), and where it stands afterwards.
    pub(super) fn admit(&self, database: &Database, batch: &Transaction) -> (u8, [u8; ENTITIES]) {
        let mut gate = database.gate;
        let mut admitted = 0;
        for (index, place) in batch.records().enumerate() {
            let Event { entity, sequence } = self.event(place);
            if self.gate == Gate::None || sequence > gate[entity] {
                gate[entity] = gate[entity].max(sequence);
                admitted |= 1 << index;
            }
        }
        (admitted, gate)
    }

    /// The compare-and-set: whether the position statement finds all its rows as it expects them.
    pub(super) fn moves_all(&self, database: &Database, batch: &Transaction) -> bool {
        let rows = database.positions(batch.generation);
        batch.parts().all(|(partition, part)| {
            let owned = part.claim.newest && part.claim.generation == batch.generation;
            (owned || self.makes(Mistake::NoOwnerCheck)) // I3
                && (rows[partition].next == part.from || self.makes(Mistake::NoOffsetCheck))
                && part.to() > part.from // I2
        })
    }

    pub(super) fn move_positions(
        &self,
        database: &mut Database,
        batch: &Transaction,
        admitted: u8,
    ) {
        let mut applied = [0; PARTITIONS];
        for (index, (partition, _)) in batch.records().enumerate() {
            applied[partition] += admitted >> index & 1;
        }
        let rows = database.positions_mut(batch.generation);
        for (partition, part) in batch.parts() {
            let row = &mut rows[partition];
            row.next = part.to();
            row.consumed += part.count;
            row.applied += applied[partition];
            row.stale += part.count - applied[partition];
        }
    }

    /// What COMMIT makes visible, all at once (I1).
    pub(super) fn commit(&self, database: &mut Database, batch: &Transaction) {
        let Step::Committing { admitted, all } = batch.step else {
            return;
        };
        for (index, place) in batch.records().enumerate() {
            if admitted >> index & 1 == 0 {
                continue;
            }
            let (partition, offset) = place;
            let Event { entity, sequence } = self.event(place);
            database.tables[entity].push(place);
            database.gate[entity] = database.gate[entity].max(sequence);
            // I5. The unique constraint on ids, a second line, is left out, so that the first is tested.
            let part = batch.parts[partition];
            if part.is_some_and(|part| offset >= part.claim.emitted_through) {
                database.outbox[partition].push(offset);
            }
        }
        if all && !self.makes(Mistake::PositionFirst) {
            self.move_positions(database, batch, admitted);
        }
    }

    /// What a skip by hand changes: one record is left out, and recorded (I6).
    pub(super) fn skip(&self, database: &mut Database, partition: usize) {
        let next = &mut database.positions[partition].next;
        database.skipped[partition] |= 1 << *next;
        *next += 1;
    }

    /// What a reset changes, in one transaction.
    pub(super) fn reset(&self, database: &mut Database) {
        for (partition, row) in database.positions.iter().enumerate() {
            let emitted_through = &mut database.emitted_through[partition]; // I5
            *emitted_through = if self.makes(Mistake::EmissionNotRaised) {
                *emitted_through
            } else if self.makes(Mistake::EmissionOverwritten) {
                row.next
            } else if self.makes(Mistake::EmissionRaisedTooFar) {
                self.len(partition)
            } else {
                row.next.max(*emitted_through)
            };
        }
        // With the rules in force nobody reads or writes these rows again.
        let reachable = [
            Mistake::ClaimsFromMemory,
            Mistake::ResetDoesNotFence,
            Mistake::NoOwnerCheck,
        ];
        if reachable.iter().any(|mistake| self.makes(*mistake)) {
            let row = (database.generation, database.positions);
            database.retired.push(row);
        }
        database.generation += 1;
        database.positions = Positions::default();
        database.skipped = [0; PARTITIONS];
        database.gate = [0; ENTITIES];
        database.tables = [Vec::new(), Vec::new()];
    }
}
