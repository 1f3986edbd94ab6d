//! The service: a group member and its writers for each projection, and a relay.
//!
//! A stop is a small rebalance: every member leaves its group, which revokes its partitions, which
//! lets its writers finish their batch; then the relay gives its leases up.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::start;
use super::writer::{Limits, Writer};
use crate::codec::Decoder;
use crate::config::Config;
use crate::engine::backoff;
use crate::kafka::{Cluster, ClusterError, Joined, Member, MemberSettings};
use crate::projection::Projection;
use crate::relay::Relay;
use crate::store::migration::{self, State};
use crate::store::{self, Database};

/// Why the service ended, or did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error(
        "no projection is configured; add one to the configuration file, or register one in Rust"
    )]
    NoProjection,
    #[error(
        "the database's tidegate schema is at version {applied}, this binary needs {known}; run `tidegate migrate` first"
    )]
    Behind { applied: i64, known: i64 },
    #[error(
        "the database's tidegate schema is at version {applied}, this binary knows only {known}; use a newer binary"
    )]
    Ahead { applied: i64, known: i64 },
    #[error("projection `{0}` cannot start: {1}")]
    Start(String, start::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("kafka: {0}")]
    Kafka(#[from] rdkafka::error::KafkaError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("the kafka client of projection `{0}` failed for good: {1}")]
    Member(String, rdkafka::error::KafkaError),
    #[error("a task of projection `{0}` panicked; see the log")]
    Panicked(String),
}

impl Error {
    /// Whether starting again may help without anybody changing anything.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Store(error) | Self::Start(_, start::Error::Store(error)) => {
                error.class() == crate::engine::Class::Transient
            }
            Self::Kafka(_)
            | Self::Cluster(_)
            | Self::Member(..)
            | Self::Start(_, start::Error::Kafka(_)) => true,
            _ => false,
        }
    }
}

/// What this process is called in `owner` columns: host, process, and something for two of them that
/// have the same.
pub(crate) fn owner() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_else(|| "host".to_owned());
    let host: String = host.trim().chars().take(24).collect();
    format!("{host}-{}-{:04x}", std::process::id(), fastrand::u16(..))
}

/// A projection's member and the tasks that belong to it.
struct Started {
    name: String,
    member: Member,
    ended: tokio::sync::oneshot::Receiver<Result<(), rdkafka::error::KafkaError>>,
    member_gone: CancellationToken,
    writers: JoinSet<()>,
}

/// Runs projections until `stop`, or until something fails for good.
pub(crate) async fn run(
    config: &Config,
    projections: Vec<Arc<Projection>>,
    stop: CancellationToken,
) -> Result<(), Error> {
    if projections.is_empty() {
        return Err(Error::NoProjection);
    }
    let database = Database::new(&config.postgres_url, config.timeouts)?;
    let cluster = Cluster::new(&config.kafka)?;
    let owner = owner();
    let Some(()) = until_it_works(&stop, || check_version(&database, &owner)).await? else {
        return Ok(());
    };
    let outbox = Arc::new(Notify::new());
    let mut started = Vec::new();
    for projection in &projections {
        let ensure = || ensure(&database, &cluster, projection, &owner);
        let Some(()) = until_it_works(&stop, ensure).await? else {
            break;
        };
        let cluster = cluster.clone();
        started.push(join(
            config, projection, &database, cluster, &owner, &outbox,
        )?);
    }
    let relay_stop = CancellationToken::new();
    let relay = config.relay.enabled.then(|| {
        let relay = Relay {
            database: database.clone(),
            kafka: config.kafka.clone(),
            owner: owner.clone(),
            lease: config.relay.lease,
            wake: Arc::clone(&outbox),
        };
        tokio::spawn(relay.run(relay_stop.clone()))
    });
    info!(
        owner,
        projections = started.len(),
        relay = config.relay.enabled,
        "running"
    );

    let result = wait(&mut started, &stop).await;
    info!("stopping");
    for projection in &started {
        projection.member.stop();
    }
    for mut projection in started {
        if result.is_ok() {
            let _ = (&mut projection.ended).await;
        }
        projection.member_gone.cancel();
        while projection.writers.join_next().await.is_some() {}
    }
    relay_stop.cancel();
    if let Some(relay) = relay {
        let _ = relay.await;
    }
    if result.is_ok() {
        info!("stopped");
    }
    result
}

