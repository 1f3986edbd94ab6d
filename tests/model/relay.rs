//! The relay (`relay/mod.rs`): one stream of the outbox, two relays that take its lease from each other,
//! and a database whose batches commit asynchronously, so that what is visible may be taken back.
//!
//! ```text
//!  without a lease --Take--> Idle --Read--> Read --Barrier--> Sending --Land, Acknowledge, ..--> Idle
//! ```
//!
//! A lease runs out whenever it likes. What a lost session has handed to its producer may land later, in
//! order, or not at all. Taken for granted: the idempotent producer keeps the order of what it was given, and
//! stops at a message that the broker has refused (`enable.gapless.guarantee`).

use stateright::{Model, Property};

use crate::check::Checkable;
use crate::mistake::Mistake;

pub(crate) const NEVER_TAKEN_BACK: &str =
    "nothing is sent that a crash of the database could take back (I9)";
pub(crate) const NONE_PASSED_OVER: &str = "below the cursor every message was sent (I9)";
pub(crate) const SENT_IN_ORDER: &str = "messages are sent in order, but for repeats (I9)";

const RELAYS: usize = 2;
/// Messages of one window.
const WINDOW: usize = 2;

/// The relays in a small world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relays {
    /// Messages that batches put in the outbox.
    pub(crate) messages: u8,
    pub(crate) faults: Faults,
    pub(crate) mistakes: &'static [Mistake],
    /// Check this promise only.
    pub(crate) only: Option<&'static str>,
}

/// How often something may go wrong, apart from leases that run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// A relay loses its session: its connection, its process.
    pub(crate) lost_sessions: u8,
    pub(crate) database_crashes: u8,
    /// The broker refuses a message.
    pub(crate) refusals: u8,
}

/// A row of the outbox. Every write is another message: what is written after a crash need not be what was
/// there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Row {
    number: u8,
    message: u8,
}

/// What is committed, and so visible. The lease epoch is kept as [`Lease::newest`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Database {
    rows: Vec<Row>,
    sent_through: u8,
}

/// A relay's lease. Epochs are compared for equality only and change in a synchronous commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lease {
    newest: bool,
    /// The cursor in memory.
    sent_through: u8,
    doing: Doing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Idle,
    /// By mistake: the barrier was before the read.
    Barred,
    /// The transaction that has read these is open.
    Read(Vec<Row>),
    /// Handed to the producer: so many have landed, so many of them are acknowledged.
    Sending {
        rows: Vec<Row>,
        landed: usize,
        acknowledged: usize,
    },
}

/// Postgres, Kafka and the relays at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    database: Database,
    /// What a crash may leave instead, oldest first. Empty if all is durable.
    recoverable: Vec<Database>,
    relays: [Option<Lease>; RELAYS],
    /// What a lost session's producer has under way.
    under_way: [Vec<Row>; RELAYS],
    /// The topic, without repeats.
    topic: Vec<u8>,
    written: u8,
    left: Faults,
    sent_what_may_go: bool,
}

/// One step of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A batch commits with a message.
    Write,
    Take {
        relay: usize,
    },
    Read {
        relay: usize,
    },
    Barrier {
        relay: usize,
    },
    /// A barrier without a read: it stores the cursor and renews the lease.
    Renew {
        relay: usize,
    },
    /// The broker has the next message.
    Land {
        relay: usize,
    },
    Acknowledge {
        relay: usize,
    },
    Refuse {
        relay: usize,
    },
    /// What was under way when a session was lost.
    LandLate {
        relay: usize,
    },
    NeverLand {
        relay: usize,
    },
    LoseSession {
        relay: usize,
    },
    /// Postgres crashes and comes back as it was so many commits ago.
    CrashDatabase {
        back: usize,
    },
}

impl Relays {
    /// The same world with mistakes.
    pub(crate) const fn with(self, mistakes: &'static [Mistake]) -> Self {
        Self { mistakes, ..self }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistakes.contains(&mistake)
    }

    fn read(&self, database: &Database, lease: &Lease) -> Vec<Row> {
        let behind = |row: &&Row| row.number > lease.sent_through;
        let rows = database.rows.iter().filter(behind);
        rows.take(WINDOW).copied().collect()
    }

    /// The relay's write. Whether it has touched the row, and so made everything visible durable.
    fn write_row(&self, state: &mut State, relay: usize) -> bool {
        let Some(lease) = &state.relays[relay] else {
            return false;
        };
        let touches = lease.newest || self.makes(Mistake::CursorWithoutLease);
        if touches {
            let stored = &mut state.database.sent_through;
            *stored = lease.sent_through.max(*stored);
            state.recoverable.clear(); // synchronous
        }
        touches
    }

