//! Gives up a generation that is not the live one.

use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{RebuildError, Rebuilder};
use crate::failpoint;
use crate::runtime::reposition::end;
use crate::store::generation::{self, Beside, State};
use crate::store::operation::Operation;
use crate::store::{self, dead_letter, operation, position, swap, transaction};

/// The failpoints around the COMMIT.
const AROUND_COMMIT: [&str; 2] = [
    failpoint::REBUILD_BEFORE_ABANDON,
    failpoint::REBUILD_AFTER_ABANDON,
];

/// What became of a generation that was given up.
#[derive(Clone, Debug)]
pub(crate) enum Aside {
    /// Its schema is gone.
    Dropped(Beside),
    /// It was the live one before: kept, for a rollback.
    Kept(Beside),
}

impl Rebuilder {
    /// Gives up what is being built, or with `former` the generations that are kept for a rollback. Whoever works on one
    /// is fenced.
    pub(crate) async fn abandon(
        &self,
        connection: &mut PgConnection,
        former: bool,
    ) -> Result<Vec<Aside>, RebuildError> {
        self.live(connection).await?;
        let beside = generation::beside(connection, self.name()).await?;
        let beside: Vec<Beside> = beside
            .into_iter()
            .filter(|beside| beside.is_building() != former)
            .collect();
        if beside.is_empty() {
            let name = self.name().to_owned();
            return Err(match former {
                true => RebuildError::NothingKept(name),
                false => RebuildError::NotBuilding(name),
            });
        }
        let mut done = Vec::new();
        for generation in beside {
            let application = format!("tidegate abandon {}", self.name());
            let timeouts = &self.service.database.timeouts;
            let path = transaction::OWN_SEARCH_PATH;
            transaction::begin(connection, path, &application, timeouts).await?;
            let given_up = self.give_up(connection, generation).await;
            done.push(end(connection, given_up, AROUND_COMMIT).await?);
        }
        Ok(done)
    }

    async fn give_up(
        &self,
        connection: &mut PgConnection,
        beside: Beside,
    ) -> Result<Aside, RebuildError> {
        let name = self.name();
        // The build's own lock: the live generation goes on.
        transaction::lock_generation(connection, &beside.schema_name).await?;
        if store::projection::lock(connection, name).await?.is_none() {
            return Err(RebuildError::NotStarted(name.to_owned()));
        }
        let now = generation::beside(connection, name).await?;
        let same = |other: &&Beside| {
            other.number == beside.number && other.is_building() == beside.is_building()
        };
        if now.iter().find(same).is_none() {
            return Err(RebuildError::Gone {
                generation: beside.number,
            });
        }
        position::reset(connection, name, beside.number).await?;
        let keep = beside.is_building() && beside.live_at.is_some();
        let state = match keep {
            true => State::Retired,
            false => {
                swap::drop(connection, beside.schema_oid, &beside.schema_name).await?; // I8
                if beside.live_at.is_none() {
                    dead_letter::forget(connection, name, beside.number).await?;
                }
                State::Abandoned
            }
        };
        generation::set_state(connection, name, beside.number, state).await?;
        let record = Operation {
            id: Uuid::new_v4(),
            kind: "abandon",
            projection: name,
            who: &self.who,
            arguments: json!({}),
            before: json!({ "generation": beside.number, "schema": beside.schema_name }),
            after: json!({ "kept": keep }),
        };
        operation::insert(connection, &record).await?;
        Ok(match keep {
            true => Aside::Kept(beside),
            false => Aside::Dropped(beside),
        })
    }
}
