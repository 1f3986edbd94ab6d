//! A static member that ended amid a rebalance leaves partitions that nobody attends to.
//!
//! A cooperative rebalance has two halves: what one member gives up goes to another only when the first one has
//! joined again. If that one is killed in between and comes back with its id, the brokers give it what it was
//! to keep and see no reason for the second half. So a static member that has come looks once whether every
//! partition has an owner, and joins anew if not.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{debug, warn};

use crate::kafka::Member;
use crate::store::{self, Database, position, transaction};

/// Enough for the other half of an ordinary rebalance.
const LOOK_AFTER: Duration = Duration::from_secs(10);

/// Looks once after the start.
pub(super) async fn look(database: &Database, projection: &str, member: &Member) -> Infallible {
    loop {
        sleep(LOOK_AFTER).await;
        match unattended(database, projection).await {
            Ok(0) => break,
            Ok(partitions) => {
                warn!(
                    projection,
                    partitions,
                    "partitions have no owner, perhaps since a rebalance that a process did not survive; joining the group anew"
                );
                member.join_anew();
                break;
            }
            Err(error) => {
                debug!(projection, %error, "not known whether every partition has an owner");
            }
        }
    }
    pending().await
}

async fn unattended(database: &Database, projection: &str) -> Result<usize, store::Error> {
    let mut connection = database.connect("tidegate attendance").await?;
    transaction::begin_alone(&mut connection).await?;
    let rows = position::status(&mut connection).await;
    let rows = transaction::end_alone(&mut connection, rows)
        .await?
        .into_iter();
    let mine = rows.filter(|row| row.projection == projection && row.desired_state == "running");
    Ok(mine.filter(|row| !row.connected).count())
}
