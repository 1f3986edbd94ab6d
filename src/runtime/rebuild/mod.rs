//! Rebuild: a new generation of a projection's tables is built beside the live one, and takes its place.
//!
//! ```text
//!   start ──▶ building ── cut over ──▶ live ── another one cuts over ──▶ retired
//!                │  ▲                                                      │
//!             abandon └──────────────────── rollback ──────────────────────┘
//!                ▼
//!            abandoned (if it was live before: retired)
//! ```
//!
//! A build is the service's own writers with another role: their claims, batches and positions are those of the
//! generation that is built, in a schema of its own, read without a group. So whatever holds for the one transaction
//! holds for a build, a crash at any point included: what is committed is built, and the next process goes on there.
//! Three things differ. A build never passes the position of the live generation ([`builder`]). It sends nothing:
//! messages of records that have not spent their right to emit are kept in `_held` (I5). And what it writes outside of
//! its schema is an error that halts (I8).
//!
//! A rollback is no other thing: the former generation becomes the one that is built, reads on from where it stood, and
//! cuts over.
//!
//! There is deliberately no second engine for building, no copying of rows from the live tables, and no way to go live
//! without standing exactly where the live generation stands.

mod abandon;
mod begin;
mod builder;
mod cut_over;
mod detached;
mod entity;
mod plan;
mod verify;

use std::sync::Arc;

use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;

pub(crate) use abandon::Aside;
pub(crate) use builder::{Builder, Progress, Share};
pub(super) use detached::{Builds, OutOfGroup};
pub(crate) use entity::Accept;
pub(crate) use plan::{Obstacle, Plan};
pub(crate) use verify::Verified;

use super::service::{Error as RunError, Service};
use crate::config::Config;
use crate::engine::Class;
use crate::health::Board;
use crate::kafka::{ClusterError, MemberError};
use crate::projection::{Projection, only_entity};
use crate::store::generation::{self, Beside};
use crate::store::projection::Live;
use crate::store::schema::Problem;
use crate::store::{self, position};
use crate::types::TopicPartition;

