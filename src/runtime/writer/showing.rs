//! Says what a writer does, for the board. Nothing is decided here.

use super::{State, Work, Writer};
use crate::health::{Doing, Share};
use crate::runtime::claim::Waits;

impl Writer {
    /// After each step, and before the writer sleeps.
    pub(super) fn show(&self, work: &Work) {
        let shares = work.partitions.iter().map(|(partition, state)| {
            let (doing, cause) = match state {
                State::Claiming {
                    waits: Some(Waits::Paused),
                    ..
                } => (Doing::Paused, ""),
                State::Claiming {
                    waits: Some(waits), ..
                } => (Doing::Waiting, waits.name()),
                State::Claiming { .. } | State::Fetching { .. } if work.failures > 0 => {
                    (Doing::Retrying, &*work.trouble)
                }
                State::Claiming { .. } | State::Fetching { .. } => (Doing::Claiming, ""),
                // What is held is what has failed.
                State::Running(running)
                    if running.retries > 0 || (work.failures > 0 && !running.held.is_empty()) =>
                {
                    (Doing::Retrying, &*work.trouble)
                }
                State::Running(_) => (Doing::Running, ""),
                State::Halted { doing, why, .. } => (*doing, &**why),
            };
            let (next, applied_time) = match state {
                State::Running(running) => (Some(running.next), running.applied_time),
                State::Fetching { claimed, .. } => (Some(claimed.next), None),
                State::Claiming { .. } | State::Halted { .. } => (None, None),
            };
            Share {
                partition,
                doing,
                cause,
                next: next.map(|next| next.get()),
                applied_time,
            }
        });
        self.board.show(&self.projection.name, shares);
    }
}
