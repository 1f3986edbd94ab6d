//! The right to emit (`store/emission.rs`, `runtime/rebuild`): one partition, and generations of its projection that are
//! reset, built beside, cut over, given up and taken back, each with a handler of its own that cannot apply some records.
//!
//! ```text
//!  Start --> Building --CutOver--> Live --another's CutOver--> Retired
//!               |  ^                                              |
//!            Abandon +------------------- Rollback ----------------+
//! ```
//!
//! Every step is one transaction, and transactions of one projection come one after the other here: what batches and
//! operators do to each other is for [`apply`](crate::apply).

use std::fmt::Write as _;

use stateright::{Model, Property};

use crate::check::Checkable;
use crate::mistake::Mistake;

pub(crate) const ONCE_OVER_ALL: &str = "over all generations a message is emitted once (I5)";
pub(crate) const NO_RIGHT_LOST: &str =
    "what was passed has emitted, waits with its right, or was given up (I5)";

/// Records of the log.
const RECORDS: u8 = 3;
/// Generations with tables of their own, at most.
const GENERATIONS_MAX: usize = 3;

/// The generations in a small world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    pub(crate) operators: Operators,
    pub(crate) mistakes: &'static [Mistake],
    /// Check this promise only.
    pub(crate) only: Option<&'static str>,
}

/// How often an operator does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Operators {
    pub(crate) resets: u8,
    pub(crate) rebuilds: u8,
    pub(crate) rollbacks: u8,
    pub(crate) discards: u8,
    /// A statement is repaired, and nothing is built anew.
    pub(crate) repairs: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Building,
    Live,
    Retired,
}

/// Records as bits.
type Set = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Generation {
    kind: Kind,
    was_live: bool,
    /// Where it began.
    first: u8,
    next: u8,
    /// What its handler cannot apply.
    cannot: Set,
    /// Its dead letters.
    waiting: Set,
    /// Records whose messages it keeps back.
    held: Set,
}

impl Generation {
    fn new(kind: Kind, cannot: Set, first: u8) -> Self {
        Self {
            kind,
            was_live: kind == Kind::Live,
            first,
            next: first,
            cannot,
            waiting: 0,
            held: 0,
        }
    }
}

/// What is committed at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    generations: Vec<Generation>,
    /// `emission.emitted_through`.
    through: u8,
    unemitted: Set,
    /// How many messages each record has in the outbox.
    emitted: [u8; RECORDS as usize],
    given_up: Set,
    left: Operators,
}

/// One transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Apply { generation: usize },
    Redrive { generation: usize, record: u8 },
    Repair { generation: usize },
    Discard { record: u8 },
    Reset { cannot: Set, to: u8 },
    Start { cannot: Set },
    CutOver,
    Abandon,
    Rollback { generation: usize },
}

/// The records from one up to, without, another.
fn between(from: u8, to: u8) -> Set {
    let below = |record: u8| (1 << record) - 1;
    below(to) & !below(from.min(to))
}

/// Handlers: one that can apply everything, and for each of two records one that cannot apply it.
const HANDLERS: [Set; 3] = [0, 1, 2];

impl Rights {
    pub(crate) fn with(self, mistakes: &'static [Mistake]) -> Self {
        Self { mistakes, ..self }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistakes.contains(&mistake)
    }

    fn apply(&self, state: &mut State, number: usize, record: u8) {
        let bit: Set = 1 << record;
        let generation = &mut state.generations[number];
        let fails = generation.cannot & bit != 0;
        match fails {
            true => generation.waiting |= bit,
            false => generation.waiting &= !bit,
        }
        let had = state.unemitted & bit != 0;
        if generation.kind == Kind::Live {
            let has = had || record >= state.through;
            match fails {
                true if has => state.unemitted |= bit,
                true => {}
                false => {
                    state.unemitted &= !bit;
                    state.emitted[usize::from(record)] += u8::from(has);
                }
            }
        } else if !fails && had {
            generation.held |= bit;
            if self.makes(Mistake::BuildSpends) {
                state.unemitted &= !bit;
            }
        }
    }