    fn barrier(&self, state: &mut State, relay: usize) -> Option<()> {
        let touched = self.makes(Mistake::NoBarrier) || self.write_row(state, relay);
        if !touched && !self.makes(Mistake::BarrierTouchesNothing) {
            state.relays[relay] = None; // lost to another relay: what was read is not sent
            return Some(());
        }
        let lease = state.relays[relay].as_mut()?;
        lease.doing = match std::mem::replace(&mut lease.doing, Doing::Idle) {
            Doing::Read(rows) => self.sending(lease, rows),
            _ => Doing::Barred,
        };
        Some(())
    }

    fn sending(&self, lease: &mut Lease, rows: Vec<Row>) -> Doing {
        if self.makes(Mistake::CursorBeforeAnswer) {
            let last = rows.last().map(|row| row.number);
            lease.sent_through = last.unwrap_or(lease.sent_through);
        }
        Doing::Sending {
            rows,
            landed: 0,
            acknowledged: 0,
        }
    }

    fn lose_session(&self, state: &mut State, relay: usize) {
        let doing = state.relays[relay].take().map(|lease| lease.doing);
        if let Some(Doing::Sending { rows, landed, .. }) = doing {
            state.under_way[relay] = rows[landed..].to_vec();
        }
    }

    fn crash_database(&self, state: &mut State, back: usize) {
        let version = state.recoverable.len() - back;
        if back > 0 {
            state.database = state.recoverable[version].clone();
        }
        state.recoverable.clear();
        for relay in 0..RELAYS {
            let lease = state.relays[relay].as_ref();
            let read = lease.is_some_and(|lease| matches!(lease.doing, Doing::Read(_)));
            // On another connection the barrier does not notice that the one which has read is gone.
            if !(read && self.makes(Mistake::BarrierElsewhere)) {
                self.lose_session(state, relay);
            }
        }
    }

    fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Write => {
                state.recoverable.push(state.database.clone());
                if state.left.database_crashes == 0 {
                    state.recoverable.clear();
                }
                state.written += 1;
                let number = u8::try_from(state.database.rows.len()).ok()? + 1;
                let message = state.written;
                state.database.rows.push(Row { number, message });
            }
            Action::Take { relay } => {
                for lease in state.relays.iter_mut().flatten() {
                    lease.newest = false;
                }
                state.relays[relay] = Some(Lease {
                    newest: true,
                    sent_through: state.database.sent_through,
                    doing: Doing::Idle,
                });
                state.recoverable.clear(); // synchronous
            }
            Action::Read { relay } => {
                let lease = state.relays[relay].as_mut()?;
                let rows = self.read(&state.database, lease);
                lease.doing = match lease.doing {
                    Doing::Barred => self.sending(lease, rows),
                    _ => Doing::Read(rows),
                };
            }
            Action::Barrier { relay } => self.barrier(state, relay)?,
            Action::Renew { relay } => {
                if !self.write_row(state, relay) {
                    self.lose_session(state, relay);
                }
            }
            Action::Land { relay } => {
                let lease = state.relays[relay].as_mut()?;
                let Doing::Sending { rows, landed, .. } = &mut lease.doing else {
                    return None;
                };
                let row = rows[*landed];
                *landed += 1;
                state.land(row);
            }
            Action::Acknowledge { relay } => {
                let lease = state.relays[relay].as_mut()?;
                let Doing::Sending {
                    rows, acknowledged, ..
                } = &mut lease.doing
                else {
                    return None;
                };
                lease.sent_through = lease.sent_through.max(rows[*acknowledged].number);
                *acknowledged += 1;
                if *acknowledged == rows.len() {
                    lease.doing = Doing::Idle;
                }
            }
            Action::Refuse { relay } => {
                state.left.refusals -= 1;
                let lease = state.relays[relay].as_mut()?;
                let Doing::Sending {
                    rows,
                    landed,
                    acknowledged,
                } = &mut lease.doing
                else {
                    return None;
                };
                if self.makes(Mistake::GoesOnBehindAFailure) {
                    rows.remove(*landed);
                } else {
                    rows.truncate(*landed); // it and all behind it are read again
                }
                if *acknowledged == rows.len() {
                    lease.doing = Doing::Idle;
                }
            }
            Action::LandLate { relay } => {
                let row = state.under_way[relay].remove(0);
                state.land(row);
            }
            Action::NeverLand { relay } => state.under_way[relay].clear(),
            Action::LoseSession { relay } => {
                state.left.lost_sessions -= 1;
                self.lose_session(state, relay);
            }
            Action::CrashDatabase { back } => {
                state.left.database_crashes -= 1;
                self.crash_database(state, back);
            }
        }
        Some(())
    }

    fn relay_actions(&self, relay: usize, state: &State, actions: &mut Vec<Action>) {
        if !state.under_way[relay].is_empty() {
            actions.push(Action::LandLate { relay });
            actions.push(Action::NeverLand { relay });
        }
        let Some(lease) = &state.relays[relay] else {
            actions.push(Action::Take { relay });
            return;
        };
        let free = state.under_way[relay].is_empty();
        if free && state.left.lost_sessions > 0 {
            actions.push(Action::LoseSession { relay });
        }
        let any = !self.read(&state.database, lease).is_empty();
        match &lease.doing {
            Doing::Idle if self.makes(Mistake::ReadsAfterBarrier) => {
                actions.push(Action::Barrier { relay });
            }
            Doing::Idle | Doing::Barred => {
                if any {
                    actions.push(Action::Read { relay });
                }
            }
            Doing::Read(_) => actions.push(Action::Barrier { relay }),
            Doing::Sending {
                rows,
                landed,
                acknowledged,
            } => {
                if *landed < rows.len() {
                    actions.push(Action::Land { relay });
                    if state.left.refusals > 0 {
                        actions.push(Action::Refuse { relay });
                    }
                }
                if acknowledged < landed {
                    actions.push(Action::Acknowledge { relay });
                }
            }
        }
        let changes = !lease.newest || lease.sent_through > state.database.sent_through;
        if changes && free && !matches!(lease.doing, Doing::Read(_)) {
            actions.push(Action::Renew { relay });
        }
    }
}

