//! The beginning of a build, and of the way back to a former generation: one transaction each.

use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Builder, Obstacle, Plan, RebuildError, Rebuilder};
use crate::failpoint;
use crate::runtime::reposition::end;
use crate::runtime::start::made;
use crate::store::generation::{self, Beside, Detached, State};
use crate::store::operation::Operation;
use crate::store::{self, operation, position, schema, swap, transaction};

/// The failpoints around the COMMIT.
const AROUND_COMMIT: [&str; 2] = [
    failpoint::REBUILD_BEFORE_BEGIN,
    failpoint::REBUILD_AFTER_BEGIN,
];

impl Rebuilder {
    /// Makes a generation with tables and positions as planned, or finds the one that is being built; with `detached`
    /// leaves it to the service. Says whether it was made.
    pub(crate) async fn begin(
        &self,
        connection: &mut PgConnection,
        plan: &Plan,
        accept_truncated: bool,
        detached: Option<Detached>,
    ) -> Result<(i32, bool), RebuildError> {
        if let (Some(building), None) = (&plan.building, detached) {
            self.is_mine(building)?;
            return Ok((building.number, false));
        }
        let hold = |obstacle: &&Obstacle| !(obstacle.may_be_accepted && accept_truncated);
        let obstacles: Vec<Obstacle> = plan.obstacles.iter().filter(hold).cloned().collect();
        if plan.building.is_none() && !obstacles.is_empty() {
            return Err(RebuildError::Obstacles(obstacles));
        }
        let name = self.name();
        let application = format!("tidegate rebuild {name}");
        let timeouts = &self.service.database.timeouts;
        transaction::begin(
            connection,
            transaction::OWN_SEARCH_PATH,
            &application,
            timeouts,
        )
        .await?;
        let make = self.make(connection, plan, accept_truncated, detached);
        let done = make.await;
        end(connection, done, AROUND_COMMIT).await
    }

    /// Locks the projection's row: nothing of the live schema is touched, so its batches go on.
    async fn make(
        &self,
        connection: &mut PgConnection,
        plan: &Plan,
        accept_truncated: bool,
        detached: Option<Detached>,
    ) -> Result<(i32, bool), RebuildError> {
        let name = self.name();
        let Some(live) = store::projection::lock(connection, name).await? else {
            return Err(RebuildError::NotStarted(name.to_owned()));
        };
        let beside = generation::beside(connection, name).await?;
        if let Some(building) = beside.iter().find(|beside| beside.is_building()) {
            self.is_mine(building)?;
            if detached.is_some() {
                self.leave(connection, building, detached).await?;
            }
            return Ok((building.number, false));
        }
        // Nothing else was planned.
        if let Some(building) = &plan.building {
            return Err(RebuildError::Gone {
                generation: building.number,
            });
        }
        // What is planned of a partition is where that generation stood (I3).
        if live.generation != plan.live {
            return Err(RebuildError::Moved {
                planned: plan.live,
                live: live.generation,
            });
        }
        let made = made(&self.projection);
        let catalog = swap::catalog(connection, live.schema_oid).await?;
        let next = generation::next(connection, name).await?;
        let schema = format!("{name}__g{next}");
        let path = transaction::search_path(&schema, &self.projection.search_path);
        transaction::set_search_path(connection, &path).await?;
        schema::create(
            connection,
            &schema,
            &self.projection.setup,
            &self.projection.seed,
            self.projection.role.as_deref(),
        )
        .await?;
        if let Some(gate_in) = &self.projection.gate_in {
            gate_in.is_held(connection, &schema).await?;
        }
        if let Some(table) = swap::touched(connection, live.schema_oid).await? {
            return Err(RebuildError::TouchesLive(table)); // I8
        }
        if swap::catalog(connection, live.schema_oid).await? != catalog {
            return Err(RebuildError::RedefinesLive(live.schema_name)); // I8
        }
        transaction::set_search_path(connection, transaction::OWN_SEARCH_PATH).await?;
        let number = generation::insert(connection, name, false, &schema, &made).await?;
        position::begin(connection, name, number, &plan.starts()).await?;
        generation::detach(connection, name, number, detached).await?;
        let offsets = plan
            .partitions
            .iter()
            .map(|p| (p.partition.to_string(), p.from.into()))
            .collect::<serde_json::Map<_, _>>();
        let record = Operation {
            id: Uuid::new_v4(),
            kind: "rebuild",
            projection: name,
            who: &self.who,
            arguments: json!({
                "entity": self.entity(),
                "accept_truncated": accept_truncated,
                "detached": detached.map(Detached::name),
                "accepted": plan.obstacles.iter().map(|o| &*o.what).collect::<Vec<_>>(),
            }),
            before: json!({ "generation": live.generation, "definition": live.definition }),
            after: json!({ "building": number, "definition": made.definition, "next_offset": offsets }),
        };
        operation::insert(connection, &record).await?;
        Ok((number, true))
    }

