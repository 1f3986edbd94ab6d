//! The first start of a projection: schema, tables, generation and all positions in one transaction.

use sqlx::PgConnection;

use crate::failpoint;
use crate::kafka::{Cluster, ClusterError};
use crate::projection::{Projection, Start};
use crate::store::schema::{self, Problem};
use crate::store::{self, Timeouts, position, transaction};
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

/// What identifies the SQL that made the tables.
pub(super) fn setup_hash(projection: &Projection) -> String {
    uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, projection.setup.as_bytes()).to_string()
}

/// Makes the projection if it is not there yet. Says whether it was made.
pub(super) async fn ensure(
    connection: &mut PgConnection,
    cluster: &Cluster,
    projection: &Projection,
    timeouts: &Timeouts,
) -> Result<bool, Error> {
    if store::projection::read(connection, &projection.name)
        .await?
        .is_some()
    {
        return Ok(false);
    }
    // Asked before the transaction: no question to Kafka under a lock.
    let logs = cluster.logs(&projection.topics).await?;
    let starts: Vec<(TopicPartition, i64)> = logs
        .into_iter()
        .map(|(partition, log)| match projection.start {
            Start::Earliest => (partition, log.low),
            Start::Latest => (partition, log.high),
        })
        .collect();

    make(connection, projection, &starts, timeouts).await
}

/// Makes the projection with these positions, unless another process was faster.
pub(super) async fn make(
    connection: &mut PgConnection,
    projection: &Projection,
    starts: &[(TopicPartition, i64)],
    timeouts: &Timeouts,
) -> Result<bool, Error> {
    let search_path = transaction::search_path(&projection.name, &projection.search_path);
    let name = format!("tidegate start {}", projection.name);
    transaction::begin(connection, &search_path, &name, timeouts).await?;
    let made = create(connection, projection, starts).await;
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
    starts: &[(TopicPartition, i64)],
) -> Result<bool, Error> {
    let name = &projection.name;
    transaction::lock_generation(connection, name).await?;
    if store::projection::read(connection, name).await?.is_some() {
        return Ok(false); // another process was faster
    }
    schema::create(connection, name, &projection.setup, &projection.seed).await?;
    let (definition, setup) = (projection.definition(), setup_hash(projection));
    store::projection::insert(connection, name).await?;
    store::projection::insert_generation(connection, name, 1, name, &definition, &setup).await?;
    position::insert(connection, name, 1, starts).await?;
    Ok(true)
}
