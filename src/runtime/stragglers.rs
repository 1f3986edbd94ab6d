//! Ends transactions that stand in the way: those of a worker that stopped in the middle.
//!
//! A worker that was stopped between two statements holds row locks until the server's
//! `idle_in_transaction_session_timeout` ends it. Its successor need not wait that long: what blocks it
//! now is asked for, never remembered, and only a transaction of ours that is idle and out of date is
//! ended. Nothing depends on it: not being allowed to is no failure.

use std::time::Duration;

use sqlx::PgConnection;
use tracing::{debug, warn};

use crate::store::{self, Database, blocking};
use crate::telemetry;

/// How long to wait before looking at what blocks, and how long a straggler must have been idle.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a look may take.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// Awaits `work`, which waits for locks of others, and ends stragglers that hold them.
pub(super) async fn ending_stragglers<T>(
    database: &Database,
    owner: &str,
    projection: &str,
    work: impl Future<Output = T>,
) -> T {
    tokio::pin!(work);
    let mut connection: Option<PgConnection> = None;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(PATIENCE) => {}
        }
        // Short, and not cut off by what it sets free: who was ended is to be told.
        let look = end(database, &mut connection, owner, projection);
        match store::within("ending stragglers", LOOK_MAX, look).await {
            Ok(ended) => {
                for straggler in ended {
                    telemetry::straggler_ended(projection);
                    warn!(
                        projection,
                        straggler, "ended a transaction that held locks and did nothing"
                    );
                }
            }
            Err(error) => {
                debug!(projection, %error, "what blocks us could not be asked");
                connection = None;
            }
        }
    }
}

async fn end(
    database: &Database,
    connection: &mut Option<PgConnection>,
    owner: &str,
    projection: &str,
) -> Result<Vec<String>, store::Error> {
    if connection.is_none() {
        *connection = Some(database.connect(&format!("tidegate {owner} watch")).await?);
    }
    let Some(connection) = connection else {
        return Ok(Vec::new());
    };
    blocking::end_stragglers(connection, owner, projection, PATIENCE).await
}
