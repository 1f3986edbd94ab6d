//! What each step does.

use super::database::{Claim, Database, PARTITIONS, Part, Step, Transaction};
use super::state::{CLAIMING, Knows, NEW, State};
use super::{Action, Protocol, WORKERS};
use crate::mistake::Mistake;

impl Protocol {
    fn claim(&self, state: &mut State, worker: usize, partition: usize) -> Option<()> {
        let Knows::Claiming { kept, read } = state.workers[worker].partitions[partition] else {
            return None;
        };
        let remembered = state.workers[worker].generation;
        let generation = match remembered.filter(|_| self.makes(Mistake::ClaimsFromMemory)) {
            Some(remembered) => remembered,
            None => state.database.generation,
        };
        let row = state.database.positions(generation)[partition].next;
        if self.makes(Mistake::ClaimReadsBeforeItsLock) && read.is_none() {
            let read = Some(row);
            state.workers[worker].partitions[partition] = Knows::Claiming { kept, read };
            return Some(());
        }
        if state.is_locked(generation, partition) {
            return None;
        }
        let next = read.unwrap_or(row);
        state.fence(generation, partition);
        let claim = Claim {
            generation,
            newest: true,
            emitted_through: state.database.emitted_through[partition],
        };
        let me = &mut state.workers[worker];
        me.partitions[partition] = Knows::Fetching { claim, next, kept };
        me.generation = Some(generation);
        self.note(state, worker, partition, next);
        state.recoverable.clear(); // synchronous
        Some(())
    }

    fn note(&self, state: &mut State, worker: usize, partition: usize, next: u8) {
        if self.mirrors {
            state.workers[worker].noted[partition] = Some(next);
        }
    }

    /// After a fence or a refusal.
    fn claims_again(&self) -> Knows {
        match self.makes(Mistake::FencedStops) {
            true => Knows::Stopped,
            false => CLAIMING,
        }
    }

    fn begin(&self, state: &mut State, worker: usize, records: [u8; PARTITIONS]) -> Option<()> {
        let me = state.workers[worker];
        let mut parts = [None; PARTITIONS];
        for (partition, count) in records.into_iter().enumerate() {
            if let Knows::Running {
                claim,
                next,
                cursor,
            } = me.partitions[partition]
                && count > 0
            {
                parts[partition] = Some(Part {
                    claim,
                    from: next,
                    first: cursor,
                    count,
                });
            }
        }
        let batch = Transaction {
            generation: me.generation?,
            parts,
            step: Step::Begun,
        };
        if self.makes(Mistake::PositionFirst) {
            let locked = |(partition, _)| state.is_locked(batch.generation, partition);
            if batch.parts().any(locked) || !self.moves_all(&state.database, &batch) {
                return None;
            }
            let (admitted, _) = self.admit(&state.database, &batch);
            self.in_commit(state, |database| {
                self.move_positions(database, &batch, admitted);
            });
        }
        state.workers[worker].transaction = Some(batch);
        Some(())
    }

    fn effects(&self, state: &mut State, worker: usize) -> Option<()> {
        let mut batch = state.workers[worker].transaction?;
        let waits = state
            .others(worker)
            .any(|other| self.locks_gate_of(other, &batch));
        if waits {
            return None;
        }
        let (admitted, gate) = self.admit(&state.database, &batch);
        if self.makes(Mistake::GateAlone) {
            self.in_commit(state, |database| database.gate = gate);
        }
        batch.step = Step::Applied { admitted };
        state.workers[worker].transaction = Some(batch);
        Some(())
    }

    fn advance(&self, state: &mut State, worker: usize) -> Option<()> {
        let mut batch = state.workers[worker].transaction?;
        let Step::Applied { admitted } = batch.step else {
            return None;
        };
        let generation = batch.generation;
        let waits = batch.parts().any(|(partition, _)| {
            let mut others = state.others(worker);
            others.any(|other| other.locks_position(generation, partition))
        });
        if waits {
            return None;
        }
        let all = self.makes(Mistake::PositionFirst) || self.moves_all(&state.database, &batch);
        batch.step = Step::Moved { admitted, all };
        state.workers[worker].transaction = Some(batch);
        Some(())
    }

