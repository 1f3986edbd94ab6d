//! The service: a group member and its writers for each projection, and a relay.
//!
//! A stop is a small rebalance: every member leaves its group, which revokes its partitions, which
//! lets its writers finish their batch; then the relay gives its leases up.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, info, warn};

use super::claim::{Role, Waits};
use super::housekeeping::Housekeeping;
use super::observer::Observer;
use super::rebuild::{Builds, OutOfGroup};
use super::topic_watch::{self, TopicIds};
use super::writer::{Bounds, Limits, Writer};
use super::{attendance, outgoing, start};
use crate::codec::Decoder;
use crate::config::{Config, Shares};
use crate::engine::redact::Secrets;
use crate::engine::{Class, backoff};
use crate::failpoint;
use crate::health::Board;
use crate::kafka::{
    self, Assignment, Cluster, ClusterError, DatabaseTag, GroupProtocol, Inputs, Joined, Member,
    MemberError, MemberSettings, Neighbours, PREFETCH_MIN,
};
use crate::projection::Projection;
use crate::registry::Registry;
use crate::relay::{Relay, Retention};
use crate::store::migration::{self, State};
use crate::store::{self, Database};

/// A static member that is fenced again so soon after it has joined anew has a rival.
const RIVAL_WITHIN: Duration = Duration::from_secs(60);

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
    Start(String, Box<start::Error>),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("kafka: {0}")]
    Kafka(#[from] KafkaError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("schema registry: {0}")]
    Registry(String),
    #[error("projection `{0}` cannot write its messages: {1}")]
    Outgoing(String, String),
    #[error("projection `{0}` cannot go on: {1}")]
    Member(String, MemberError),
    #[error("the member of projection `{0}` has left its group unasked")]
    Left(String),
    #[error("a task panicked; see the log")]
    Panicked,
}

impl Error {
    /// Whether starting again may help without anybody changing anything.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Start(_, error) => error.is_temporary(),
            Self::Store(error) => error.class() == Class::Transient,
            // Whatever it is, it is the registry's to say, and may be put right there.
            Self::Outgoing(..)
            | Self::Kafka(_)
            | Self::Cluster(_)
            | Self::Member(_, MemberError::Client(_)) => true,
            _ => false,
        }
    }
}

/// What this process is called in `owner` columns: host, process, and something for two of them that
/// have the same.
pub(crate) fn owner() -> String {
    let host = host();
    format!("{host}-{}-{:04x}", std::process::id(), fastrand::u16(..))
}

/// What this machine, or this container, is called; its beginning, where that is long.
pub(crate) fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_else(|| "host".to_owned());
    host.trim().chars().take(24).collect()
}

/// What the tasks of a service share.
pub(super) struct Service {
    pub(super) config: Arc<Config>,
    pub(super) database: Database,
    pub(super) cluster: Cluster,
    pub(super) owner: String,
    /// What of the memory is for what.
    shares: Shares,
    /// What no stored text may show.
    pub(super) secrets: Arc<Secrets>,
    /// For all projections: each schema is asked for once.
    registry: Option<Arc<Registry>>,
    /// None if the database does not say which it is.
    tag: OnceLock<DatabaseTag>,
    /// Rings when a batch has put messages in the outbox.
    outbox: Arc<Notify>,
    /// What everybody here does, for whoever asks.
    pub(super) board: Board,
    /// Cancelled by whoever wants the service to end: a signal, or the first task that cannot go on.
    pub(super) stop: CancellationToken,
}

