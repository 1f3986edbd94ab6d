//! Looks at what nobody in this process knows by itself: the ends of the logs, and what the database says of
//! all processes together. For the board only.
//!
//! Its questions never stand in anybody's way: they take no locks, and they have a connection and Kafka clients
//! of their own. It runs only where somebody may ask for the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::engine::redact::Secrets;
use crate::health::{Board, Build, Detached, Figures, Letters, Lock, Log};
use crate::kafka::{Cluster, ClusterError, Connection, Topics};
use crate::store::{self, Database, blocking, dead_letter, generation, outbox, projection};
use crate::types::TopicPartition;

/// How often to look.
const EVERY: Duration = Duration::from_secs(5);
/// Figures of the whole database are asked for at every third look.
const FIGURES_EVERY: u32 = 3;
/// How often a topic is asked how long it keeps records.
const RETENTION_EVERY: Duration = Duration::from_secs(300);
/// How long an answer of the database may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// What it works with.
pub(super) struct Observer {
    pub(super) database: Database,
    pub(super) cluster: Cluster,
    pub(super) kafka: Connection,
    /// The same, up to the ends of records that are not committed yet.
    pub(super) uncommitted: Cluster,
    /// One that projections read, to see whether Kafka answers; none for a relay alone.
    pub(super) topic: Option<String>,
    pub(super) owner: String,
    /// What no answer may show.
    pub(super) secrets: Arc<Secrets>,
    pub(super) board: Board,
    pub(super) stop: CancellationToken,
}