    /// Leaves a build that is under way to the service, which tries again what was in its way; or takes it back.
    pub(super) async fn leave(
        &self,
        connection: &mut PgConnection,
        building: &Beside,
        detached: Option<Detached>,
    ) -> Result<(), RebuildError> {
        let (name, number) = (self.name(), building.number);
        generation::detach(connection, name, number, detached).await?;
        position::resume(connection, name, number, false).await?;
        let told = |detached: Option<Detached>| json!({ "building": number, "detached": detached.map(Detached::name) });
        let record = Operation {
            id: Uuid::new_v4(),
            kind: "rebuild",
            projection: name,
            who: &self.who,
            arguments: json!({}),
            before: told(building.detached()),
            after: told(detached),
        };
        operation::insert(connection, &record).await?;
        Ok(())
    }

    /// Takes a build back from the service, whose processes leave it alone from then on.
    pub(crate) async fn take_back(&self, builder: &mut Builder) -> Result<(), RebuildError> {
        if builder.generation.detached().is_none() {
            return Ok(());
        }
        let mut connection = self.connect().await?;
        let application = format!("tidegate rebuild {}", self.name());
        let timeouts = &self.service.database.timeouts;
        let path = transaction::OWN_SEARCH_PATH;
        transaction::begin(&mut connection, path, &application, timeouts).await?;
        let done = async {
            let name = self.name();
            if store::projection::lock(&mut connection, name)
                .await?
                .is_none()
            {
                return Err(RebuildError::NotStarted(name.to_owned()));
            }
            self.leave(&mut connection, &builder.generation, None).await
        };
        let done = done.await;
        end(&mut connection, done, AROUND_COMMIT).await
    }

    /// Takes a former generation for the one that is built, or goes on with it: the same as a build from there on. None
    /// if it is live.
    pub(crate) async fn go_back(
        &self,
        connection: &mut PgConnection,
        to: i32,
    ) -> Result<Option<Beside>, RebuildError> {
        let name = self.name();
        let application = format!("tidegate rollback {name}");
        let timeouts = &self.service.database.timeouts;
        let path = transaction::OWN_SEARCH_PATH;
        transaction::begin(connection, path, &application, timeouts).await?;
        let done = self.take_former(connection, to).await;
        end(connection, done, AROUND_COMMIT).await
    }

    async fn take_former(
        &self,
        connection: &mut PgConnection,
        to: i32,
    ) -> Result<Option<Beside>, RebuildError> {
        let name = self.name();
        let Some(live) = store::projection::lock(connection, name).await? else {
            return Err(RebuildError::NotStarted(name.to_owned()));
        };
        // Repeated when it was done: without the number it would lead back again.
        if live.generation == to {
            return Ok(None);
        }
        let beside = generation::beside(connection, name).await?;
        let is_new = |beside: &&Beside| beside.is_building() && beside.number != to;
        if let Some(building) = beside.iter().find(is_new) {
            return Err(RebuildError::Obstacles(vec![Obstacle {
                what: format!("generation {} is being built", building.number),
                cure: format!("`tidegate rebuild abandon {name}` first"),
                may_be_accepted: false,
            }]));
        }
        let Some(former) = beside.iter().find(|beside| beside.number == to) else {
            let kept = beside.iter().map(|beside| beside.number.to_string());
            return Err(match beside.is_empty() {
                true => RebuildError::NothingKept(name.to_owned()),
                false => RebuildError::NotKept {
                    projection: name.to_owned(),
                    generation: to,
                    kept: kept.collect::<Vec<_>>().join(", "),
                },
            });
        };
        let former = former.clone();
        self.is_mine(&former)?;
        if former.is_building() {
            // Repeated after a crash, or an answer that was lost.
            return match former.live_at {
                Some(_) => Ok(Some(former)),
                None => Err(RebuildError::Obstacles(vec![Obstacle {
                    what: format!("generation {to} is being built, and has never been live"),
                    cure: format!("`tidegate rebuild cut-over {name}` makes it so"),
                    may_be_accepted: false,
                }])),
            };
        }
        let marks = position::marks(connection, name, &[live.generation, former.number]).await?;
        let (of_live, of_former): (Vec<_>, Vec<_>) = marks
            .iter()
            .partition(|mark| mark.generation == live.generation);
        for mark in of_former {
            let same = of_live.iter().find(|other| other.of() == mark.of());
            if same.is_none() {
                return Err(RebuildError::Obstacles(vec![Obstacle {
                    what: format!(
                        "generation {} has read {}, which the live one does not: it cannot come to stand where that stands",
                        former.number,
                        mark.of()
                    ),
                    cure: format!(
                        "`tidegate rebuild start {name}` with the former definition builds it anew"
                    ),
                    may_be_accepted: false,
                }]));
            }
            if same.is_some_and(|other| other.incarnation != mark.incarnation) {
                return Err(RebuildError::OtherLog {
                    topic: mark.topic.clone(),
                    generation: former.number,
                });
            }
        }
        generation::set_state(connection, name, former.number, State::Building).await?;
        let record = Operation {
            id: Uuid::new_v4(),
            kind: "rollback",
            projection: name,
            who: &self.who,
            arguments: json!({}),
            before: json!({ "generation": live.generation }),
            after: json!({ "building": former.number }),
        };
        operation::insert(connection, &record).await?;
        Ok(Some(former))
    }
}
