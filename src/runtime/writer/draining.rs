//! Gate `next`: once a missing event has come, what waited for it is applied.

use std::time::{Duration, Instant};

use tracing::{debug, info};

use super::{Work, Writer};
use crate::projection::Gate;
use crate::runtime::redrive::{self, LETTERS_MAX, Queue, RedriveError, Redriver};
use crate::store;

/// How often to look for entities whose turn has come: a process may have ended before it could drain them,
/// or an operator has let them go on.
const DRAIN_EVERY: Duration = Duration::from_secs(5);

impl Writer {
    fn redriver(&self, letters_max: usize) -> Redriver<'_> {
        Redriver {
            projection: &self.projection,
            role: self.role,
            decoder: &self.decoder,
            timeouts: self.database.timeouts,
            owner: &self.owner,
            secrets: &self.secrets,
            letters_max,
        }
    }

    /// Applies what waits of these entities, as far as it goes.
    pub(super) async fn drain(&self, work: &mut Work, mut entities: Vec<String>) {
        let Some(connection) = &mut work.connection else {
            return;
        };
        let projection = &self.projection.name;
        entities.sort_unstable();
        entities.dedup();
        let redriver = self.redriver(work.letters_max);
        match redriver
            .redrive(connection, &Queue::Entities(entities))
            .await
        {
            Ok(redriven) => {
                work.letters_max = LETTERS_MAX.min(work.letters_max.saturating_mul(2));
                if redriven.messages > 0 {
                    self.outbox.notify_one();
                }
                debug!(projection, ?redriven, "drained");
            }
            Err(RedriveError::Store(error)) => {
                if matches!(error, store::Error::Deadline(..)) {
                    work.letters_max = redrive::fewer(work.letters_max);
                }
                self.store_failed(work, &error);
            }
            // It is tried again at the next look.
            Err(error) => info!(projection, %error, "what waits could not be drained"),
        }
    }

    /// Looks for entities whose turn has come without anybody here having noticed.
    pub(super) async fn drain_due(&self, work: &mut Work) {
        let is_next = matches!(self.projection.gate, Gate::Next { .. });
        if !is_next || work.drained.elapsed() < DRAIN_EVERY {
            return;
        }
        work.drained = Instant::now();
        let (Some(connection), Some(generation)) = (&mut work.connection, &work.generation) else {
            return;
        };
        let timeouts = &self.database.timeouts;
        let due = redrive::drainable(connection, &self.projection, generation, timeouts);
        match store::within("looking for what waits", timeouts.transaction(), due).await {
            Ok(due) if due.is_empty() => {}
            Ok(due) => self.drain(work, due).await,
            Err(error) => self.store_failed(work, &error),
        }
    }
}