    fn cut_over(&self, state: &mut State, building: usize) {
        let live = state.live();
        let next = state.generations[live].next;
        let new = state.generations[building];
        let keeps_right = |record: &u8| state.unemitted & (1 << record) != 0;
        let held = (0..RECORDS).filter(|record| new.held & (1 << record) != 0);
        let held = held.filter(|r| keeps_right(r) || self.makes(Mistake::HeldUnchecked));
        let held: Vec<u8> = match self.makes(Mistake::NothingHeld) {
            true => Vec::new(),
            false => held.collect(),
        };
        for record in held {
            state.emitted[usize::from(record)] += 1;
        }
        state.through = state.through.max(next);
        let passed: Set = between(new.first, new.next);
        let spent = match (
            self.makes(Mistake::NothingSettled),
            self.makes(Mistake::WaitingSettled),
        ) {
            (true, _) => 0,
            (_, true) => passed,
            _ => passed & !new.waiting,
        };
        state.unemitted &= !spent;
        state.generations[live].kind = Kind::Retired;
        let new = &mut state.generations[building];
        (new.kind, new.was_live, new.held) = (Kind::Live, true, 0);
    }
}

impl State {
    fn live(&self) -> usize {
        let is_live = |g: &Generation| g.kind == Kind::Live;
        self.generations.iter().position(is_live).unwrap()
    }

    fn building(&self) -> Option<usize> {
        let is_building = |g: &Generation| g.kind == Kind::Building;
        self.generations.iter().position(is_building)
    }

    /// Whether a record's message is there, or will be.
    fn is_kept(&self, record: u8) -> bool {
        let (bit, live) = (1 << record, &self.generations[self.live()]);
        let has = self.unemitted & bit != 0;
        let is_ahead = record >= live.next && (has || record >= self.through);
        let waits = live.waiting & bit != 0 && has;
        // For a reset that comes back to it.
        let is_left_out = record < live.first && has;
        let is_given_up = self.given_up & bit != 0;
        self.emitted[usize::from(record)] > 0 || is_given_up || is_ahead || waits || is_left_out
    }
}

