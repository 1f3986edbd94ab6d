//! Removes sent messages that were kept for long enough.
//!
//! The relay that has a stream does it for that stream, on a connection of its own and in small pieces. Nothing
//! depends on that: a message goes only if the stored cursor has passed it and it is not in quarantine.

use std::time::Duration;

use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::store::{self, Database, outbox_retention, transaction};

/// How often to look, if messages are kept for longer than this.
const EVERY: Duration = Duration::from_secs(60);
/// Messages of one piece.
const PIECE: i64 = 1_000;

/// What it works with.
pub(crate) struct Retention {
    pub(crate) database: Database,
    /// How long sent messages are kept.
    pub(crate) keep: Duration,
    /// The relay's name.
    pub(crate) owner: String,
    pub(crate) stop: CancellationToken,
}

impl Retention {
    /// Looks again and again, until told to stop.
    pub(crate) async fn run(self) {
        let every = self.keep.clamp(Duration::from_secs(1), EVERY);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
            let round = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                round = self.round() => round,
            };
            if let Err(error) = round {
                warn!(%error, "sent messages were not removed; trying again later");
            }
        }
    }

    /// Removes all there is to remove.
    async fn round(&self) -> Result<(), store::Error> {
        let name = format!("tidegate {} outbox retention", self.owner);
        let mut connection = self.database.connect(&name).await?;
        let limit = self.database.timeouts.transaction();
        let asked = outbox_retention::removable(&mut connection, &self.owner, self.keep);
        let streams = store::within("removing sent messages", limit, asked).await?;
        for stream in streams {
            loop {
                let piece = self.piece(&mut connection, &name, &stream);
                let (removed, more) = store::within("removing sent messages", limit, piece).await?;
                if removed > 0 {
                    debug!(stream, removed, "removed sent messages");
                }
                if !more {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn piece(
        &self,
        connection: &mut PgConnection,
        name: &str,
        stream: &str,
    ) -> Result<(u64, bool), store::Error> {
        let timeouts = &self.database.timeouts;
        transaction::begin(connection, transaction::OWN_SEARCH_PATH, name, timeouts).await?;
        let removed = outbox_retention::remove(connection, stream, self.keep, PIECE).await?;
        transaction::commit(connection).await?;
        Ok(removed)
    }
}
