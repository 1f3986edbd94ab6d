//! Builds that the service works on, without anybody's terminal.
//!
//! What is to be done stands in the generation's row. Every process of the service looks there, and one that has the
//! definition of a build takes it: whoever has the lock that a build in the foreground has, too. When that process ends,
//! wherever it is, its lock ends with its session, and the next one goes on from what is committed. A person who waits for
//! the lock is given way to.
//!
//! Nothing of it concerns what is live: a build has writers, connections and a client of its own, and whatever is wrong
//! with it is written down where it is asked for, and tried again. A build that has caught up is kept so until somebody
//! cuts over.
//!
//! A process with another definition than the live tables have, has nothing to apply. It stays out of its group
//! meanwhile: partitions that it were given there would stand still.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, error, info, warn};

use super::{Builder, RebuildError, Rebuilder};
use crate::projection::Projection;
use crate::runtime::service::Service;
use crate::runtime::start::made;
use crate::store;
use crate::store::generation::{self, Detached, UnderWay};
use crate::store::server;
use crate::types::TopicPartition;

/// How often it is asked what is being built.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a build of this process is looked after.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);
/// How long to leave alone what has failed.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// So many attempts to cut over may fail in a row before somebody is told.
const FAILED_MAX: u32 = 3;

/// How much longer than a drain the end of a build may take.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Projections of which a process stays out of the group, with the definition that is live; none before that is known.
pub(in crate::runtime) type OutOfGroup = Option<BTreeMap<String, String>>;

/// Looks for builds, and works on those that it may.
pub(in crate::runtime) struct Builds {
    pub(in crate::runtime) service: Arc<Service>,
    pub(in crate::runtime) projections: Vec<Arc<Projection>>,
    pub(in crate::runtime) aside: watch::Sender<OutOfGroup>,
}