/// Waits for the stop, or for the first member or writer that fails.
async fn wait(started: &mut [Started], stop: &CancellationToken) -> Result<(), Error> {
    if started.is_empty() {
        return Ok(()); // told to stop before anything began
    }
    let failures = started.iter_mut().map(|projection| {
        Box::pin(async {
            tokio::select! {
                ended = &mut projection.ended => match ended {
                    Ok(Err(error)) => Error::Member(projection.name.clone(), error),
                    _ => Error::Panicked(projection.name.clone()),
                },
                _ = projection.writers.join_next() => Error::Panicked(projection.name.clone()),
            }
        })
    });
    let first = futures_util::future::select_all(failures);
    tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        (failure, ..) = first => {
            error!(error = %failure, "cannot go on");
            Err(failure)
        }
    }
}

fn join(
    config: &Config,
    projection: &Arc<Projection>,
    database: &Database,
    cluster: Cluster,
    owner: &str,
    outbox: &Arc<Notify>,
) -> Result<Started, Error> {
    let name = projection.name.clone();
    let Joined {
        member,
        inputs,
        ended,
    } = Member::join(MemberSettings {
        connection: &config.kafka,
        protocol: config.group_protocol,
        group: format!("{}.{name}", config.group_prefix),
        client_id: format!("tidegate-{owner}"),
        topics: projection.topics.clone(),
        writers: config.apply.writers,
        drain_max: config.apply.drain_max,
    })?;
    let member_gone = CancellationToken::new();
    let decoder = Arc::new(Decoder::new(projection));
    let mut writers = JoinSet::new();
    for inputs in inputs {
        let writer = Writer {
            projection: Arc::clone(projection),
            decoder: Arc::clone(&decoder),
            database: database.clone(),
            cluster: cluster.clone(),
            member: member.clone(),
            limits: Limits {
                batch_records_max: config.apply.batch_records_max,
                batch_linger: config.apply.batch_linger,
            },
            owner: owner.to_owned(),
            outbox: Arc::clone(outbox),
        };
        writers.spawn(writer.run(inputs, member_gone.clone()));
    }
    Ok(Started {
        name,
        member,
        ended,
        member_gone,
        writers,
    })
}

async fn check_version(database: &Database, owner: &str) -> Result<(), Error> {
    let mut connection = database.connect(&format!("tidegate {owner}")).await?;
    match migration::state(&mut connection).await? {
        State::Current => Ok(()),
        State::Behind { applied, known } => Err(Error::Behind { applied, known }),
        State::Ahead { applied, known } => Err(Error::Ahead { applied, known }),
    }
}

async fn ensure(
    database: &Database,
    cluster: &Cluster,
    projection: &Projection,
    owner: &str,
) -> Result<(), Error> {
    let failed = |error| Error::Start(projection.name.clone(), error);
    let connected = database.connect(&format!("tidegate {owner}")).await;
    let mut connection = connected.map_err(|error| failed(error.into()))?;
    let made = start::ensure(&mut connection, cluster, projection, &database.timeouts);
    if made.await.map_err(failed)? {
        info!(
            projection = projection.name,
            definition = projection.definition(),
            "started for the first time"
        );
    }
    Ok(())
}

/// Tries until it works or cannot; an outage at the start is waited for. None when told to stop.
async fn until_it_works<F>(
    stop: &CancellationToken,
    mut attempt: impl FnMut() -> F,
) -> Result<Option<()>, Error>
where
    F: Future<Output = Result<(), Error>>,
{
    let mut failures = 0;
    loop {
        let outcome = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(None),
            outcome = attempt() => outcome,
        };
        match outcome {
            Ok(()) => return Ok(Some(())),
            Err(error) if error.is_temporary() => {
                failures += 1;
                let after =
                    backoff::delay(failures, fastrand::f64()).max(Duration::from_millis(100));
                warn!(%error, failures, "not started yet; trying again");
                tokio::select! {
                    () = stop.cancelled() => return Ok(None),
                    () = tokio::time::sleep(after) => {}
                }
            }
            Err(error) => return Err(error),
        }
    }
}
