//! One entity made anew: a build in which the events of all others are filtered, and whose rows then take the place of
//! that entity's rows in the live tables, in one transaction.
//!
//! What a build does is what this does: it reads what the live generation has passed, in a schema of its own, and sends
//! nothing. Only the end is another one. The live generation is held up as for a cut-over, so both have applied the same
//! records of the entity; then rows, gate, event ids, dead letters and messages of the entity go over, the build is
//! dropped, and whoever works for the live generation claims again.
//!
//! It rests on what the projection says of its tables (`entity_rows`): that each row is made of the events of one
//! entity. That is checked as far as it shows: every table is named, and nothing in the build is another one's.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::cut_over::{Hold, level};
use super::plan::refused;
use super::{Builder, Obstacle, RebuildError, Rebuilder};
use crate::failpoint;
use crate::projection::{First, Gate};
use crate::runtime::start::made;
use crate::store::entity::{self, Generations, Rows, Table};
use crate::store::generation::{self, State};
use crate::store::operation::Operation;
use crate::store::projection::Live;
use crate::store::{
    self, Offsets, dead_letter, gate, held, operation, outbox, position, swap, transaction,
};
use crate::types::TopicPartition;

/// What an operator says yes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accept {
    /// Fewer rows than there were.
    pub(crate) fewer: bool,
    /// Another order of events than they had when they were live.
    pub(crate) order: bool,
}

/// What became of an entity's rows.
#[derive(Clone, Debug)]
pub(crate) struct Replaced {
    pub(crate) operation: Uuid,
    /// Each table, with the rows that were there and those that are there now.
    pub(crate) tables: Vec<(String, u64, u64)>,
    /// Dead letters that are applied now.
    pub(crate) letters: usize,
    pub(crate) messages: usize,
    /// How long nothing could be applied.
    pub(crate) pause: Duration,
}

impl Rebuilder {
    /// The only entity that this is about, if it is.
    pub(super) fn entity(&self) -> Option<&str> {
        self.projection.only.as_deref()
    }

    /// Rows go into tables that must be the same ones, and beside rows of the same handler.
    pub(super) fn of_same_definition(&self, live: &Live, obstacles: &mut Vec<Obstacle>) {
        let mut whole = (*self.projection).clone();
        whole.only = None;
        whole.only_in.clear();
        let mine = made(&whole);
        if live.definition != mine.definition || live.setup != mine.setup {
            obstacles.push(refused(
                "the live tables were made by another definition, or another setup, than this process has".to_owned(),
                "run it with the configuration, or the binary, of the service; `tidegate rebuild start` makes all tables anew".to_owned(),
            ));
        }
        if self.projection.writes_elsewhere {
            obstacles.push(refused(
                "it writes to tables outside its schema (`writes_elsewhere`), so what is in them would be counted twice".to_owned(),
                "fill those from a projection of their own".to_owned(),
            ));
        }
    }

    /// Only a gate that knows the first sequence tells that a partition was left out which the entity has been in: others
    /// see how far its events go, and not where they begin.
    pub(super) fn of_choice(
        &self,
        chosen: &[TopicPartition],
        logs: &[(TopicPartition, crate::kafka::Watermarks)],
        obstacles: &mut Vec<Obstacle>,
    ) {
        let knows_the_first = matches!(
            self.projection.gate,
            Gate::Next {
                first: First::At(_)
            }
        );
        if !chosen.is_empty() && !knows_the_first {
            obstacles.push(refused(
                "nothing tells whether the entity was in other partitions too: only gate `next` with a `first` that is a number does"
                    .to_owned(),
                "leave out --partition: all are read".to_owned(),
            ));
        }
        for partition in chosen {
            if !logs.iter().any(|(known, _)| known == partition) {
                obstacles.push(refused(
                    format!("{partition} is none that the projection reads"),
                    "`tidegate status` lists them".to_owned(),
                ));
            }
        }
    }