    /// Commits, and keeps what a crash could still come back to.
    fn in_commit(&self, state: &mut State, change: impl FnOnce(&mut Database)) {
        if !self.asynchronous || state.left.database_crashes == 0 {
            state.recoverable.clear();
        } else {
            state.recoverable.push(state.database.clone());
        }
        change(&mut state.database);
    }

    fn commit_transaction(&self, state: &mut State, batch: &Transaction) {
        let rows = state.database.positions(batch.generation);
        for (partition, part) in batch.parts() {
            let live = part.claim.generation == state.database.generation;
            state.seen.an_old_owner_committed |= !part.claim.newest || !live;
            let moved = !self.makes(Mistake::PositionFirst);
            state.seen.a_position_went_back |= moved && part.to() < rows[partition].next;
        }
        self.in_commit(state, |database| self.commit(database, batch));
    }

    fn answer(&self, state: &mut State, worker: usize) -> Option<()> {
        let batch = state.workers[worker].transaction.take()?;
        for (partition, part) in batch.parts() {
            if let Knows::Running { next, cursor, .. } =
                &mut state.workers[worker].partitions[partition]
            {
                (*next, *cursor) = (part.to(), part.to());
            }
            // I7: an asynchronous commit may be taken back.
            if !self.asynchronous || self.makes(Mistake::MirrorsWhatIsNotDurable) {
                self.note(state, worker, partition, part.to());
            } else {
                state.workers[worker].unconfirmed = self.mirrors;
            }
        }
        Some(())
    }

    /// What it has written is durable when it has committed, and all that was committed before.
    fn confirm(&self, state: &mut State, worker: usize) -> Option<()> {
        let me = state.workers[worker];
        let claims = me.partitions.iter().enumerate();
        let claims = claims.filter_map(|(p, knows)| Some((p, *knows.claim()?)));
        let generation = claims.clone().next().map(|(_, first)| first.generation);
        let touched = claims.filter(|(_, c)| c.newest && Some(c.generation) == generation);
        let touched: Vec<(usize, Claim)> = touched.collect();
        if touched
            .iter()
            .any(|(p, c)| state.is_locked(c.generation, *p))
        {
            return None;
        }
        if !touched.is_empty() && !self.makes(Mistake::ConfirmsWithoutWriting) {
            state.recoverable.clear(); // synchronous
        }
        for (partition, claim) in touched {
            let next = state.database.positions(claim.generation)[partition].next;
            self.note(state, worker, partition, next);
        }
        state.workers[worker].unconfirmed = false;
        Some(())
    }

    /// The connection is gone, and with it everything that is held.
    fn lose_connection(&self, state: &mut State, worker: usize) {
        let me = &mut state.workers[worker];
        let ended = me.transaction.take();
        let in_doubt = ended.filter(|ended| matches!(ended.step, Step::Committing { .. }));
        if in_doubt.is_some() {
            state.unanswered[worker] = in_doubt;
        }
        let unknown = ended
            .is_some_and(|ended| matches!(ended.step, Step::Committing { .. } | Step::Committed));
        if unknown && self.makes(Mistake::BlindRetry) {
            return;
        }
        for knows in &mut me.partitions {
            let kept = match knows {
                Knows::Running { cursor, .. } if self.makes(Mistake::KeepsRecords) => Some(*cursor),
                _ => None,
            };
            if matches!(knows, Knows::Fetching { .. } | Knows::Running { .. }) {
                *knows = Knows::Claiming { kept, read: None };
            }
        }
    }

    fn crash(&self, state: &mut State, worker: usize) {
        self.lose_connection(state, worker);
        state.workers[worker] = NEW;
        for assigned in &mut state.assigned {
            if *assigned == Some(worker) {
                *assigned = None;
            }
        }
    }

    fn crash_database(&self, state: &mut State, back: usize) {
        let mut versions = std::mem::take(&mut state.recoverable);
        if back > 0 {
            state.database = versions.swap_remove(versions.len() - back);
        }
        for worker in 0..WORKERS {
            self.lose_connection(state, worker);
        }
        state.unanswered = [None; WORKERS];
    }

    fn skip_by_operator(&self, state: &mut State, partition: usize) -> Option<()> {
        if state.is_generation_locked() {
            return None;
        }
        if !self.makes(Mistake::SkipDoesNotFence) {
            state.fence(state.database.generation, partition);
        }
        state.seen.left_out[partition] |= 1 << state.database.positions[partition].next;
        self.skip(&mut state.database, partition);
        state.recoverable.clear(); // synchronous
        Some(())
    }