impl Model for Rights {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let first = |cannot: &Set| State {
            generations: vec![Generation::new(Kind::Live, *cannot, 0)],
            through: 0,
            unemitted: 0,
            emitted: [0; RECORDS as usize],
            given_up: 0,
            left: self.operators,
        };
        HANDLERS.iter().map(first).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (live, building, left) = (state.live(), state.building(), state.left);
        let stands = state.generations[live].next;
        for (generation, of) in state.generations.iter().enumerate() {
            let bound = match of.kind {
                Kind::Live => RECORDS,
                Kind::Building if self.makes(Mistake::BuildPassesLive) => RECORDS,
                Kind::Building => stands,
                Kind::Retired => continue,
            };
            if of.next < bound {
                actions.push(Action::Apply { generation });
            }
            let can = of.waiting & !of.cannot;
            let can = (0..RECORDS).filter(|record| can & (1 << record) != 0);
            actions.extend(can.map(|record| Action::Redrive { generation, record }));
            if left.repairs > 0 && of.cannot != 0 {
                actions.push(Action::Repair { generation });
            }
        }
        if left.discards > 0 {
            let waits = |record: &u8| state.generations[live].waiting & (1 << record) != 0;
            actions.extend(
                (0..RECORDS)
                    .filter(waits)
                    .map(|record| Action::Discard { record }),
            );
        }
        match building {
            Some(building) => {
                let is_level = state.generations[building].next >= stands;
                if is_level || self.makes(Mistake::CutsOverBehind) {
                    actions.push(Action::CutOver);
                }
                actions.push(Action::Abandon);
            }
            None => {
                if left.resets > 0 {
                    for to in 0..=RECORDS {
                        actions.extend(HANDLERS.map(|cannot| Action::Reset { cannot, to }));
                    }
                }
                if left.rebuilds > 0 && state.generations.len() < GENERATIONS_MAX {
                    actions.extend(HANDLERS.map(|cannot| Action::Start { cannot }));
                }
                let retired = |(_, g): &(usize, &Generation)| g.kind == Kind::Retired;
                if left.rollbacks > 0 {
                    let of = state.generations.iter().enumerate().filter(retired);
                    actions.extend(of.map(|(generation, _)| Action::Rollback { generation }));
                }
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let live = state.live();
        match action {
            Action::Apply { generation } => {
                let record = state.generations[generation].next;
                state.generations[generation].next += 1;
                self.apply(&mut state, generation, record);
            }
            Action::Redrive { generation, record } => {
                // Below the position, so nothing but a kept right lets it emit.
                let of = &mut state.generations[generation];
                of.waiting &= !(1 << record);
                let has = state.unemitted & (1 << record) != 0;
                match of.kind {
                    Kind::Live => {
                        state.unemitted &= !(1 << record);
                        state.emitted[usize::from(record)] += u8::from(has);
                    }
                    _ if has => of.held |= 1 << record,
                    _ => {}
                }
            }
            Action::Repair { generation } => {
                state.left.repairs -= 1;
                state.generations[generation].cannot = 0;
            }
            Action::Discard { record } => {
                state.left.discards -= 1;
                state.generations[live].waiting &= !(1 << record);
                state.unemitted &= !(1 << record);
                state.given_up |= 1 << record;
            }
            Action::Reset { cannot, to } => {
                state.left.resets -= 1;
                state.through = state.through.max(state.generations[live].next);
                if !self.makes(Mistake::LeftOutForgotten) {
                    state.unemitted |= between(state.through, to);
                }
                state.generations[live] = Generation::new(Kind::Live, cannot, to);
            }
            Action::Start { cannot } => {
                state.left.rebuilds -= 1;
                let first = state.generations[live].first;
                let new = Generation::new(Kind::Building, cannot, first);
                state.generations.push(new);
            }
            Action::CutOver => {
                let building = state.building()?;
                self.cut_over(&mut state, building);
            }
            Action::Abandon => {
                let building = state.building()?;
                match state.generations[building].was_live {
                    true => state.generations[building].kind = Kind::Retired,
                    false => drop(state.generations.remove(building)),
                }
            }
            Action::Rollback { generation } => {
                state.left.rollbacks -= 1;
                state.generations[generation].kind = Kind::Building;
                // By mistake it goes live as it stands.
                if self.makes(Mistake::RollbackDoesNotCatchUp) {
                    self.cut_over(&mut state, generation);
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all = [
            Property::always(ONCE_OVER_ALL, |_: &Self, state: &State| {
                state.emitted.iter().all(|count| *count <= 1)
            }),
            Property::always(NO_RIGHT_LOST, |_: &Self, state: &State| {
                (0..RECORDS).all(|record| state.is_kept(record))
            }),
        ];
        let asked = |p: &Property<Self>| self.only.is_none_or(|only| only == p.name);
        all.into_iter().filter(asked).collect()
    }
}

impl Checkable for Rights {
    fn only(&self, promise: &'static str) -> Self {
        Self {
            only: Some(promise),
            ..*self
        }
    }

    fn tell(&self, state: &State) -> String {
        let (through, unemitted, emitted) = (state.through, state.unemitted, state.emitted);
        let mut story = format!("emitted {emitted:?} through {through} unemitted {unemitted:03b}");
        for (number, of) in state.generations.iter().enumerate() {
            let Generation {
                kind,
                next,
                cannot,
                waiting,
                held,
                ..
            } = of;
            let _ = write!(
                story,
                ", g{number} {kind:?} next {next} cannot {cannot:03b} waiting {waiting:03b} held {held:03b}"
            );
        }
        story
    }

    fn is_fault(&self, _: &State, action: &Action) -> bool {
        !matches!(
            action,
            Action::Apply { .. } | Action::Redrive { .. } | Action::CutOver
        )
    }

    fn is_done(&self, state: &State) -> bool {
        state.building().is_none() && state.generations[state.live()].next == RECORDS
    }
}