    /// Whether each row of the live tables is said to be an entity's, and can be replaced.
    pub(super) async fn of_tables(
        &self,
        connection: &mut PgConnection,
        live: &Live,
        obstacles: &mut Vec<Obstacle>,
    ) -> Result<(), RebuildError> {
        let name = self.name();
        let (said, entity_type) = (&self.projection.entity_rows, self.projection.entity_type);
        if said.is_empty() {
            obstacles.push(refused(
                "nobody has said that each row of its tables is made of the events of one entity".to_owned(),
                format!("if that is so, name them with their columns in [projections.{name}]: entity_rows = [\"table.column\"]"),
            ));
            return Ok(());
        }
        let tables = entity::tables(connection, live.schema_oid).await?;
        let cure = || format!("`entity_rows` of [projections.{name}] names every table once");
        for (table, column) in said {
            match tables.iter().find(|known| known.name == *table) {
                None => obstacles.push(refused(format!("there is no table `{table}`"), cure())),
                Some(known) => match known.tells_apart(column, entity_type.sql()) {
                    None => obstacles.push(refused(
                        format!("table `{table}` has no column `{column}`"),
                        cure(),
                    )),
                    Some(false) => obstacles.push(refused(
                        format!("column `{column}` of table `{table}` is not of the type that entities are of ({entity_type}), or compares by a collation that is not deterministic: it may have one value for several entities"),
                        "`tidegate rebuild start` makes all tables anew".to_owned(),
                    )),
                    Some(true) => {}
                },
            }
        }
        for Table { name, counted, .. } in &tables {
            if said.iter().filter(|(table, _)| table == name).count() != 1 {
                obstacles.push(refused(
                    format!("table `{name}` may have rows that are made of the events of several entities: it is not in `entity_rows`, or there twice"),
                    "`tidegate rebuild start` makes all tables anew".to_owned(),
                ));
            }
            if let Some(column) = counted {
                obstacles.push(refused(
                    format!("column `{column}` of table `{name}` is numbered by Postgres: the rows would get other numbers"),
                    "`tidegate rebuild start` makes all tables anew".to_owned(),
                ));
            }
        }
        for fires in entity::triggers(connection, live.schema_oid).await? {
            obstacles.push(refused(
                format!("{fires} would run once more, for rows that are deleted and copied"),
                "disable it for as long, or `tidegate rebuild start` makes all tables anew"
                    .to_owned(),
            ));
        }
        for action in entity::actions(connection, live.schema_oid).await? {
            obstacles.push(refused(
                format!("foreign key {action} would delete or change other rows when the entity's are deleted"),
                "`tidegate rebuild start` makes all tables anew".to_owned(),
            ));
        }
        Ok(())
    }

    /// Has the rows that were built take the place of the entity's rows in the live tables.
    pub(crate) async fn replace_entity(
        &self,
        builder: &mut Builder,
        accept: Accept,
    ) -> Result<Replaced, RebuildError> {
        let Hold {
            mut connection,
            began,
        } = self.hold(builder).await?;
        match self.replace(&mut connection, builder, accept).await {
            Ok(replaced) => {
                failpoint::reach(failpoint::REBUILD_BEFORE_CUT_OVER);
                transaction::commit(&mut connection)
                    .await
                    .map_err(RebuildError::Unknown)?;
                failpoint::reach(failpoint::REBUILD_AFTER_CUT_OVER);
                Ok(Replaced {
                    pause: began.elapsed(),
                    ..replaced
                })
            }
            Err(error) => {
                // What went wrong may have cost the connection, which rolls back too.
                let _ = transaction::rollback(&mut connection).await;
                Err(error)
            }
        }
    }

    /// Locks come in the order of all operator actions: generation locks, projection and generation rows, gate, tables,
    /// outbox, dead letters, positions.
    async fn replace(
        &self,
        connection: &mut PgConnection,
        builder: &Builder,
        accept: Accept,
    ) -> Result<Replaced, RebuildError> {
        let (name, new) = (self.name(), &builder.generation);
        let entity = self.entity().unwrap_or_default();
        let live = self.lock_both(connection, builder, None).await?;
        // I5: whatever runs here sends nothing.
        transaction::forbid_emit(connection).await?;
        let mut obstacles = Vec::new();
        self.of_tables(connection, &live, &mut obstacles).await?;
        if !obstacles.is_empty() {
            return Err(RebuildError::Obstacles(obstacles));
        }
        let generations = Generations {
            projection: name,
            live: live.generation,
            build: new.number,
            entity,
            counts_copies: self.projection.gate == Gate::None && self.projection.event_id.is_none(),
        };
        let strays = entity::strays(connection, generations).await?;
        if !strays.is_empty() {
            return Err(RebuildError::Strays(strays));
        }
        let (here, there) = (&*live.schema_name, &*new.schema_name);
        let stood = self.stands_in(connection, here, entity).await?;
        let stands = self.stands_in(connection, there, entity).await?;
        self.is_complete(stood, stands)?;
        let (partitions, stale) = entity::order(connection, generations).await?;
        if !accept.order && self.order_matters(partitions, stale) {
            return Err(RebuildError::Order { partitions, stale });
        }

        let tables = self.replace_rows(connection, &live, there, entity).await?;
        let fewer = tables.iter().filter(|(_, before, after)| after < before);
        let fewer: Vec<String> = fewer
            .map(|(table, before, after)| format!("{table}: {before} rows before, {after} built"))
            .collect();
        if !fewer.is_empty() && !accept.fewer {
            return Err(RebuildError::Fewer(fewer));
        }
        entity::replace_gate(connection, there, here, entity).await?; // I4

        // I5: as at a cut-over, but for this entity's records alone.
        let path = transaction::search_path(there, &[]);
        transaction::set_search_path(connection, &path).await?;
        let held = held::records(connection).await?;
        let messages = held::take(connection, name).await?;
        transaction::set_search_path(connection, transaction::OWN_SEARCH_PATH).await?;
        if !messages.is_empty() {
            outbox::insert(connection, &self.projection.source(), &messages).await?;
        }
        let resolved = entity::resolve(connection, generations).await?; // I6
        let letters = resolved.len();
        let spent: BTreeSet<Offsets> = held.into_iter().chain(resolved).collect();
        let spent: Vec<Offsets> = spent.into_iter().collect();
        store::spend_right_to_emit(connection, name, &spent).await?;
        failpoint::reach(failpoint::REBUILD_AFTER_MESSAGES);

        // I3: whoever works for either has read the old rows, or what is dropped here.
        let from = position::reset(connection, name, live.generation).await?;
        let to = position::reset(connection, name, new.number).await?;
        level(&from, &to, &self.projection.topics, new.number)?;
        swap::drop(connection, new.schema_oid, there).await?;
        dead_letter::forget(connection, name, new.number).await?;
        generation::set_state(connection, name, new.number, State::Abandoned).await?;
        let rows = |now: bool| {
            let count = |(table, before, after): &(String, u64, u64)| {
                (table.clone(), if now { *after } else { *before }.into())
            };
            tables.iter().map(count).collect::<serde_json::Map<_, _>>()
        };
        let record = Operation {
            id: Uuid::new_v4(),
            kind: "rebuild-entity",
            projection: name,
            who: &self.who,
            arguments: json!({ "entity": entity, "built": new.number, "accept_fewer": accept.fewer, "accept_order": accept.order }),
            before: json!({ "generation": live.generation, "sequence": stood, "rows": rows(false) }),
            after: json!({ "generation": live.generation, "sequence": stands, "rows": rows(true), "letters": letters, "messages": messages.len() }),
        };
        operation::insert(connection, &record).await?;
        Ok(Replaced {
            operation: record.id,
            tables,
            letters,
            messages: messages.len(),
            pause: Duration::ZERO,
        })
    }

