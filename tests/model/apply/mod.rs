//! Claims, batches and resets: from Kafka's assignment to the commit.
//!
//! ```text
//!  Hear --> Claiming --Claim--> Fetching --Fetch--> Running --Begin--> Begun --Effects--> Applied
//!              ^                                       ^                                     | Advance
//!              +--- Refuse, Look, LoseConnection       +--Answer-- Committed <-- Committing <-- Moved
//! ```
//!
//! | step | stands for |
//! |---|---|
//! | `Assign`, `Hear` | `kafka/member.rs`: the group decides, `Input`s tell the writer |
//! | `Claim` | `runtime/claim.rs`, `position_claim.sql`: one transaction that looks at the generation, and fences |
//! | `Fetch` | `Member::fetch` and its answer: records from exactly the position claimed, if still assigned |
//! | `Look` | `Writer::look` |
//! | `Begin` to `Answer` | `runtime/apply.rs`, with the gate of `admission.rs` and `position_advance.sql` |
//! | `Refuse`, `RollBack`, `LoseConnection` | `writer/failure.rs` |
//! | `Confirm`, `Mirror` | `Writer::confirm`, `position_confirm.sql`; `Group::mirror` |
//! | `Reset` | `runtime/reset.rs`, `position_reset.sql`, `emission_raise.sql` |
//! | `Skip` | `runtime/reposition.rs`, `position_move.sql` |
//!
//! A worker is a process with one writer. The group may take a partition away at any time and gives it to
//! the other worker without waiting: until the first one *hears* of it, it goes on. What is on the server
//! when a connection is lost may commit later. Left out, since it decides nothing about these promises: bad
//! records and halts, the inbox, gate `next`, pausing, lingering, offsets that are no records, topics made anew.

mod actions;
mod database;
mod promises;
mod state;
mod steps;

use database::{Database, PARTITIONS};
use stateright::{Model, Property};

use crate::check::Checkable;
use crate::mistake::Mistake;

pub(crate) use actions::Action;
pub(crate) use promises::{
    ACCOUNTED, APPLIED_ONCE, EMITTED_ONCE, IN_ORDER, MIRROR_SETTLES, MIRRORS_DURABLE, NEWEST_OWNER,
    NO_MESSAGE_LOST, NOTHING_SKIPPED, ONLY_GROWS,
};
pub(crate) use state::State;

use state::{NEW, Seen};

const WORKERS: usize = 2;

/// A record's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) entity: usize,
    pub(crate) sequence: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    None,
    Newest,
}

/// How often something may go wrong, or an operator act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// Kafka gives an assigned partition to the other worker.
    pub(crate) moves: u8,
    pub(crate) crashes: u8,
    pub(crate) lost_connections: u8,
    pub(crate) database_crashes: u8,
    pub(crate) resets: u8,
    pub(crate) skips: u8,
}

pub(crate) const NO_FAULTS: Faults = Faults {
    moves: 0,
    crashes: 0,
    lost_connections: 0,
    database_crashes: 0,
    resets: 0,
    skips: 0,
};

/// The protocol in a small world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    pub(crate) log: [&'static [Event]; PARTITIONS],
    pub(crate) gate: Gate,
    pub(crate) batch_records_max: u8,
    /// Batches commit with `synchronous_commit = off`. Claims and resets never do.
    pub(crate) asynchronous: bool,
    /// Positions are mirrored to Kafka's group.
    pub(crate) mirrors: bool,
    pub(crate) faults: Faults,
    pub(crate) mistakes: &'static [Mistake],
    /// Check this promise only.
    pub(crate) only: Option<&'static str>,
}

impl Protocol {
    /// The same world with mistakes.
    pub(crate) const fn with(self, mistakes: &'static [Mistake]) -> Self {
        Self { mistakes, ..self }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistakes.contains(&mistake)
    }

    fn len(&self, partition: usize) -> u8 {
        u8::try_from(self.log[partition].len()).unwrap()
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // The group has assigned the first partition to the first worker, and told it. Any other beginning is
        // this one with other names, or comes about by a crash.
        let mut workers = [NEW; WORKERS];
        let mut assigned = [None; PARTITIONS];
        for partition in (0..PARTITIONS).filter(|p| self.len(*p) > 0) {
            assigned[partition] = Some(partition);
            workers[partition].told[partition] = true;
        }
        vec![State {
            database: Database::started(),
            recoverable: Vec::new(),
            workers,
            unanswered: [None; WORKERS],
            assigned,
            mirrored: [0; PARTITIONS],
            left: self.faults,
            seen: Seen::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for worker in 0..WORKERS {
            self.worker_actions(worker, state, actions);
            if state.unanswered[worker].is_some() {
                actions.push(Action::CommitLate { worker });
                actions.push(Action::RollBackLate { worker });
            }
        }
        self.faults(state, actions);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        self.step(&mut state, action)?;
        state.watch(before, self.mirrors);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut promises = promises::all();
        promises.retain(|promise| self.only.is_none_or(|only| only == promise.name));
        promises
    }
}

impl Checkable for Protocol {
    fn only(&self, promise: &'static str) -> Self {
        let only = Some(promise);
        Self { only, ..*self }
    }

    fn tell(&self, state: &State) -> String {
        self.story(state)
    }

    fn is_fault(&self, state: &State, action: &Action) -> bool {
        match action {
            Action::Assign { partition, .. } => state.assigned[*partition].is_some(),
            Action::LoseConnection { .. }
            | Action::Crash { .. }
            | Action::CrashDatabase { .. }
            | Action::Reset
            | Action::Skip { .. }
            | Action::RollBack { .. } => true,
            _ => false,
        }
    }

    fn is_done(&self, state: &State) -> bool {
        self.is_all_applied(state)
    }
}
