//! How long each part of the one transaction takes.

use std::time::{Duration, Instant};

/// A part of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Bytes to events.
    Decode,
    /// BEGIN, and the settings that a promise rests on.
    Begin,
    /// Gate and inbox.
    Gate,
    /// The handler, and constraints that speak at its end.
    Handler,
    /// Messages and dead letters.
    Outbox,
    /// The position statement.
    Position,
    Commit,
}

const NAMES: [&str; 7] = [
    "decode", "begin", "gate", "handler", "outbox", "position", "commit",
];

/// What each part of a batch took.
#[derive(Clone, Debug)]
pub(crate) struct Phases {
    last: Instant,
    took: [Duration; NAMES.len()],
}

impl Phases {
    pub(crate) fn begin() -> Self {
        Self {
            last: Instant::now(),
            took: [Duration::ZERO; NAMES.len()],
        }
    }

    /// What has passed since the last end was this part's.
    pub(crate) fn end(&mut self, phase: Phase) {
        let now = Instant::now();
        self.took[phase as usize] += now - self.last;
        self.last = now;
    }

    pub(super) fn took(&self) -> impl Iterator<Item = (&'static str, Duration)> + '_ {
        NAMES.into_iter().zip(self.took)
    }
}