    async fn stands_in(
        &self,
        connection: &mut PgConnection,
        schema: &str,
        entity: &str,
    ) -> Result<Option<i64>, RebuildError> {
        let path = transaction::search_path(schema, &[]);
        transaction::set_search_path(connection, &path).await?;
        // A row in `_gate` has the last word.
        let mut stands = gate::read(connection, entity).await?.map(|it| it.sequence);
        if let (None, Some(gate_in)) = (stands, &self.projection.gate_in) {
            let rows = gate_in.read(connection, &[entity]).await;
            let rows = rows.map_err(|error| store::Error::Unexpected(error.to_string()))?;
            stands = rows.walk().sequence(entity);
        }
        transaction::set_search_path(connection, transaction::OWN_SEARCH_PATH).await?;
        Ok(stands)
    }

    /// A gate that has come less far tells that events are missing: they are not in the log any more, or in a partition
    /// that was not read.
    fn is_complete(&self, live: Option<i64>, built: Option<i64>) -> Result<(), RebuildError> {
        let Some(live) = live.filter(|_| self.projection.gate != Gate::None) else {
            return Ok(());
        };
        match built {
            Some(built) if built >= live => Ok(()),
            _ => Err(RebuildError::Incomplete { live, built }),
        }
    }

    /// Between partitions there is no order but that of the gate. `next` has one, from its first sequence on. Otherwise all
    /// events were applied, in the order of their sequences, if none of them was dropped.
    fn order_matters(&self, partitions: i64, stale: i64) -> bool {
        let is_told = match self.projection.gate {
            Gate::Next {
                first: First::At(_),
            } => true,
            Gate::Newest | Gate::Next { first: First::Any } => stale == 0,
            Gate::None => false,
        };
        partitions > 1 && !is_told
    }

    async fn replace_rows(
        &self,
        connection: &mut PgConnection,
        live: &Live,
        build: &str,
        entity: &str,
    ) -> Result<Vec<(String, u64, u64)>, RebuildError> {
        let known = entity::tables(connection, live.schema_oid).await?;
        let rows = |(table, column): &'_ (String, String)| {
            let table = known.iter().find(|known| known.name == *table);
            table.map(|table| (table, column.clone()))
        };
        let said: Vec<(&Table, String)> = self
            .projection
            .entity_rows
            .iter()
            .filter_map(rows)
            .collect();
        let mut replaced = Vec::new();
        for (table, column) in &said {
            let rows = Rows {
                table,
                column,
                entity,
            };
            let strangers = rows.strangers(connection, build).await?;
            if strangers > 0 {
                return Err(RebuildError::Strangers {
                    table: table.name.clone(),
                    column: column.clone(),
                    rows: strangers,
                });
            }
            let before = rows.delete(connection, &live.schema_name).await?;
            replaced.push((table.name.clone(), before, 0));
        }
        for ((table, column), (.., after)) in said.iter().zip(&mut replaced).rev() {
            let rows = Rows {
                table,
                column,
                entity,
            };
            *after = rows.copy(connection, build, &live.schema_name).await?;
        }
        // Under a gate its sequence tells that the events were met.
        let sum = |of: fn(&(String, u64, u64)) -> u64| replaced.iter().map(of).sum::<u64>();
        let (before, after) = (sum(|it| it.1), sum(|it| it.2));
        if self.projection.gate == Gate::None && before > 0 && after == 0 {
            return Err(RebuildError::NothingBuilt { rows: before });
        }
        Ok(replaced)
    }
}