/// Runs projections until `stop`, or until something fails for good.
pub(crate) async fn run(
    config: Config,
    projections: Vec<Arc<Projection>>,
    board: Board,
    stop: CancellationToken,
) -> Result<(), Error> {
    if projections.is_empty() {
        return Err(Error::NoProjection);
    }
    let service = Arc::new(Service::new(config, projections.len(), board, stop)?);
    let topic = projections.iter().flat_map(|p| p.topics.first()).next();
    let _observing = service.observe(topic.cloned())?;
    let Some(()) = service
        .until_it_works("service", || service.check_version())
        .await?
    else {
        return Ok(());
    };
    info!(
        owner = service.owner,
        projections = projections.len(),
        relay = service.config.relay.enabled,
        "running"
    );
    // What outlives the projections: their last messages are to be sent.
    let helpers_stop = CancellationToken::new();
    let mut helpers = JoinSet::new();
    if service.config.relay.enabled {
        helpers.spawn(service.relay(helpers_stop.clone()).run());
        helpers.spawn(service.retention(helpers_stop.clone()).run());
    }
    helpers.spawn(service.housekeeping(helpers_stop.clone()).run());
    // Each on its own: one whose topic is missing keeps no other waiting.
    let mut tasks = JoinSet::new();
    let (aside, out_of_group) = watch::channel(None);
    let builds = Builds {
        service: Arc::clone(&service),
        projections: projections.clone(),
        aside,
    };
    helpers.spawn(builds.run());
    for projection in projections {
        let (service, mut aside) = (Arc::clone(&service), out_of_group.clone());
        tasks.spawn(async move { service.run_projection(&projection, &mut aside).await });
    }
    let mut result = Ok(());
    while !tasks.is_empty() {
        let ended = tokio::select! {
            Some(ended) = tasks.join_next() => ended.unwrap_or_else(|_| Err(Error::Panicked)),
            Some(ended) = helpers.join_next() => ended.map_err(|_| Error::Panicked),
        };
        if let Err(failure) = ended {
            error!(error = %failure, "cannot go on");
            service.stop.cancel();
            result = result.and(Err(failure));
        }
    }
    failpoint::reach(failpoint::STOP_AFTER_LEAVING);
    helpers_stop.cancel();
    while helpers.join_next().await.is_some() {}
    if result.is_ok() {
        info!("stopped");
    }
    result
}

/// Sends the outbox until `stop`: the relay alone, whatever the configuration says of it.
pub(crate) async fn run_relay(
    config: Config,
    board: Board,
    stop: CancellationToken,
) -> Result<(), Error> {
    let service = Service::new(config, 1, board, stop)?;
    let _observing = service.observe(None)?;
    let Some(()) = service
        .until_it_works("service", || service.check_version())
        .await?
    else {
        return Ok(());
    };
    info!(owner = service.owner, "running the relay");
    let mut tasks = JoinSet::new();
    tasks.spawn(service.relay(service.stop.clone()).run());
    tasks.spawn(service.retention(service.stop.clone()).run());
    let mut result = Ok(());
    while let Some(ended) = tasks.join_next().await {
        if ended.is_err() {
            service.stop.cancel();
            result = Err(Error::Panicked);
        }
    }
    if result.is_ok() {
        info!("stopped");
    }
    result
}

/// Until a process is to stay out of this projection's group.
async fn asked_aside(projection: &str, aside: &mut watch::Receiver<OutOfGroup>) {
    let is_asked = |names: &OutOfGroup| names.as_ref().is_some_and(|n| n.contains_key(projection));
    if aside.wait_for(is_asked).await.is_err() {
        std::future::pending::<()>().await; // told to stop
    }
}

impl Service {
    pub(super) fn new(
        config: Config,
        projections: usize,
        board: Board,
        stop: CancellationToken,
    ) -> Result<Self, Error> {
        let database = Database::new(&config.postgres_url, config.timeouts)?.pooled(config.pooled);
        let registry = config.schema_registry.clone();
        let registry = registry.map(|settings| Registry::new(settings, database.clone()));
        Ok(Self {
            registry: registry.transpose().map_err(Error::Registry)?,
            database,
            cluster: Cluster::new(&config.kafka)?,
            owner: owner(),
            shares: config.memory.shares(projections, config.apply.writers),
            secrets: Arc::new(config.secrets()),
            tag: OnceLock::new(),
            outbox: Arc::new(Notify::new()),
            board,
            stop,
            config: Arc::new(config),
        })
    }

    /// The same for a build beside what this one does: under a name and with a board of its own.
    pub(super) fn beside(&self) -> Self {
        Self {
            config: Arc::clone(&self.config),
            database: self.database.clone(),
            cluster: self.cluster.clone(),
            owner: owner(),
            shares: self.shares,
            secrets: Arc::clone(&self.secrets),
            registry: self.registry.clone(),
            tag: OnceLock::new(),
            outbox: Arc::clone(&self.outbox),
            board: Board::new(true),
            stop: self.stop.child_token(),
        }
    }