impl State {
    fn land(&mut self, row: Row) {
        let durable = self.recoverable.first().unwrap_or(&self.database);
        self.sent_what_may_go |= !durable.rows.contains(&row);
        if !self.topic.contains(&row.message) {
            self.topic.push(row.message);
        }
    }
}

impl Model for Relays {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            database: Database {
                rows: Vec::new(),
                sent_through: 0,
            },
            recoverable: Vec::new(),
            relays: [None, None],
            under_way: [Vec::new(), Vec::new()],
            topic: Vec::new(),
            written: 0,
            left: self.faults,
            sent_what_may_go: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.written < self.messages {
            actions.push(Action::Write);
        }
        for relay in 0..RELAYS {
            self.relay_actions(relay, state, actions);
        }
        let free = state.under_way.iter().all(Vec::is_empty);
        if free && state.left.database_crashes > 0 {
            for back in 0..=state.recoverable.len() {
                actions.push(Action::CrashDatabase { back });
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        self.step(&mut state, action)?;
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut promises = vec![
            Property::always(NEVER_TAKEN_BACK, |_, state: &State| !state.sent_what_may_go),
            Property::always(NONE_PASSED_OVER, |_, state: &State| {
                let through = usize::from(state.database.sent_through);
                let below = state.database.rows.get(..through);
                below.is_some_and(|rows| rows.iter().all(|row| state.topic.contains(&row.message)))
            }),
            Property::always(SENT_IN_ORDER, |_, state: &State| state.topic.is_sorted()),
        ];
        promises.retain(|promise| self.only.is_none_or(|only| only == promise.name));
        promises
    }
}

impl Checkable for Relays {
    fn only(&self, promise: &'static str) -> Self {
        let only = Some(promise);
        Self { only, ..*self }
    }

    fn tell(&self, state: &State) -> String {
        let messages = |rows: &[Row]| rows.iter().map(|row| row.message).collect::<Vec<_>>();
        let durable = state.recoverable.first().unwrap_or(&state.database);
        format!(
            "outbox {:?}, of which durable {:?}; cursor {}; topic {:?}; relays {:?}",
            messages(&state.database.rows),
            messages(&durable.rows),
            state.database.sent_through,
            state.topic,
            state.relays,
        )
    }

    fn is_fault(&self, _: &State, action: &Action) -> bool {
        matches!(
            action,
            Action::LoseSession { .. } | Action::CrashDatabase { .. } | Action::Refuse { .. }
        )
    }

    fn is_done(&self, state: &State) -> bool {
        let through = usize::from(state.database.sent_through);
        state.written == self.messages && through == state.database.rows.len()
    }
}