/// Why a rebuild does not go on. What is live is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RebuildError {
    #[error(
        "projection `{0}` is not in the database: it has never been started, so there is nothing to rebuild"
    )]
    NotStarted(String),
    #[error("it cannot be rebuilt like this:\n{}", list(.0))]
    Obstacles(Vec<Obstacle>),
    #[error(
        "generation {generation} of `{projection}` is being built by another definition ({stored}); this process has ({mine}). Go on with the configuration that it was begun with, or `tidegate rebuild abandon {projection}`"
    )]
    OtherDefinition {
        projection: String,
        generation: i32,
        stored: String,
        mine: String,
    },
    #[error(
        "generation {generation} of `{projection}` was built by another definition ({stored}) than this process has ({mine}); it takes the configuration, or the binary, of that time"
    )]
    FormerDefinition {
        projection: String,
        generation: i32,
        stored: String,
        mine: String,
    },
    #[error(
        "generation {generation} of `{projection}` was made by another setup or other statements than this process has. Go on with the configuration that it was begun with, or `tidegate rebuild abandon {projection}`"
    )]
    OtherStatements { projection: String, generation: i32 },
    #[error(
        "generation {generation} of `{projection}` is built of entity `{entity}` alone: go on with `tidegate rebuild entity {projection}`, or `tidegate rebuild abandon {projection}`"
    )]
    OfEntity {
        projection: String,
        generation: i32,
        entity: String,
    },
    #[error(
        "generation {generation} of `{projection}` is being built of all entities; `tidegate rebuild cut-over {projection}` first, or `tidegate rebuild abandon {projection}`"
    )]
    OfAll { projection: String, generation: i32 },
    #[error(
        "the entity's rows stay as they are: they would not be of the same records.\n{}\nRedrive or repair what that is, or `tidegate rebuild start` makes all tables anew. What was built waits: `tidegate rebuild abandon` drops it",
        lines(.0)
    )]
    Strays(Vec<String>),
    #[error(
        "the entity's rows stay as they are: {} where the live gate stands at {live}. Events of it are not in the log any more, or in another partition than was read, or a gap was accepted. `tidegate rebuild abandon` drops what was built",
        .built.map_or_else(|| "no event of it was met".to_owned(), |built| format!("its events end at sequence {built}"))
    )]
    Incomplete { live: i64, built: Option<i64> },
    #[error(
        "the entity's rows stay as they are: the events of it have made {rows} rows of table `{table}` whose `{column}` is another's. `entity_rows` is for tables whose rows are made of the events of one entity each; `tidegate rebuild abandon` drops what was built"
    )]
    Strangers {
        table: String,
        column: String,
        rows: i64,
    },
    #[error(
        "the entity's rows stay as they are: there are {rows}, and the log has made none. Is that its name? `tidegate rebuild abandon` drops what was built"
    )]
    NothingBuilt { rows: u64 },
    #[error(
        "the entity's rows stay as they are: there would be fewer ({}). Events of it may be gone from the log, or rows were added by hand. Say --accept-fewer if that is right; what was built waits: `tidegate rebuild abandon` drops it",
        .0.join("; ")
    )]
    Fewer(Vec<String>),
    #[error(
        "the entity's rows stay as they are: its events are in {partitions} partitions, and {}. If the rows are the same in whatever order they were applied, say --accept-order; what was built waits: `tidegate rebuild abandon` drops it",
        match .stale {
            0 => "without a gate nothing tells in which order these were read when they were live".to_owned(),
            stale => format!("{stale} of them were not newer than what was read before. When they were live these may have been applied, and others not"),
        }
    )]
    Order { partitions: i64, stale: i64 },
    #[error(
        "generation {live} is live now, and it was planned from generation {planned}: somebody has reset or rebuilt it in this moment. Nothing was begun; run it again"
    )]
    Moved { planned: i32, live: i32 },
    #[error("no generation of `{0}` is being built; `tidegate rebuild start {0}` begins one")]
    NotBuilding(String),
    #[error("no former generation of `{0}` is kept, so there is nothing to go back to")]
    NothingKept(String),
    #[error("generation {generation} of `{projection}` is not kept; those that are: {kept}")]
    NotKept {
        projection: String,
        generation: i32,
        kept: String,
    },
    #[error(
        "the topic {topic} was accepted as made anew after generation {generation} had read it: that generation knows another log. `tidegate rebuild abandon` it, and start anew"
    )]
    OtherLog { topic: String, generation: i32 },
    #[error(
        "generation {generation} is not being built any more: it was cut over or given up by somebody else"
    )]
    Gone { generation: i32 },
    #[error("another process is building `{0}`; there need be only one")]
    Elsewhere(String),
    #[error(
        "what the service is to do with the build has been changed in this moment, or the projection was paused"
    )]
    Withdrawn,
    #[error(
        "the tables differ: {}. `tidegate rebuild verify {projection}` shows what; if that is what the change was made for, `tidegate rebuild cut-over {projection} --accept-differences`",
        .tables.join(", ")
    )]
    Differ {
        projection: String,
        tables: Vec<String>,
    },
    #[error("the build is halted: {partition}: {cause}")]
    Halted {
        partition: TopicPartition,
        cause: String,
    },
    #[error("the records cannot be read on: {0}")]
    Member(MemberError),
    #[error("a task of the build has ended; see the log")]
    Panicked,
    #[error(
        "the build did not come to stand where the live generation stands within {tries} tries, each of which held that up for a second at most; {remaining} records were missing in the last one. Try again when less comes in"
    )]
    NotLevel { tries: u32, remaining: i64 },
    #[error(
        "the cut-over was not answered: {0}. `tidegate rebuild status` says whether it has happened"
    )]
    Unknown(store::Error),
    #[error("stopped; what is built stays, and the same command goes on from there")]
    Stopped,
    #[error(
        "tables of the live schema are protected by row-level policies that the new ones do not have: {}. Put them into the setup",
        .0.join(", ")
    )]
    Unprotected(Vec<String>),
    #[error(
        "setup or seed does something to `{0}` in the schema of the live generation; name tables without a schema there"
    )]
    TouchesLive(String),
    #[error(
        "setup or seed makes, replaces or grants something in schema `{0}` of the live generation, or somebody else has done so in this moment; name functions and types without a schema there, and try again"
    )]
    RedefinesLive(String),
    #[error(transparent)]
    Schema(#[from] Problem),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Kafka(#[from] ClusterError),
    #[error(transparent)]
    Run(#[from] RunError),
}

impl RebuildError {
    /// Whether trying again may help without anybody changing anything.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Kafka(_)
            | Self::NotLevel { .. }
            | Self::Stopped
            | Self::Elsewhere(_)
            | Self::Withdrawn => true,
            Self::Store(error) | Self::Schema(Problem::Store(error)) => {
                error.class() == Class::Transient
            }
            Self::Schema(Problem::UserSql { error, .. }) => {
                store::class_of_own_error(error) == Class::Transient
            }
            Self::Run(error) => error.is_temporary(),
            _ => false,
        }
    }
}