    fn reset_by_operator(&self, state: &mut State) -> Option<()> {
        if state.is_generation_locked() {
            return None;
        }
        let old = state.database.generation;
        if !self.makes(Mistake::ResetDoesNotFence) {
            (0..PARTITIONS).for_each(|partition| state.fence(old, partition));
        }
        self.reset(&mut state.database);
        state.recoverable.clear(); // synchronous
        Some(())
    }

    /// None if the step must wait for a lock, or cannot be taken.
    pub(super) fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Assign { partition, to } => {
                if let Some(from) = state.assigned[partition] {
                    state.left.moves -= 1;
                    let from = &mut state.workers[from];
                    from.told[partition] = true;
                    // A revoke mirrors what is noted, before the partition is somebody else's.
                    if let Some(noted) = from.noted[partition].take() {
                        state.mirrored[partition] = noted;
                    }
                }
                state.assigned[partition] = Some(to);
                state.workers[to].told[partition] = true;
            }
            Action::Hear { worker, partition } => {
                let mine = state.assigned[partition] == Some(worker);
                let me = &mut state.workers[worker];
                me.told[partition] = false;
                me.partitions[partition] = if mine { CLAIMING } else { Knows::Nothing };
            }
            Action::Claim { worker, partition } => self.claim(state, worker, partition)?,
            Action::Fetch { worker, partition } => {
                let assigned = state.assigned[partition] == Some(worker);
                let knows = &mut state.workers[worker].partitions[partition];
                let Knows::Fetching { claim, next, kept } = *knows else {
                    return None;
                };
                *knows = match assigned {
                    true => Knows::Running {
                        claim,
                        next,
                        cursor: kept.unwrap_or(next),
                    },
                    false => CLAIMING,
                };
            }
            Action::Look { worker, partition } => {
                state.workers[worker].partitions[partition] = self.claims_again();
            }
            Action::Begin { worker, records } => self.begin(state, worker, records)?,
            Action::Effects { worker } => self.effects(state, worker)?,
            Action::Advance { worker } => self.advance(state, worker)?,
            Action::Refuse { worker } => {
                let batch = state.workers[worker].transaction.take()?;
                for (partition, _) in batch.parts() {
                    state.workers[worker].partitions[partition] = self.claims_again();
                }
            }
            Action::RollBack { worker } => state.workers[worker].transaction = None,
            Action::SendCommit { worker } => {
                let batch = state.workers[worker].transaction.as_mut()?;
                if let Step::Moved { admitted, all } = batch.step {
                    batch.step = Step::Committing { admitted, all };
                }
            }
            Action::Commit { worker } => {
                let batch = state.workers[worker].transaction?;
                self.commit_transaction(state, &batch);
                state.workers[worker].transaction.as_mut()?.step = Step::Committed;
            }
            Action::Answer { worker } => self.answer(state, worker)?,
            Action::CommitLate { worker } => {
                let batch = state.unanswered[worker].take()?;
                self.commit_transaction(state, &batch);
            }
            Action::RollBackLate { worker } => state.unanswered[worker] = None,
            Action::Mirror { worker, partition } => {
                let noted = state.workers[worker].noted[partition].take()?;
                let mine = state.assigned[partition] == Some(worker);
                if mine || self.makes(Mistake::MirrorsWhatIsRevoked) {
                    state.mirrored[partition] = noted;
                }
            }
            Action::LoseConnection { worker } => {
                state.left.lost_connections -= 1;
                self.lose_connection(state, worker);
            }
            Action::Crash { worker } => {
                state.left.crashes -= 1;
                self.crash(state, worker);
            }
            Action::CrashDatabase { back } => {
                state.left.database_crashes -= 1;
                self.crash_database(state, back);
            }
            Action::Confirm { worker } => self.confirm(state, worker)?,
            Action::Skip { partition } => {
                state.left.skips -= 1;
                self.skip_by_operator(state, partition)?;
            }
            Action::Reset => {
                state.left.resets -= 1;
                self.reset_by_operator(state)?;
            }
        }
        Some(())
    }
}
