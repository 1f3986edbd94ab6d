//! Removes what is kept for a time only.
//!
//! In small pieces, so that no lock and no transaction lasts; every process does it, and they leave each other's pieces
//! alone. A history says itself how long it is kept, in its rows, so it goes whatever this process is configured to do.

use std::time::Duration;

use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::store::{self, Database, dead_letter, history, transaction};

/// How often to look.
const EVERY: Duration = Duration::from_secs(60);
/// Rows of one piece.
const PIECE: i64 = 1_000;

/// What it works with.
pub(super) struct Housekeeping {
    pub(super) database: Database,
    /// How long the bytes of resolved dead letters are kept.
    pub(super) keep_letters: Duration,
    pub(super) owner: String,
    pub(super) stop: CancellationToken,
}

impl Housekeeping {
    /// Looks again and again, until told to stop.
    pub(super) async fn run(self) {
        loop {
            let round = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                round = self.round() => round,
            };
            if let Err(error) = round {
                warn!(%error, "what is too old was not removed; trying again later");
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    /// Removes all there is to remove. Its connection is given up: a minute is long.
    async fn round(&self) -> Result<(), store::Error> {
        let name = format!("tidegate {} housekeeping", self.owner);
        let mut connection = self.database.connect(&name).await?;
        loop {
            let limit = self.database.timeouts.transaction();
            let piece = self.piece(&mut connection, &name);
            let removed = store::within("removing what is too old", limit, piece).await?;
            if removed > 0 {
                debug!(removed, "removed what was too old");
            }
            if removed < PIECE.unsigned_abs() {
                return Ok(());
            }
        }
    }

    async fn piece(&self, connection: &mut PgConnection, name: &str) -> Result<u64, store::Error> {
        let timeouts = &self.database.timeouts;
        transaction::begin(connection, transaction::OWN_SEARCH_PATH, name, timeouts).await?;
        let removed = history::prune(connection, PIECE).await?;
        let cleared = dead_letter::clear(connection, self.keep_letters, PIECE).await?;
        transaction::commit(connection).await?;
        Ok(removed.max(cleared))
    }
}