    /// Looks at what the board does not know by itself, where somebody can ask, until what is returned is dropped.
    fn observe(&self, topic: Option<String>) -> Result<Option<DropGuard>, Error> {
        if self.config.http.is_none() {
            return Ok(None);
        }
        let stop = CancellationToken::new();
        let observer = Observer {
            database: self.database.clone(),
            cluster: self.cluster.clone(),
            kafka: self.config.kafka.clone(),
            uncommitted: Cluster::reading_uncommitted(&self.config.kafka)?,
            topic,
            owner: self.owner.clone(),
            secrets: Arc::clone(&self.secrets),
            board: self.board.clone(),
            stop: stop.clone(),
        };
        tokio::spawn(observer.run());
        let (board, told) = (self.board.clone(), self.stop.clone());
        tokio::spawn(async move {
            told.cancelled().await;
            board.stopping();
        });
        Ok(Some(stop.drop_guard()))
    }

    fn relay(&self, stop: CancellationToken) -> Relay {
        Relay {
            database: self.database.clone(),
            kafka: self.config.kafka.clone(),
            owner: self.owner.clone(),
            lease: self.config.relay.lease,
            attempts_max: self.config.relay.attempts_max,
            window_bytes: i64::try_from(self.shares.window).unwrap_or(i64::MAX),
            headers: self.config.relay.headers.clone(),
            wake: Arc::clone(&self.outbox),
            stop,
        }
    }

    fn retention(&self, stop: CancellationToken) -> Retention {
        Retention {
            database: self.database.clone(),
            keep: self.config.keep_messages,
            owner: self.owner.clone(),
            stop,
        }
    }

    fn housekeeping(&self, stop: CancellationToken) -> Housekeeping {
        Housekeeping {
            database: self.database.clone(),
            keep_letters: self.config.keep_letters,
            owner: self.owner.clone(),
            stop,
        }
    }

