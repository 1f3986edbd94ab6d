//! What the group, Postgres and the workers know at one moment.

use std::fmt::Write as _;

use super::database::{Claim, Database, PARTITIONS, Transaction};
use super::{Faults, Protocol, WORKERS};

/// What a writer knows about a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Knows {
    /// That it is not its own.
    Nothing,
    Claiming {
        /// The end of records kept by mistake.
        kept: Option<u8>,
        /// A position read by mistake before the lock.
        read: Option<u8>,
    },
    Fetching {
        claim: Claim,
        next: u8,
        kept: Option<u8>,
    },
    Running {
        claim: Claim,
        next: u8,
        /// The next record. The same as `next`, unless records are kept by mistake.
        cursor: u8,
    },
    /// By mistake: fenced, and waiting for Kafka.
    Stopped,
}

pub(super) const CLAIMING: Knows = Knows::Claiming {
    kept: None,
    read: None,
};

impl Knows {
    pub(super) fn claim(&self) -> Option<&Claim> {
        match self {
            Self::Fetching { claim, .. } | Self::Running { claim, .. } => Some(claim),
            Self::Nothing | Self::Claiming { .. } | Self::Stopped => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Worker {
    pub(super) partitions: [Knows; PARTITIONS],
    /// The group has told something that the writer has not heard yet.
    pub(super) told: [bool; PARTITIONS],
    /// The generation that the last claim read; none yet.
    pub(super) generation: Option<u8>,
    pub(super) transaction: Option<Transaction>,
    /// Positions have moved that a crash of Postgres may take back.
    pub(super) unconfirmed: bool,
    /// Noted to be mirrored soon.
    pub(super) noted: [Option<u8>; PARTITIONS],
}

pub(super) const NEW: Worker = Worker {
    partitions: [Knows::Nothing; PARTITIONS],
    told: [false; PARTITIONS],
    generation: None,
    transaction: None,
    unconfirmed: false,
    noted: [None; PARTITIONS],
};

/// Kafka, Postgres and the workers at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(super) database: Database,
    /// What a crash of the database may leave instead, oldest first. Empty if all is durable.
    pub(super) recoverable: Vec<Database>,
    pub(super) workers: [Worker; WORKERS],
    /// Transactions whose worker is gone, with COMMIT on its way.
    pub(super) unanswered: [Option<Transaction>; WORKERS],
    /// Whose each partition is, as the group sees it.
    pub(super) assigned: [Option<usize>; PARTITIONS],
    /// What the group's offsets show.
    pub(super) mirrored: [u8; PARTITIONS],
    pub(super) left: Faults,
    pub(super) seen: Seen,
}

/// What has happened that the rest of the state does not show any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Seen {
    pub(super) an_old_owner_committed: bool,
    pub(super) a_position_went_back: bool,
    /// Records that an operator has left out in some generation: their right to emit is spent.
    pub(super) left_out: [u8; PARTITIONS],
    /// The furthest durable position over all generations.
    pub(super) durable: [u8; PARTITIONS],
}

impl State {
    pub(super) fn is_fenced(&self, worker: usize, partition: usize) -> bool {
        let claim = self.workers[worker].partitions[partition].claim();
        claim.is_some_and(|claim| !claim.newest)
    }

    pub(super) fn transactions(&self) -> impl Iterator<Item = &Transaction> {
        let with_worker = self.workers.iter().map(|worker| &worker.transaction);
        with_worker.chain(&self.unanswered).flatten()
    }

    /// The transactions that are not this worker's open one.
    pub(super) fn others(&self, worker: usize) -> impl Iterator<Item = &Transaction> {
        let workers = self.workers.iter().enumerate();
        let workers = workers.filter(move |(other, _)| *other != worker);
        let with_worker = workers.map(|(_, other)| &other.transaction);
        with_worker.chain(&self.unanswered).flatten()
    }

    pub(super) fn is_locked(&self, generation: u8, partition: usize) -> bool {
        self.transactions()
            .any(|open| open.locks_position(generation, partition))
    }

    /// Batches share the generation lock, an operator has it alone.
    pub(super) fn is_generation_locked(&self) -> bool {
        self.transactions().any(Transaction::is_open)
    }

    /// Another epoch and another token: every claim that anybody remembers is an old one now (I3).
    pub(super) fn fence(&mut self, generation: u8, partition: usize) {
        let remembered = self.workers.iter_mut().flat_map(|worker| {
            let held = match &mut worker.partitions[partition] {
                Knows::Fetching { claim, .. } | Knows::Running { claim, .. } => Some(claim),
                _ => None,
            };
            let used = worker.transaction.as_mut();
            let used = used.and_then(|open| open.parts[partition].as_mut());
            held.into_iter().chain(used.map(|part| &mut part.claim))
        });
        let unanswered = self.unanswered.iter_mut().flatten();
        let unanswered = unanswered.filter_map(|open| open.parts[partition].as_mut());
        for claim in remembered.chain(unanswered.map(|part| &mut part.claim)) {
            claim.newest &= claim.generation != generation;
        }
    }

    /// The positions that no crash takes back.
    pub(super) fn durable(&self) -> &Database {
        self.recoverable.first().unwrap_or(&self.database)
    }

    /// Keeps in mind what the state after a step does not show.
    pub(super) fn watch(&mut self, before: &Self, mirrors: bool) {
        let (old, new) = (before.durable(), self.durable());
        let mut seen = self.seen;
        for partition in 0..PARTITIONS {
            let (old_next, next) = (old.positions[partition].next, new.positions[partition].next);
            seen.a_position_went_back |= old.generation == new.generation && next < old_next;
            if mirrors {
                seen.durable[partition] = seen.durable[partition].max(next);
            }
        }
        self.seen = seen;
    }
}

impl Protocol {
    /// A state in a line.
    pub(super) fn story(&self, state: &State) -> String {
        let database = &state.database;
        let with_records = || (0..PARTITIONS).filter(|p| self.len(*p) > 0);
        let mut story = format!("generation {}", database.generation);
        for p in with_records() {
            let (row, outbox) = (&database.positions[p], &database.outbox[p]);
            let _ = write!(story, ", p{p} next {} emitted {outbox:?}", row.next);
            if self.mirrors {
                let _ = write!(story, " mirrored {}", state.mirrored[p]);
            }
        }
        let _ = write!(story, ", tables {:?}", database.tables);
        for (worker, me) in state.workers.iter().enumerate() {
            for p in with_records() {
                let knows = match me.partitions[p] {
                    Knows::Nothing => "nothing".to_owned(),
                    Knows::Claiming { .. } => "claiming".to_owned(),
                    Knows::Fetching { next, .. } => format!("fetching {next}"),
                    Knows::Running { next, cursor, .. } if next == cursor => {
                        format!("running {next}")
                    }
                    Knows::Running { next, cursor, .. } => {
                        format!("running {next} holding {cursor}")
                    }
                    Knows::Stopped => "stopped".to_owned(),
                };
                let fenced = if state.is_fenced(worker, p) {
                    " fenced"
                } else {
                    ""
                };
                let assigned = if state.assigned[p] == Some(worker) {
                    "*"
                } else {
                    ""
                };
                let _ = write!(story, ", w{worker}p{p}{assigned} {knows}{fenced}");
            }
        }
        story
    }
}
