//! The first start of a projection: schema, tables, generation and all positions in one transaction.
//!
//! Records before where it begins keep their right to emit, as with a reset: no live generation has passed them.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::engine::Class;
use crate::failpoint;
use crate::kafka::{Cluster, ClusterError};
use crate::projection::{Projection, Start};
use crate::store::generation::{self, Made};
use crate::store::schema::{self, Problem};
use crate::store::{self, Offsets, Timeouts, position, transaction};
use crate::types::TopicPartition;

/// Why a projection could not be started for the first time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error(transparent)]
    Schema(#[from] Problem),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Kafka(#[from] ClusterError),
}

impl Error {
    /// Whether starting again may help without anybody changing anything.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Store(error) => error.class() == Class::Transient,
            Self::Kafka(_) => true,
            Self::Schema(_) => false,
        }
    }
}

/// What a generation of this projection is made by.
pub(super) fn made(projection: &Projection) -> Made {
    let hash = |text: &str| Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes()).to_string();
    Made {
        definition: projection.definition(),
        setup: hash(&projection.setup),
        statements: hash(&projection.statements()),
    }
}

/// What of a projection's texts is not what the live generation was made by, though its definition says that its
/// tables can go on: for whoever starts it to be told.
pub(super) async fn changed(
    connection: &mut PgConnection,
    projection: &Projection,
) -> Result<Vec<&'static str>, Error> {
    let Some((live, _)) = store::projection::read_alone(connection, &projection.name).await? else {
        return Ok(Vec::new());
    };
    let made = made(projection);
    let mut changed = Vec::new();
    // A claim says what differs then.
    if live.definition == made.definition {
        if live.setup != made.setup {
            changed.push(SETUP_CHANGED);
        }
        if !live.statements.is_empty() && live.statements != made.statements {
            changed.push(STATEMENTS_CHANGED);
        }
    }
    Ok(changed)
}

const SETUP_CHANGED: &str = "the setup SQL has changed since the tables were made; they stay as they are. If they were not changed by hand to what it makes now: raise `version`, and `tidegate rebuild start` makes new ones beside them";
const STATEMENTS_CHANGED: &str = "statements, columns or seed have changed since the tables were begun; from here on the new ones are applied, and what is in the tables stays. If that is to be made anew: raise `version`, and `tidegate rebuild start` does it beside";

/// Makes the projection if it is not there yet. Says whether it was made.
pub(super) async fn ensure(
    connection: &mut PgConnection,
    cluster: &Cluster,
    projection: &Projection,
    timeouts: &Timeouts,
) -> Result<bool, Error> {
    if store::projection::read_alone(connection, &projection.name)
        .await?
        .is_some()
    {
        return Ok(false);
    }
    // Asked before the transaction: no question to Kafka under a lock.
    let logs = cluster.logs(&projection.topics).await?;
    let starts: Vec<Offsets> = logs
        .into_iter()
        .map(|(partition, log)| {
            let begin = match projection.start {
                Start::Earliest => log.low,
                Start::Latest => log.high,
            };
            left_out(partition, log.low, begin)
        })
        .collect();

    make(connection, projection, &starts, timeouts).await
}

/// What a projection that begins in the middle of a log leaves out of it.
pub(super) fn left_out(partition: TopicPartition, low: i64, begin: i64) -> Offsets {
    Offsets {
        partition,
        incarnation: 1,
        from: low,
        to: begin,
    }
}

/// Makes the projection with positions behind what it leaves out, unless another process was faster.
pub(super) async fn make(
    connection: &mut PgConnection,
    projection: &Projection,
    left_out: &[Offsets],
    timeouts: &Timeouts,
) -> Result<bool, Error> {
    let search_path = transaction::search_path(&projection.name, &projection.search_path);
    let name = format!("tidegate start {}", projection.name);
    transaction::begin(connection, &search_path, &name, timeouts).await?;
    let made = create(connection, projection, left_out).await;
    match &made {
        Ok(true) => {
            failpoint::reach(failpoint::START_BEFORE_COMMIT);
            transaction::commit(connection).await?;
            failpoint::reach(failpoint::START_AFTER_COMMIT);
        }
        _ => transaction::rollback(connection).await?,
    }
    made
}

async fn create(
    connection: &mut PgConnection,
    projection: &Projection,
    left_out: &[Offsets],
) -> Result<bool, Error> {
    let name = &projection.name;
    transaction::lock_generation(connection, name).await?;
    if store::projection::read(connection, name).await?.is_some() {
        return Ok(false); // another process was faster
    }
    let (setup, seed) = (&projection.setup, &projection.seed);
    schema::create(connection, name, setup, seed, projection.role.as_deref()).await?;
    if let Some(gate_in) = &projection.gate_in {
        gate_in.is_held(connection, name).await?;
    }
    store::projection::insert(connection, name).await?;
    let number = generation::insert(connection, name, true, name, &made(projection)).await?;
    let start = |it: &Offsets| (it.partition.clone(), it.to);
    let starts: Vec<_> = left_out.iter().map(start).collect();
    position::insert(connection, name, number, &starts).await?;
    store::leave_out_rights_to_emit(connection, name, left_out).await?; // I5
    Ok(true)
}