impl Observer {
    /// Looks again and again, until told to stop.
    pub(super) async fn run(self) {
        let logs = async {
            loop {
                self.look_at_logs().await;
                tokio::time::sleep(EVERY).await;
            }
        };
        let database = async {
            let mut connection: Option<PgConnection> = None;
            for look in (0..FIGURES_EVERY).cycle() {
                self.look_at_database(&mut connection, look == 0).await;
                tokio::time::sleep(EVERY).await;
            }
        };
        let kept = async {
            let mut asked: BTreeMap<String, Instant> = BTreeMap::new();
            loop {
                self.look_at_retention(&mut asked).await;
                tokio::time::sleep(EVERY).await;
            }
        };
        // What is slow of one keeps the other not waiting.
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = logs => {}
            () = kept => {}
            () = database => {}
        }
    }

    async fn look_at_logs(&self) {
        let (mut answer, mut answered) = (Ok(()), false);
        let partitions = self.board.partitions();
        if let (true, Some(topic)) = (partitions.is_empty(), &self.topic) {
            answer = self.cluster.partitions(topic).await.map(|_| ());
        }
        for (projection, partition) in partitions {
            let asked = Instant::now();
            let ends = async {
                let committed = self.cluster.watermarks(&partition).await?;
                let all = self.uncommitted.watermarks(&partition).await?;
                Ok::<_, ClusterError>(Log {
                    low: committed.low,
                    end: committed.high,
                    held_back: (all.high - committed.high).max(0),
                })
            };
            // One that cannot be asked for keeps nobody from seeing the others.
            match ends.await {
                Ok(log) => {
                    self.board.log(&projection, &partition, log, asked);
                    answered = true;
                }
                Err(error) => {
                    // A silent broker lets each question wait: nobody is to hear of it only after the last one.
                    if !answered {
                        self.board
                            .kafka(Err(self.secrets.cleaned(&error.to_string())));
                    }
                    answer = Err(error);
                }
            }
        }
        if answered {
            answer = Ok(());
        }
        match answer {
            // It has answered: there is no such topic.
            Ok(()) | Err(ClusterError::NoTopic(_)) => {
                if self.topic.is_some() {
                    self.board.kafka(Ok(()));
                }
            }
            Err(error) => self
                .board
                .kafka(Err(self.secrets.cleaned(&error.to_string()))),
        }
    }

    /// How long topics keep records: seldom, since it hardly ever changes.
    async fn look_at_retention(&self, asked: &mut BTreeMap<String, Instant>) {
        let partitions = self.board.partitions();
        let topics: BTreeSet<&str> = partitions.iter().map(|(_, p)| p.topic()).collect();
        asked.retain(|topic, at| topics.contains(&**topic) && at.elapsed() < RETENTION_EVERY);
        let due: Vec<&str> = topics
            .into_iter()
            .filter(|topic| !asked.contains_key(*topic))
            .collect();
        if due.is_empty() {
            return;
        }
        // A client for each look: nobody polls it, so it has one token and never asks for the next. To be made it may
        // wait for that token, and there may be none yet.
        let kafka = self.kafka.clone();
        let client = match tokio::task::spawn_blocking(move || Topics::new(&kafka)).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => {
                debug!(%error, "topics cannot be asked how long they keep records");
                return;
            }
            Err(_) => return,
        };
        for topic in due {
            match client.kept(topic).await {
                Ok(kept) => self.board.kept(topic, kept),
                // Not allowed, perhaps: then nobody knows, and nothing is said.
                Err(error) => debug!(topic, %error, "not known how long the topic keeps records"),
            }
            asked.insert(topic.to_owned(), Instant::now());
        }
        // It waits for its thread.
        tokio::task::spawn_blocking(move || drop(client));
    }

    async fn look_at_database(&self, connection: &mut Option<PgConnection>, figures: bool) {
        let look = self.ask_database(connection, figures);
        match store::within("looking at the database", ANSWER_MAX, look).await {
            Ok(locks) => self.board.database(Ok(locks)),
            Err(error) => {
                debug!(%error, "the database could not be looked at");
                *connection = None;
                let why = self.secrets.cleaned(&error.to_string());
                self.board.database(Err(why));
            }
        }
    }

    async fn ask_database(
        &self,
        connection: &mut Option<PgConnection>,
        figures: bool,
    ) -> Result<Vec<Lock>, store::Error> {
        if connection.is_none() {
            // Not a name that counts as this process being at work.
            let name = format!("tidegate observer {}", self.owner);
            *connection = Some(self.database.connect(&name).await?);
        }
        let Some(connection) = connection else {
            return Ok(Vec::new());
        };
        if figures {
            self.board.figures(ask_figures(connection).await?);
        }
        let waits = blocking::waits(connection, &self.owner).await?;
        let lock = |wait: blocking::Wait| Lock {
            projection: wait.projection,
            pid: wait.pid,
            blocked_by: wait.blocked_by,
            since: wait.since,
        };
        Ok(waits.into_iter().map(lock).collect())
    }
}

async fn ask_figures(connection: &mut PgConnection) -> Result<Figures, store::Error> {
    let letters = dead_letter::summary(connection).await?;
    let streams = outbox::status(connection).await?;
    let paused = projection::desired(connection).await?;
    let builds = generation::progress(connection).await?;
    let under_way = generation::under_way(connection).await?.into_iter();
    let quarantined: i64 = streams.iter().map(outbox::Status::quarantined).sum();
    let unsent: i64 = streams.iter().map(outbox::Status::unsent).sum();
    Ok(Figures {
        letters: letters
            .into_iter()
            .map(|of| Letters {
                projection: of.projection,
                reason: of.reason,
                waiting: of.waiting,
                oldest: of.oldest,
            })
            .collect(),
        builds: builds
            .into_iter()
            .map(|of| Build {
                partition: TopicPartition::new(of.topic, of.partition),
                projection: of.projection,
                done: of.done,
                remaining: of.remaining,
            })
            .collect(),
        detached: under_way
            .filter(generation::UnderWay::is_detached)
            .map(|of| Detached {
                projection: of.projection,
                generation: of.number,
                trouble: of.trouble,
                since: Instant::now(),
            })
            .collect(),
        paused: paused.into_iter().collect(),
        unsent,
        oldest_unsent: streams
            .iter()
            .filter_map(|stream| stream.oldest_unsent)
            .min(),
        quarantined,
    })
}