impl Builds {
    /// Until the service stops.
    pub(in crate::runtime) async fn run(self) {
        let (mut connection, mut mine) = (None, BTreeMap::new());
        let mut is_alone = None;
        loop {
            match self.look(&mut connection).await {
                Ok((under_way, live)) => {
                    let is_free = |build: &UnderWay| build.is_detached() && !build.taken;
                    if is_alone.is_none() && under_way.iter().any(is_free) {
                        is_alone = self.has_its_own_sessions(&mut connection).await;
                    }
                    let is_alone = is_alone == Some(true);
                    self.see(&under_way, &live, is_alone, &mut mine).await;
                    self.decline(&under_way, is_alone, &mut connection).await;
                }
                Err(error) => {
                    debug!(%error, "not known what is being built");
                    connection = None;
                }
            }
            tokio::select! {
                () = self.service.stop.cancelled() => break,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        // Their batches end as those of live work do; what takes longer is rolled back.
        let until = tokio::time::Instant::now() + self.service.config.apply.drain_max + STOP_MAX;
        for (_, mut build) in mine {
            if tokio::time::timeout_at(until, &mut build).await.is_err() {
                build.abort();
            }
        }
    }

    async fn look(
        &self,
        connection: &mut Option<PgConnection>,
    ) -> Result<(Vec<UnderWay>, BTreeMap<String, String>), store::Error> {
        let connection = match connection {
            Some(connection) => connection,
            none => none.insert(self.service.connect().await?),
        };
        let limit = self.service.database.timeouts.statement;
        let look = async {
            let under_way = generation::under_way(connection).await?;
            let live = store::projection::definitions(connection).await?;
            Ok((under_way, live.into_iter().collect()))
        };
        store::within("looking for builds", limit, look).await
    }

    /// Whether a lock of a session's keeps others away. Behind a pooler it does not, also where nobody has said that there
    /// is one, since it keeps prepared statements. None if it cannot be asked now.
    async fn has_its_own_sessions(&self, connection: &mut Option<PgConnection>) -> Option<bool> {
        if self.service.config.pooled {
            return Some(false);
        }
        let ask = async {
            let mut other = self.service.connect().await?;
            match connection {
                Some(one) => Ok(Some(!server::is_shared(one, &mut other).await?)),
                None => Ok(None),
            }
        };
        let limit = self.service.database.timeouts.statement;
        let asked = store::within("looking for a pooler", limit, ask).await;
        asked.unwrap_or_else(|error: store::Error| {
            debug!(%error, "not known whether sessions are shared");
            *connection = None;
            None
        })
    }

    /// Tells of builds that nobody works on why this process does not, if it is nearly able to.
    async fn decline(
        &self,
        under_way: &[UnderWay],
        is_alone: bool,
        connection: &mut Option<PgConnection>,
    ) {
        for build in under_way {
            let takes = self.takes(build, is_alone);
            let (Some(Err(why)), Some(of)) = (takes, connection.as_mut()) else {
                continue;
            };
            let why = format!("{} has its definition, but {why}", self.service.owner);
            let told = generation::decline(of, (&build.projection, build.number), &why);
            let limit = self.service.database.timeouts.statement;
            if let Err(error) = store::within("telling why nobody builds", limit, told).await {
                debug!(%error, "not told why this process does not build");
                *connection = None;
            }
        }
    }

    /// Whether this process is to work on a build; none if that is no matter of its.
    fn takes(&self, build: &UnderWay, is_alone: bool) -> Option<Result<(), &'static str>> {
        if build.taken || !build.is_detached() {
            return None;
        }
        let mut all = self.projections.iter();
        let mine = made(all.find(|projection| projection.name == build.projection)?);
        if build.made.definition != mine.definition {
            return None;
        }
        Some(if build.made != mine {
            Err("other statements, or another seed or setup")
        } else if !self.service.config.rebuild.enabled {
            Err("`rebuild.enabled = false`")
        } else if !is_alone {
            Err("a pooler between it and Postgres, through which nobody can build")
        } else {
            Ok(())
        })
    }

    async fn see(
        &self,
        under_way: &[UnderWay],
        live: &BTreeMap<String, String>,
        is_alone: bool,
        mine: &mut BTreeMap<String, JoinHandle<()>>,
    ) {
        let mut aside = BTreeMap::new();
        for projection in &self.projections {
            let name = &projection.name;
            let definition = projection.definition();
            let build = under_way.iter().find(|of| of.projection == *name);
            if let Some(live) = live.get(name).filter(|live| **live != definition) {
                aside.insert(name.clone(), live.clone());
                let gets_on = |build: &UnderWay| {
                    build.made.definition == definition && build.taken && build.trouble.is_empty()
                };
                self.service
                    .board
                    .is_built(name, build.is_some_and(gets_on));
            }
            let Some(build) = build else {
                continue;
            };
            if let Some(ended) = mine.remove(name) {
                if !ended.is_finished() {
                    mine.insert(name.clone(), ended);
                    continue;
                }
                if ended.await.is_err() {
                    error!(projection = name, "a task that builds has panicked");
                }
            }
            if self.takes(build, is_alone) == Some(Ok(())) {
                let rebuilder = Rebuilder {
                    service: Arc::new(self.service.beside()),
                    projection: Arc::clone(projection),
                    who: format!("{} (tidegate run)", self.service.owner),
                    in_service: true,
                };
                mine.insert(name.clone(), tokio::spawn(rebuilder.work()));
            }
        }
        self.aside.send_if_modified(|known| {
            let is_new = known.as_ref() != Some(&aside);
            *known = Some(aside);
            is_new
        });
    }
}

impl Rebuilder {
    /// Builds for the service, until that is over, or somebody else is to.
    async fn work(self) {
        let projection = self.name();
        match self.build_for_service().await {
            Ok(()) => {}
            Err(error @ (RebuildError::Stopped | RebuildError::Elsewhere(_))) => {
                debug!(projection, %error, "not building");
            }
            Err(error @ RebuildError::Gone { .. }) => info!(projection, %error, "not building"),
            Err(error) => {
                warn!(projection, %error, "the build does not go on; trying again");
                tokio::select! {
                    () = self.service.stop.cancelled() => {}
                    () = tokio::time::sleep(AGAIN_AFTER) => {}
                }
            }
        }
    }

    async fn build_for_service(&self) -> Result<(), RebuildError> {
        let begin = async {
            let mut connection = self.connect().await?;
            let building = self.building(&mut connection).await?;
            self.build(building).await
        };
        let mut builder = tokio::select! {
            biased;
            () = self.service.stop.cancelled() => return Err(RebuildError::Stopped),
            builder = begin => builder?,
        };
        let (projection, generation) = (self.name(), builder.generation.number);
        info!(projection, generation, "building for the service");
        let done = self.follow(&mut builder).await;
        builder.stop().await;
        if let Err(error) = &done
            && !error.is_temporary()
            && !matches!(error, RebuildError::Gone { .. })
        {
            let trouble = self.service.secrets.cleaned(&error.to_string());
            self.tell(generation, &trouble).await?;
        }
        done
    }

    /// Writes down why the build does not go on.
    async fn tell(&self, number: i32, trouble: &str) -> Result<(), RebuildError> {
        let mut connection = self.connect().await?;
        let limit = self.service.database.timeouts.statement;
        let told = generation::set_trouble(&mut connection, self.name(), number, trouble);
        Ok(store::within("telling how a build fares", limit, told).await?)
    }