fn lines(texts: &[String]) -> String {
    let line = |text: &String| format!("  - {text}");
    texts.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn list(obstacles: &[Obstacle]) -> String {
    let line = |obstacle: &Obstacle| format!("  - {}; {}", obstacle.what, obstacle.cure);
    obstacles.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Where a projection's generations stand.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) live: i32,
    pub(crate) beside: Vec<Beside>,
    /// Of what is being built, if anything is.
    pub(crate) progress: Option<Progress>,
    /// Whether a process is building it at the moment.
    pub(crate) taken: bool,
}

/// Rebuilds one projection, for an operator or for the service.
pub(crate) struct Rebuilder {
    service: Arc<Service>,
    projection: Arc<Projection>,
    who: String,
    /// For a process of the service, which gives way to a person.
    in_service: bool,
}

impl Rebuilder {
    /// Also looks whether the database's schema is this binary's. A projection with `only` is built of that entity.
    pub(crate) async fn new(
        config: Config,
        projection: Arc<Projection>,
        who: String,
        stop: CancellationToken,
    ) -> Result<Self, RunError> {
        // What its writers say is shown as progress.
        let service = Service::new(config, 1, Board::new(true), stop)?;
        service.check_version().await?;
        Ok(Self {
            service: Arc::new(service),
            projection,
            who,
            in_service: false,
        })
    }

    /// A connection under this process' name.
    pub(crate) async fn connect(&self) -> Result<PgConnection, RebuildError> {
        Ok(self.service.connect().await?)
    }

    fn name(&self) -> &str {
        &self.projection.name
    }

    async fn live(&self, connection: &mut PgConnection) -> Result<Live, RebuildError> {
        let read = store::projection::read(connection, self.name()).await?;
        let (live, _) = read.ok_or_else(|| RebuildError::NotStarted(self.name().to_owned()))?;
        Ok(live)
    }

    /// Reads where everything stands.
    pub(crate) async fn standing(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Standing, RebuildError> {
        let live = self.live(connection).await?.generation;
        let beside = generation::beside(connection, self.name()).await?;
        let (mut progress, mut taken) = (None, false);
        if let Some(building) = beside.iter().find(|beside| beside.is_building()) {
            let generations = [live, building.number];
            let marks = position::marks(connection, self.name(), &generations).await?;
            let topics = &self.projection.topics;
            progress = Some(Progress::of(&marks, building.number, topics));
            let mut under_way = generation::under_way(connection).await?.into_iter();
            taken = under_way.any(|of| of.projection == self.name() && of.taken);
        }
        Ok(Standing {
            live,
            beside,
            progress,
            taken,
        })
    }

    /// The generation that is being built, if this process can go on with it.
    pub(crate) async fn building(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Beside, RebuildError> {
        self.live(connection).await?;
        let beside = generation::beside(connection, self.name()).await?;
        let building = beside.into_iter().find(Beside::is_building);
        let building = building.ok_or_else(|| RebuildError::NotBuilding(self.name().to_owned()))?;
        self.is_mine(&building)?;
        Ok(building)
    }

    /// A generation is gone on with only by what it was begun with: otherwise it would mix both.
    fn is_mine(&self, beside: &Beside) -> Result<(), RebuildError> {
        let mine = super::start::made(&self.projection);
        let (projection, generation) = (self.name().to_owned(), beside.number);
        match only_entity(&beside.definition) {
            Some(entity) if self.entity() != Some(entity) => {
                return Err(RebuildError::OfEntity {
                    projection,
                    generation,
                    entity: entity.to_owned(),
                });
            }
            None if self.entity().is_some() => {
                return Err(RebuildError::OfAll {
                    projection,
                    generation,
                });
            }
            _ => {}
        }
        if beside.definition != mine.definition {
            let (stored, mine) = (beside.definition.clone(), mine.definition);
            return Err(match beside.is_building() {
                true => RebuildError::OtherDefinition {
                    projection,
                    generation,
                    stored,
                    mine,
                },
                false => RebuildError::FormerDefinition {
                    projection,
                    generation,
                    stored,
                    mine,
                },
            });
        }
        let other_statements =
            !beside.statements.is_empty() && beside.statements != mine.statements;
        // One that was live may have gone on with other statements and tables, as its operators chose.
        if beside.live_at.is_none() && (beside.setup != mine.setup || other_statements) {
            return Err(RebuildError::OtherStatements {
                projection,
                generation,
            });
        }
        Ok(())
    }
}
