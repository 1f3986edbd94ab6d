//! Who may do what next.

use super::database::{PARTITIONS, Step, Transaction};
use super::state::{Knows, State};
use super::{Protocol, WORKERS};
use crate::mistake::Mistake;

/// One step of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The group gives a partition to a worker, from the other one if that has it.
    Assign {
        partition: usize,
        to: usize,
    },
    /// The writer takes what the group has told it.
    Hear {
        worker: usize,
        partition: usize,
    },
    Claim {
        worker: usize,
        partition: usize,
    },
    Fetch {
        worker: usize,
        partition: usize,
    },
    /// Looks whether its claim is still the newest, and it is not.
    Look {
        worker: usize,
        partition: usize,
    },
    Begin {
        worker: usize,
        records: [u8; PARTITIONS],
    },
    /// Gate, effects and outbox.
    Effects {
        worker: usize,
    },
    /// The position statement.
    Advance {
        worker: usize,
    },
    /// Its count did not fit.
    Refuse {
        worker: usize,
    },
    /// A deadlock, a timeout, a COMMIT that is answered with an error: rolled back, and again later.
    RollBack {
        worker: usize,
    },
    SendCommit {
        worker: usize,
    },
    Commit {
        worker: usize,
    },
    Answer {
        worker: usize,
    },
    /// A transaction without a worker commits after all.
    CommitLate {
        worker: usize,
    },
    RollBackLate {
        worker: usize,
    },
    /// The poll thread copies to the group what was noted.
    Mirror {
        worker: usize,
        partition: usize,
    },
    /// Positions that were committed asynchronously are written again, synchronously.
    Confirm {
        worker: usize,
    },
    LoseConnection {
        worker: usize,
    },
    Crash {
        worker: usize,
    },
    /// Postgres crashes and comes back as it was so many commits ago.
    CrashDatabase {
        back: usize,
    },
    Reset,
    /// An operator leaves one record out.
    Skip {
        partition: usize,
    },
}

impl Protocol {
    fn begin_actions(&self, worker: usize, state: &State, actions: &mut Vec<Action>) {
        let partitions = &state.workers[worker].partitions;
        let most = |partition: usize| match partitions[partition] {
            Knows::Running { cursor, .. } => {
                (self.len(partition) - cursor).min(self.batch_records_max)
            }
            _ => 0,
        };
        for first in 0..=most(0) {
            for second in 0..=most(1) {
                let generations = [(first, 0), (second, 1)].map(|(count, partition)| {
                    let claim = partitions[partition].claim().filter(|_| count > 0);
                    claim.map(|claim| claim.generation)
                });
                let differ = matches!(generations, [Some(a), Some(b)] if a != b);
                if first + second > 0 && !differ {
                    let records = [first, second];
                    actions.push(Action::Begin { worker, records });
                }
            }
        }
    }

    fn transaction_actions(&self, worker: usize, open: &Transaction, actions: &mut Vec<Action>) {
        match open.step {
            Step::Begun => actions.push(Action::Effects { worker }),
            Step::Applied { .. } => actions.push(Action::Advance { worker }),
            Step::Moved { all, .. } => {
                if all || self.makes(Mistake::CommitsUnseen) {
                    actions.push(Action::SendCommit { worker });
                } else {
                    actions.push(Action::Refuse { worker });
                }
            }
            Step::Committing { .. } => actions.push(Action::Commit { worker }),
            Step::Committed => actions.push(Action::Answer { worker }),
        }
        // Before its first statement it is as good as not begun.
        if !matches!(open.step, Step::Begun | Step::Committed) {
            actions.push(Action::RollBack { worker });
        }
    }

    pub(super) fn worker_actions(&self, worker: usize, state: &State, actions: &mut Vec<Action>) {
        let me = &state.workers[worker];
        for partition in 0..PARTITIONS {
            if me.noted[partition].is_some() {
                actions.push(Action::Mirror { worker, partition });
            }
        }
        if let Some(open) = &me.transaction {
            return self.transaction_actions(worker, open, actions);
        }
        for partition in 0..PARTITIONS {
            if me.told[partition] {
                actions.push(Action::Hear { worker, partition });
            }
            match me.partitions[partition] {
                Knows::Claiming { .. } => actions.push(Action::Claim { worker, partition }),
                Knows::Fetching { .. } => actions.push(Action::Fetch { worker, partition }),
                _ => {}
            }
            if state.is_fenced(worker, partition) {
                actions.push(Action::Look { worker, partition });
            }
        }
        if me.unconfirmed {
            actions.push(Action::Confirm { worker });
        }
        self.begin_actions(worker, state, actions);
    }

    pub(super) fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.left;
        for partition in 0..PARTITIONS {
            for to in 0..WORKERS {
                let may = match state.assigned[partition] {
                    None => self.len(partition) > 0,
                    Some(from) => from != to && left.moves > 0,
                };
                if may {
                    actions.push(Action::Assign { partition, to });
                }
            }
        }
        for (worker, me) in state.workers.iter().enumerate() {
            let uses = me.partitions.iter().any(|p| p.claim().is_some());
            // One transaction without a worker at a time is enough to be in doubt.
            let free = state.unanswered[worker].is_none();
            if uses && free && left.lost_connections > 0 {
                actions.push(Action::LoseConnection { worker });
            }
            if uses && free && left.crashes > 0 {
                actions.push(Action::Crash { worker });
            }
        }
        if left.database_crashes > 0 {
            for back in 0..=state.recoverable.len() {
                actions.push(Action::CrashDatabase { back });
            }
        }
        let begun = state.database.positions.iter().any(|row| row.next > 0);
        if left.resets > 0 && begun {
            actions.push(Action::Reset);
        }
        for (partition, row) in state.database.positions.iter().enumerate() {
            if left.skips > 0 && row.next < self.len(partition) {
                actions.push(Action::Skip { partition });
            }
        }
    }
}