    /// Keeps a build going, and cuts over if it is to. Ends well when somebody else is to build.
    async fn follow(&self, builder: &mut Builder) -> Result<(), RebuildError> {
        let (projection, number) = (self.name(), builder.generation.number);
        let (mut told, mut near) = (builder.generation.trouble.clone(), None);
        // What has failed may do so again soon; only then it is taken for mended.
        let (mut calm_since, mut cut_over_at) = (Instant::now(), Instant::now());
        // Attempts to cut over that have failed in a row, and why the last of too many did.
        let (mut failed, mut stuck) = (0, String::new());
        // Why the cut-over was refused, and what was to be done then.
        let mut refused: Option<(Detached, String)> = None;
        loop {
            let looked = builder.look().await;
            let Some(detached) = builder.generation.detached() else {
                info!(projection, "the build was taken back");
                return Ok(());
            };
            if builder.is_wanted {
                info!(
                    projection,
                    "letting go of the build, which somebody waits for"
                );
                return Ok(());
            }
            // An operator who repeats the command has it tried again.
            if told != builder.generation.trouble
                || refused.as_ref().is_some_and(|of| of.0 != detached)
            {
                (told, refused) = (builder.generation.trouble.clone(), None);
                (failed, stuck) = (0, String::new());
            }
            let mut partition: Option<TopicPartition> = None;
            let trouble = match looked {
                Ok(progress) => {
                    let is_due = progress.has_caught_up(&mut near)
                        && detached != Detached::Build
                        && refused.is_none()
                        && cut_over_at <= Instant::now();
                    if is_due {
                        let attempt = self.cut_over_for_service(builder, detached).await;
                        cut_over_at = Instant::now() + AGAIN_AFTER;
                        match attempt {
                            Ok(true) => return Ok(()),
                            Ok(false) => (failed, stuck) = (0, String::new()),
                            Err(error @ RebuildError::Withdrawn) => {
                                info!(projection, %error, "no cut-over");
                                (failed, stuck) = (0, String::new());
                            }
                            Err(error) if ends(&error) => return Err(error),
                            // More comes in than it can apply while all is held up: not again and again.
                            Err(error @ RebuildError::NotLevel { .. }) => {
                                refused = Some((detached, error.to_string()));
                            }
                            Err(error) if error.is_temporary() => {
                                warn!(projection, %error, "no cut-over yet; trying again");
                                failed += 1;
                                if failed >= FAILED_MAX {
                                    stuck = format!(
                                        "no cut-over in {FAILED_MAX} attempts and more: {error}"
                                    );
                                }
                            }
                            Err(error) => refused = Some((detached, error.to_string())),
                        }
                    }
                    refused.as_ref().map_or(&stuck, |(_, why)| why).clone()
                }
                Err(error @ (RebuildError::Halted { .. } | RebuildError::OtherLog { .. })) => {
                    if let RebuildError::Halted { partition: at, .. } = &error {
                        partition = Some(at.clone());
                    }
                    error.to_string()
                }
                Err(error) => return Err(error),
            };
            let trouble = self.service.secrets.cleaned(&trouble);
            if !trouble.is_empty() {
                calm_since = Instant::now();
            }
            if trouble != told && (!trouble.is_empty() || calm_since.elapsed() >= AGAIN_AFTER) {
                match &*trouble {
                    "" => info!(projection, "the build goes on"),
                    // Why may quote what a record has.
                    _ => error!(
                        projection,
                        partition = partition.map(tracing::field::display),
                        "the build needs a person; what is live goes on; `tidegate rebuild status` says why"
                    ),
                }
                self.tell(number, &trouble).await?;
                builder.generation.trouble.clone_from(&trouble);
                told = trouble;
            }
            tokio::time::sleep(FOLLOW_EVERY).await;
        }
    }

    /// Whether the build is live.
    async fn cut_over_for_service(
        &self,
        builder: &mut Builder,
        detached: Detached,
    ) -> Result<bool, RebuildError> {
        let mut connection = self.connect().await?;
        let read = store::projection::read_alone(&mut connection, self.name()).await?;
        // Nothing is to change then; the build follows as far as the live generation has come.
        if read.is_some_and(|(live, _)| live.paused()) {
            return Ok(false);
        }
        if detached == Detached::CutOverIfSame {
            let verified = self.verify(builder).await?;
            let differing = verified.tables.iter().filter(|table| !table.same);
            let tables: Vec<_> = differing.map(|table| table.table.clone()).collect();
            if !tables.is_empty() {
                let projection = self.name().to_owned();
                return Err(RebuildError::Differ { projection, tables });
            }
        }
        let done = self.cut_over(builder, Some(detached)).await?;
        info!(
            projection = self.name(),
            generation = done.new,
            operation = %done.operation,
            messages = done.messages,
            pause_ms = u64::try_from(done.pause.as_millis()).unwrap_or(u64::MAX),
            former = done.old_schema,
            "cut over"
        );
        Ok(true)
    }
}

/// What ends the work on a build, here or altogether.
fn ends(error: &RebuildError) -> bool {
    matches!(
        error,
        RebuildError::Stopped
            | RebuildError::Gone { .. }
            | RebuildError::Elsewhere(_)
            | RebuildError::Member(_)
            | RebuildError::Panicked
            | RebuildError::Unknown(_)
    )
}