    /// From the first start to the last batch of one projection in this process.
    async fn run_projection(
        &self,
        projection: &Arc<Projection>,
        aside: &mut watch::Receiver<OutOfGroup>,
    ) -> Result<(), Error> {
        let Some(()) = self
            .until_it_works(&projection.name, || self.ensure(projection))
            .await?
        else {
            return Ok(());
        };
        let mut joined_anew: Option<Instant> = None;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                () = self.stay_out(projection, aside) => {}
            }
            let result = self.be_member(projection, aside).await;
            if result.is_ok() && !self.stop.is_cancelled() {
                continue;
            }
            // I10: a static member that is fenced need not have a rival. When its session has ended while the
            // broker was away, librdkafka sends the positions that were to be mirrored as from a member without
            // an id, and the broker takes that for another process in our place. Whoever joins anew finds out: a
            // rival has its place back at once.
            let is_fenced = matches!(
                result,
                Err(Error::Member(_, MemberError::InstanceIdTaken { .. }))
            );
            let again = joined_anew.is_some_and(|joined| joined.elapsed() < RIVAL_WITHIN);
            if !is_fenced || again || self.stop.is_cancelled() {
                return result;
            }
            warn!(
                projection = projection.name,
                "another process may have this one's place in the group; joining anew to find out"
            );
            joined_anew = Some(Instant::now());
        }
    }

    /// Waits outside of the group while the live tables are of another definition than this process has.
    async fn stay_out(&self, projection: &Projection, aside: &mut watch::Receiver<OutOfGroup>) {
        let (name, mut waits) = (&projection.name, false);
        loop {
            let known = aside.borrow_and_update().clone();
            match known.map(|mut names| names.remove(name)) {
                Some(None) => break,
                Some(Some(stored)) if !waits => {
                    waits = true;
                    self.board.out_of_group(name);
                    let mine = projection.definition();
                    let why = Waits::OtherDefinition { stored, mine };
                    warn!(
                        projection = name,
                        "not claimed: {why}. Out of the group until that changes; `tidegate rebuild status` tells more"
                    );
                }
                _ => {}
            }
            if aside.changed().await.is_err() {
                std::future::pending::<()>().await; // told to stop
            }
        }
        self.board.in_group(name);
    }

    /// From joining the group to leaving it; well if that is because the tables for this process' definition are not live.
    async fn be_member(
        &self,
        projection: &Arc<Projection>,
        aside: &mut watch::Receiver<OutOfGroup>,
    ) -> Result<(), Error> {
        let group = self.group(projection);
        let neighbours = Neighbours {
            cluster: &self.cluster,
            group: &group,
            protocol: self.config.group_protocol,
            database: self.tag.get(),
        };
        let refused = |error| Error::Member(projection.name.clone(), error);
        tokio::select! {
            () = self.stop.cancelled() => return Ok(()),
            looked = neighbours.before_joining() => looked.map_err(refused)?,
        }
        let prefetch = tokio::select! {
            () = self.stop.cancelled() => return Ok(()),
            prefetch = self.prefetch(projection) => prefetch,
        };
        let Joined {
            member,
            inputs,
            mut ended,
        } = self.join(projection, prefetch)?;
        let member_gone = CancellationToken::new();
        let role = (Role::Live, None);
        let mut writers = self.writers(
            projection,
            role,
            TopicIds::new(),
            &member,
            inputs,
            &member_gone,
        );
        let failed = |ended: Result<Result<(), MemberError>, _>| match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(refused(error)),
            Err(_) => Err(Error::Panicked),
        };
        let result = tokio::select! {
            biased;
            () = self.stop.cancelled() => {
                info!(projection = projection.name, "stopping");
                failpoint::reach(failpoint::STOP_BEFORE_LEAVING);
                member.stop();
                failed((&mut ended).await)
            }
            ended = &mut ended => failed(ended).and(Err(Error::Left(projection.name.clone()))),
            () = asked_aside(&projection.name, aside) => {
                member.stop();
                failed((&mut ended).await)
            }
            error = neighbours.after_joining() => {
                member.stop();
                failed((&mut ended).await).and(Err(refused(error)))
            }
            never = self.look_for_unattended(projection, &member) => match never {},
            never = kafka::watch(member.clone(), self.cluster.clone()) => match never {},
            // Writers end after their member, never before.
            _ = writers.join_next() => {
                member.stop();
                failed((&mut ended).await).and(Err(Error::Panicked))
            }
        };
        member_gone.cancel();
        while writers.join_next().await.is_some() {}
        self.board.left_group(&projection.name);
        result
    }

    /// Only where a rebalance has two halves and a member comes back without one.
    async fn look_for_unattended(&self, projection: &Projection, member: &Member) -> Infallible {
        let config = &self.config;
        // Behind a pooler no session says whether an owner is there.
        if config.group_instance_id.is_none()
            || config.group_protocol != GroupProtocol::Classic
            || config.pooled
        {
            return std::future::pending().await;
        }
        attendance::look(&self.database, &projection.name, member).await
    }

    pub(super) fn group(&self, projection: &Projection) -> String {
        format!("{}.{}", self.config.group_prefix, projection.name)
    }

    /// What may be fetched ahead of one partition, in bytes: this process may come to own all of them. It waits for
    /// Kafka to say how many there are, as a member without Kafka would.
    pub(super) async fn prefetch(&self, projection: &Projection) -> usize {
        let name = &projection.name;
        let mut partitions = 0;
        for topic in &projection.topics {
            let mut failures = 0;
            partitions += loop {
                match self.cluster.partitions(topic).await {
                    Ok(found) => break found.len(),
                    // It may come yet.
                    Err(ClusterError::NoTopic(_)) => break 0,
                    Err(error) => {
                        warn!(projection = name, topic, %error, "kafka does not say which partitions there are; asking again");
                    }
                }
                failures += 1;
                tokio::time::sleep(backoff::delay(failures, fastrand::f64())).await;
            };
        }
        let prefetch = self.shares.prefetch / partitions.max(1);
        if prefetch < 2 * PREFETCH_MIN {
            warn!(
                projection = name,
                partitions,
                "`memory.budget` is small for so many partitions; more than it may be used"
            );
        }
        prefetch
    }

    fn join(&self, projection: &Projection, prefetch: usize) -> Result<Joined, Error> {
        Ok(Member::join(MemberSettings {
            connection: &self.config.kafka,
            protocol: self.config.group_protocol,
            instance_id: self.config.group_instance_id.clone(),
            group: self.group(projection),
            client_id: kafka::client_id(&self.owner, self.tag.get()),
            assignment: Assignment::Group(projection.topics.clone()),
            writers: self.config.apply.writers,
            drain_max: self.config.apply.drain_max,
            prefetch,
        })?)
    }

    /// Works on what the member is given, for the live generation or for one that is being built, which stays within
    /// bounds.
    pub(super) fn writers(
        &self,
        projection: &Arc<Projection>,
        (role, bounds): (Role, Option<watch::Receiver<Bounds>>),
        known: TopicIds,
        member: &Member,
        inputs: Vec<Inputs>,
        member_gone: &CancellationToken,
    ) -> JoinSet<()> {
        let decoder = Arc::new(Decoder::new(projection, self.registry.as_ref()));
        let mut writers = JoinSet::new();
        let (ids, topic_ids) = watch::channel(known);
        let topics = projection.topics.clone();
        tokio::spawn(topic_watch::watch(self.cluster.clone(), topics, ids));
        let bulk_bytes_max = self.config.rebuild.memory_max / inputs.len().max(1);
        for inputs in inputs {
            let writer = Writer {
                projection: Arc::clone(projection),
                role,
                bounds: bounds.clone(),
                decoder: Arc::clone(&decoder),
                database: self.database.clone(),
                cluster: self.cluster.clone(),
                member: member.clone(),
                topic_ids: topic_ids.clone(),
                limits: Limits {
                    batch_records_max: self.config.apply.batch_records_max,
                    batch_bytes_max: self.shares.batch,
                    batch_linger: self.config.apply.batch_linger,
                    // What a crash takes back of a build is built again.
                    synchronous_commit: self.config.apply.synchronous_commit && role == Role::Live,
                    bulk_bytes_max,
                },
                owner: self.owner.clone(),
                secrets: Arc::clone(&self.secrets),
                outbox: Arc::clone(&self.outbox),
                board: self.board.clone(),
            };
            writers.spawn(writer.run(inputs, member_gone.clone()));
        }
        writers
    }

    pub(super) async fn check_version(&self) -> Result<(), Error> {
        let mut connection = self.connect().await?;
        self.identify(&mut connection).await;
        match migration::state(&mut connection).await? {
            State::Current => Ok(()),
            State::Behind { applied, known } => Err(Error::Behind { applied, known }),
            State::Ahead { applied, known } => Err(Error::Ahead { applied, known }),
        }
    }

    /// Learns which database this is, for other members of its groups to see.
    async fn identify(&self, connection: &mut sqlx::PgConnection) {
        match store::identity::read(connection).await {
            Ok((name, system_identifier)) => {
                let _ = self.tag.set(DatabaseTag::new(&name, &system_identifier));
            }
            Err(error) => {
                warn!(%error, "the database does not say which it is; whether others share a group is not checked");
            }
        }
    }

    pub(super) async fn connect(&self) -> Result<sqlx::PgConnection, store::Error> {
        let name = format!("tidegate {}", self.owner);
        self.database.connect(&name).await
    }

    /// Sees to it that messages can be written, before any are.
    pub(super) async fn settle(&self, projection: &Projection) -> Result<(), Error> {
        let settled = outgoing::settle(projection, self.registry.as_ref()).await;
        settled.map_err(|why| Error::Outgoing(projection.name.clone(), why))
    }

    async fn ensure(&self, projection: &Projection) -> Result<(), Error> {
        self.settle(projection).await?;
        let failed = |error| Error::Start(projection.name.clone(), Box::new(error));
        let mut connection = self.connect().await.map_err(|error| failed(error.into()))?;
        let timeouts = &self.database.timeouts;
        let made = start::ensure(&mut connection, &self.cluster, projection, timeouts);
        if made.await.map_err(failed)? {
            info!(
                projection = projection.name,
                definition = projection.definition(),
                "started for the first time"
            );
        } else {
            let changed = start::changed(&mut connection, projection);
            for what in changed.await.map_err(failed)? {
                warn!(projection = projection.name, "{what}");
            }
        }
        Ok(())
    }

    /// Tries until it works or cannot; an outage at the start is waited for. None when told to stop.
    async fn until_it_works<F>(
        &self,
        what: &str,
        mut attempt: impl FnMut() -> F,
    ) -> Result<Option<()>, Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let mut failures = 0;
        self.board.starting(what, "it has just begun");
        loop {
            let outcome = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(None),
                outcome = attempt() => outcome,
            };
            match outcome {
                Ok(()) => {
                    self.board.started(what);
                    return Ok(Some(()));
                }
                Err(error) if error.is_temporary() => {
                    self.board
                        .starting(what, &self.secrets.cleaned(&error.to_string()));
                    failures += 1;
                    let after =
                        backoff::delay(failures, fastrand::f64()).max(Duration::from_millis(100));
                    warn!(%error, failures, "not started yet; trying again");
                    tokio::select! {
                        () = self.stop.cancelled() => return Ok(None),
                        () = tokio::time::sleep(after) => {}
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}
