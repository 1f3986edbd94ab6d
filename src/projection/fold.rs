//! Folds: a projection as a pure function of one entity's state and an event.
//!
//! The states of a batch's entities are loaded in one statement, folded in memory, entity by entity, and written
//! in one more; a third one deletes those that are gone. Nobody else can have read a state and not yet written it:
//! the entities' gate rows are locked before the states are read, also where there is no gate.
//!
//! There is deliberately neither a connection nor an `async` in a fold: what it may know is the state and the event.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::BoxFuture;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgHasArrayType, PgRow};
use sqlx::{Arguments as _, AssertSqlSafe, Encode, FromRow, Postgres, Row as _, Type};
use tracing::info;

use super::bulk::{Bulk, Fields, Statements, States, types};
use super::context::Context;
use super::definition::Gate;
use super::entity_type::EntityType;
use super::events::{Batch, Event, Ref};
use super::exact::Exact;
use super::gate_in::{GateIn, GateRows, Place, SEQUENCE};
use super::handler::{Handler, HandlerError};
use crate::engine::Class;
use crate::types::Message;

/// Applies events by folding them into the state of their entity.
///
/// ```
/// # use serde::Deserialize;
/// # use tidegate::projection::{Columns, Event, Fold, HandlerError, Messages, State};
/// #[derive(Default, sqlx::FromRow)]
/// struct Balance {
///     amount: i64,
/// }
///
/// impl State for Balance {
///     const TABLE: &'static str = "balance"; // CREATE TABLE balance (account text COLLATE "C" PRIMARY KEY, amount bigint NOT NULL)
///     const KEY: &'static str = "account";
///
///     fn columns(columns: &mut Columns<'_, Self>) {
///         columns.column("amount", |balance| balance.amount);
///     }
/// }
///
/// #[derive(Deserialize)]
/// struct Entry {
///     amount: i64,
/// }
///
/// struct Balances;
///
/// impl Fold for Balances {
///     type State = Balance;
///
///     fn fold(
///         &self,
///         state: Option<Balance>,
///         event: &Event<'_>,
///         _messages: &mut Messages,
///     ) -> Result<Option<Balance>, HandlerError> {
///         let entry: Entry = event.json()?;
///         let mut balance = state.unwrap_or_default();
///         balance.amount += entry.amount;
///         Ok(Some(balance))
///     }
/// }
/// ```
pub trait Fold: Send + Sync + 'static {
    /// What is kept of an entity.
    type State: State;

    /// The state after an event; none if there is none before, or is to be none after it.
    ///
    /// An error or a panic is this event's fault. Called again with the same state and event after a failure of
    /// another one: a fold that reads a clock or draws a number gives other tables at every rebuild.
    fn fold(
        &self,
        state: Option<Self::State>,
        event: &Event<'_>,
        messages: &mut Messages,
    ) -> Result<Option<Self::State>, HandlerError>;
}

/// What is kept of an entity: a row of a table that the projection's setup creates.
///
/// It is read by [`FromRow`], by the names of its fields, and written by [`columns`](Self::columns), so the two must
/// name the same columns. Where a column rounds or cuts, or a trigger changes the row, the state is read back after each
/// event of its entity; what it loses on its way to the column, such as nanoseconds, it should not have. For a state that is a document, one `jsonb` column will do: `#[sqlx(json)]` on the field, and
/// [`sqlx::types::Json`] around the value.
pub trait State: for<'r> FromRow<'r, PgRow> + Send + Sync + 'static {
    /// The table, in the projection's schema.
    const TABLE: &'static str;
    /// Its primary key: the entity.
    const KEY: &'static str;
    /// The key's type. Of `bigint` and `uuid`, values that are equal are one entity, however events spell them.
    const KEY_TYPE: EntityType = EntityType::Text;

    /// Names every other column, with its value.
    fn columns(columns: &mut Columns<'_, Self>);
}

/// Takes in the columns of a [`State`].
pub struct Columns<'s, S> {
    states: Vec<&'s S>,
    names: Vec<&'static str>,
    /// One array for each column.
    arguments: PgArguments,
    /// Instead of arrays, the fields of the only state.
    fields: Option<Fields>,
    failed: Option<BoxDynError>,
}

impl<'s, S> Columns<'s, S> {
    fn new(states: impl IntoIterator<Item = &'s S>) -> Self {
        Self {
            states: states.into_iter().collect(),
            names: Vec::new(),
            arguments: PgArguments::default(),
            fields: None,
            failed: None,
        }
    }

    /// A column, and its value in a state. The value's type says which type the column has.
    pub fn column<T>(&mut self, name: &'static str, value: impl Fn(&'s S) -> T)
    where
        T: Encode<'s, Postgres> + Type<Postgres> + PgHasArrayType,
    {
        self.names.push(name);
        let mut values = self.states.iter().map(|state| value(state));
        let Some(fields) = &mut self.fields else {
            let values = values.collect();
            return self.push(values);
        };
        if let Some(value) = values.next()
            && let Err(error) = fields.push(&value)
        {
            self.failed.get_or_insert(error);
        }
    }

    fn push<'q, T>(&mut self, values: Vec<T>)
    where
        T: Encode<'q, Postgres> + Type<Postgres> + PgHasArrayType,
    {
        if let Err(error) = self.arguments.add(values) {
            self.failed.get_or_insert(error);
        }
    }
}

impl<S: State> Columns<'_, S> {
    /// The arrays that a statement is sent with: entities, and one for each column.
    pub(super) fn arrays(
        entities: Vec<&str>,
        states: Vec<&S>,
    ) -> Result<PgArguments, HandlerError> {
        let mut columns = Columns::new(states);
        columns.push(entities);
        S::columns(&mut columns);
        columns.end().map(|columns| columns.arguments)
    }

    /// One state as COPY takes it, without its key.
    pub(super) fn fields(state: &S) -> Result<Fields, HandlerError> {
        let mut columns = Columns::new([state]);
        columns.fields = Some(Fields::default());
        S::columns(&mut columns);
        columns
            .end()
            .map(|columns| columns.fields.unwrap_or_default())
    }

    fn end(self) -> Result<Self, HandlerError> {
        match self.failed {
            None => Ok(self),
            Some(error) => Err(failed("writing states", sqlx::Error::Encode(error))),
        }
    }
}

/// The messages of one event.
///
/// They leave in the event's name, if its batch commits, under the rules of [`Context::emit`].
#[derive(Clone, Debug, Default)]
pub struct Messages {
    pub(super) emitted: Vec<(String, Message)>,
}

impl Messages {
    /// Puts a message in the outbox. `name` distinguishes the messages that one event may cause.
    pub fn emit(&mut self, name: &str, message: Message) {
        self.emitted.push((name.to_owned(), message));
    }
}

/// A [`Fold`] behind a pointer, with its statements.
pub(crate) struct Folded<F> {
    pub(super) fold: Arc<F>,
    pub(super) exact: Exact,
    /// Whether it was said that the table is not.
    is_told: AtomicBool,
    load: Arc<str>,
    store: Arc<str>,
    delete: Arc<str>,
    /// The same with the gate in the row.
    gate_in: GateIn,
    insert: Arc<str>,
    /// Where a row may be there all the same, and that is no error of the statement.
    insert_missing: Arc<str>,
    update: Arc<str>,
    /// Wherever the rows are by now.
    update_moved: Arc<str>,
    /// The same from memory.
    pub(super) bulk: Arc<Statements>,
}

/// What a batch has made of its entities' states.
struct Changes<'e, S> {
    kept: Kept<'e, S>,
    /// With the gate in the row: those that had one.
    met: Kept<'e, S>,
    gone: Vec<&'e str>,
}

/// States to be written; entities sorted.
struct Kept<'e, S> {
    entities: Vec<&'e str>,
    states: Vec<S>,
    /// With the gate in the row: the sequence of each one's last event, the one that its row carried before, and where
    /// that stood.
    sequences: Vec<i64>,
    previous: Vec<i64>,
    places: Vec<Place>,
}

impl<S> Default for Kept<'_, S> {
    fn default() -> Self {
        Self {
            entities: Vec::new(),
            states: Vec::new(),
            sequences: Vec::new(),
            previous: Vec::new(),
            places: Vec::new(),
        }
    }
}

impl<S: State> Kept<'_, S> {
    /// The arrays that a statement is sent with: entities, one for each column, and what is compared.
    fn into_arguments(self, compared: bool) -> Result<PgArguments, HandlerError> {
        let mut columns = Columns::new(&self.states);
        columns.push(self.entities);
        S::columns(&mut columns);
        if compared {
            columns.push(self.sequences);
            if !self.previous.is_empty() {
                columns.push(self.previous);
                columns.push(self.places);
            }
        }
        columns.end().map(|columns| columns.arguments)
    }
}

impl<F: Fold> Folded<F> {
    pub(crate) fn new(fold: F) -> Self {
        let mut columns = Columns::<F::State>::new([]);
        F::State::columns(&mut columns);
        let (table, key) = (quoted(F::State::TABLE), quoted(F::State::KEY));
        let key_type = F::State::KEY_TYPE;
        let (text, asked) = (key_type.as_text(&key), key_type.array("$1"));
        let (mut listed, mut arrays, mut set) = (String::new(), String::new(), Vec::new());
        let (mut named, mut compared) = (String::new(), format!("{SEQUENCE} = m.sequence"));
        let mut number = 1;
        for name in &columns.names {
            number += 1;
            let name = quoted(name);
            let _ = write!(listed, ", {name}");
            let _ = write!(arrays, ", unnest(${number})");
            set.push(format!("{name} = excluded.{name}"));
            let _ = write!(named, ", unnest(${number}) AS c{number}");
            let _ = write!(compared, ", {name} = m.c{number}");
        }
        let (sequence, previous, place) = (number + 1, number + 2, number + 3);
        let met = match set.is_empty() {
            true => "NOTHING".to_owned(),
            false => format!("UPDATE SET {}", set.join(", ")),
        };
        let load: Arc<str> =
            format!("SELECT {text}{listed} FROM {table} WHERE {key} = ANY ({asked})").into();
        let store: Arc<str> = format!(
            "INSERT INTO {table} ({key}{listed}) SELECT unnest({asked}){arrays} ON CONFLICT ({key}) DO {met}"
        )
        .into();
        let delete: Arc<str> = format!("DELETE FROM {table} WHERE {key} = ANY ({asked})").into();
        let exact = Exact::new(&table, F::State::KEY, key_type, &columns.names);
        let bulk = Statements {
            load: Arc::clone(&load),
            store: Arc::clone(&store),
            delete: Arc::clone(&delete),
            copy: format!("COPY {table} ({key}{listed}) FROM STDIN WITH (FORMAT binary)").into(),
            columns: columns.names,
            types: types(&table),
            is_empty: format!(
                "SELECT NOT EXISTS (SELECT FROM {table}) AND NOT EXISTS (SELECT FROM _gate)"
            )
            .into(),
        };
        let insert = format!(
            "INSERT INTO {table} ({key}{listed}, {SEQUENCE}) SELECT unnest({asked}){arrays}, unnest(${sequence})"
        );
        let update = format!(
            "UPDATE {table} AS s SET {compared} FROM (SELECT unnest({asked}) AS key{named}, unnest(${sequence}) AS sequence, unnest(${previous}) AS previous, unnest(${place}) AS place) AS m WHERE s.{key} = m.key AND s.{SEQUENCE} = m.previous"
        );
        Self {
            fold: Arc::new(fold),
            exact,
            is_told: AtomicBool::new(false),
            bulk: Arc::new(bulk),
            load,
            store,
            delete,
            gate_in: GateIn::new(F::State::TABLE, F::State::KEY, key_type, &listed),
            insert_missing: format!("{insert} ON CONFLICT ({key}) DO NOTHING").into(),
            insert: insert.into(),
            // By their places rows are found in half the time that it takes by the index.
            update: format!("{update} AND s.ctid = m.place").into(),
            update_moved: update.into(),
        }
    }

    /// The table of states, for the gate to be in.
    pub(crate) fn gate_in(&self) -> GateIn {
        self.gate_in.clone()
    }

    /// Where the table may make another row of a state, it is read back after each event of an entity: or it would matter where
    /// batches are cut.
    async fn apply_batch(
        &self,
        ctx: &mut Context<'_>,
        batch: &Batch<'_>,
    ) -> Result<(), HandlerError> {
        if !has_repeats(batch) || self.is_exact(ctx).await? {
            return self.apply_at_once(ctx, batch).await;
        }
        let mut rest: Vec<(&str, &[Ref])> = entities(batch).collect();
        let mut gate_rows: Option<GateRows> = None;
        while !rest.is_empty() {
            let by_entity: Vec<Ref> = rest.iter().map(|(_, refs)| refs[0]).collect();
            let round = Batch {
                by_entity: &by_entity,
                gate_rows: gate_rows.as_ref().or(batch.gate_rows),
                ..*batch
            };
            self.apply_at_once(ctx, &round).await?;
            rest.retain_mut(|(_, refs)| {
                *refs = &refs[1..];
                !refs.is_empty()
            });
            if let Some(before) = batch.gate_rows
                && !rest.is_empty()
            {
                let entities: Vec<&str> = rest.iter().map(|(entity, _)| *entity).collect();
                let rows = self.gate_in.read(ctx.connection(), &entities).await?;
                gate_rows = Some(rows.alone(before.alone));
            }
        }
        Ok(())
    }

    /// Asked of each batch: the table may be altered while the process runs, and is another one after a cut-over.
    async fn is_exact(&self, ctx: &mut Context<'_>) -> Result<bool, HandlerError> {
        let why_not = self.exact.why_not(ctx.connection()).await?;
        if let Some(why) = &why_not
            && !self.is_told.swap(true, Ordering::Relaxed)
        {
            let table = F::State::TABLE;
            info!(
                table,
                why, "states are read back after each event of an entity"
            );
        }
        Ok(why_not.is_none())
    }

    async fn apply_at_once(
        &self,
        ctx: &mut Context<'_>,
        batch: &Batch<'_>,
    ) -> Result<(), HandlerError> {
        if let Some(rows) = batch.gate_rows {
            return self.apply_compared(ctx, batch, rows).await;
        }
        let asked: Vec<&str> = entities(batch).map(|(entity, _)| entity).collect();
        let loaded = sqlx::query(AssertSqlSafe(Arc::clone(&self.load)))
            .bind(&asked)
            .fetch_all(ctx.connection())
            .await
            .map_err(|error| failed("loading states", error))?;
        let Changes { kept, gone, .. } = self.fold_loaded(ctx, batch, &loaded)?;
        drop(loaded);
        if !gone.is_empty() {
            sqlx::query(AssertSqlSafe(Arc::clone(&self.delete)))
                .bind(&gone)
                .execute(ctx.connection())
                .await
                .map_err(|error| failed("deleting states", error))?;
        }
        if !kept.entities.is_empty() {
            let columns = kept.into_arguments(false)?;
            sqlx::query_with(AssertSqlSafe(Arc::clone(&self.store)), columns)
                .execute(ctx.connection())
                .await
                .map_err(|error| failed("writing states", error))?;
        }
        Ok(())
    }

    /// The same with the gate in the row.
    async fn apply_compared(
        &self,
        ctx: &mut Context<'_>,
        batch: &Batch<'_>,
        rows: &GateRows,
    ) -> Result<(), HandlerError> {
        let mut walk = rows.walk();
        let found = |entity: &str| {
            let (sequence, row) = walk.find(entity)?;
            Some((Some(sequence), row))
        };
        let changes = self.fold_all(ctx, batch, found)?;
        if let Some(entity) = changes.gone.first() {
            return Err(HandlerError::new(
                Class::Halt,
                format!(
                    "the fold returned no state for entity `{entity}`, whose row carries its gate and must stay; return a state that says so, or use `Projection::fold`"
                ),
            ));
        }
        // Somebody else may make a row meanwhile, or move one. To look is half of the work, and it hardly ever happens: then
        // the index or the count says so, and the batch is applied again where no other batch can be in between.
        let (insert, update) = match rows.alone {
            true => (&self.insert_missing, &self.update_moved),
            false => (&self.insert, &self.update),
        };
        let new = changes.kept.entities.len();
        let inserted = self.write_compared(ctx, insert, changes.kept).await;
        match inserted {
            Err(error) if !rows.alone && is_met(&error) => {
                return Err(missed(F::State::TABLE, 0, new));
            }
            inserted => inserted?,
        }
        self.write_compared(ctx, update, changes.met).await
    }

    /// Writes states whose rows are still as they were read, or were not there (I4).
    async fn write_compared(
        &self,
        ctx: &mut Context<'_>,
        statement: &Arc<str>,
        kept: Kept<'_, F::State>,
    ) -> Result<(), HandlerError> {
        if kept.entities.is_empty() {
            return Ok(());
        }
        let entities = kept.entities.len();
        let arguments = kept.into_arguments(true)?;
        let done = sqlx::query_with(AssertSqlSafe(Arc::clone(statement)), arguments)
            .execute(ctx.connection())
            .await
            .map_err(|error| failed("writing states", error))?;
        match done.rows_affected() == entities as u64 {
            true => Ok(()),
            false => Err(missed(F::State::TABLE, done.rows_affected(), entities)),
        }
    }

    fn fold_loaded<'e>(
        &self,
        ctx: &mut Context<'_>,
        batch: &Batch<'e>,
        loaded: &[PgRow],
    ) -> Result<Changes<'e, F::State>, HandlerError> {
        let keyed = loaded.iter().map(|row| Ok((row.try_get(0)?, row)));
        let mut rows: Vec<(&str, &PgRow)> = keyed.collect::<sqlx::Result<_>>()?;
        rows.sort_unstable_by_key(|(key, _)| *key);
        let mut rows = rows.into_iter().peekable();
        let found = |entity: &str| {
            let (_, row) = rows.next_if(|(key, _)| *key == entity)?;
            Some((None, row))
        };
        let changes = self.fold_all(ctx, batch, found)?;
        match rows.next() {
            None => Ok(changes),
            Some((key, _)) => Err(HandlerError::new(
                Class::Halt,
                format!(
                    "table `{}` has answered with `{key}`, which is no entity that it was asked for; its key `{}` must be `{}`",
                    F::State::TABLE,
                    F::State::KEY,
                    F::State::KEY_TYPE
                ),
            )),
        }
    }

    /// Folds each entity's events, in their order, into its state. `found` tells the row of an entity, and the sequence
    /// that it carries if it does.
    fn fold_all<'e, 'r>(
        &self,
        ctx: &mut Context<'_>,
        batch: &Batch<'e>,
        mut found: impl FnMut(&str) -> Option<(Option<i64>, &'r PgRow)>,
    ) -> Result<Changes<'e, F::State>, HandlerError> {
        let events = batch.events;
        let mut changes = Changes {
            kept: Kept::default(),
            met: Kept::default(),
            gone: Vec::new(),
        };
        for (entity, refs) in entities(batch) {
            let row = found(entity);
            let mut state = row
                .map(|(_, row)| F::State::from_row(row))
                .transpose()
                .map_err(|error| failed("reading a state", error))?;
            for reference in refs {
                ctx.attribute_to(Some(*reference));
                let mut messages = Messages::default();
                let event = Event::new(events, *reference);
                state = self.fold.fold(state, &event, &mut messages)?;
                for (name, message) in messages.emitted {
                    ctx.emit_ref(*reference, &name, message)?;
                }
            }
            let previous = row.and_then(|(previous, row)| Some((previous?, row)));
            match state {
                Some(state) => {
                    let kept = match previous {
                        Some(_) => &mut changes.met,
                        None => &mut changes.kept,
                    };
                    kept.entities.push(entity);
                    kept.states.push(state);
                    // One of several events is the newest: the last that was admitted.
                    let last = refs.last().and_then(|r| events.sequences[*r as usize]);
                    kept.sequences.extend(last);
                    if let Some((sequence, row)) = previous {
                        kept.previous.push(sequence);
                        let place =
                            Place::of(row).map_err(|error| failed("reading a state", error))?;
                        kept.places.push(place);
                    }
                }
                None if row.is_some() || batch.gate_rows.is_some() => changes.gone.push(entity),
                None => {}
            }
        }
        ctx.attribute_to(None);
        Ok(changes)
    }
}

/// The entities of a batch, sorted, each with its events in order.
fn entities<'e>(batch: &Batch<'e>) -> impl Iterator<Item = (&'e str, &'e [Ref])> {
    let events = batch.events;
    let same = |a: &Ref, b: &Ref| events.entity(*a) == events.entity(*b);
    let groups = batch.by_entity.chunk_by(same);
    groups.map(|refs| (events.entity(refs[0]), refs))
}

/// Whether some entity has several events.
fn has_repeats(batch: &Batch<'_>) -> bool {
    let entity = |event: Ref| batch.events.entity(event);
    batch
        .by_entity
        .windows(2)
        .any(|pair| entity(pair[0]) == entity(pair[1]))
}

/// Fewer rows were written than states, where the gate is in the row.
fn missed(table: &str, written: u64, states: usize) -> HandlerError {
    HandlerError::rows_missed(format!(
        "{written} rows of `{table}` were written for {states} states: a trigger, a rule or a policy of the table keeps rows from being written, or deletes them or changes their `{SEQUENCE}`"
    ))
}

/// Whether a row was there that was not to be.
fn is_met(error: &HandlerError) -> bool {
    let code = error.sql().and_then(crate::store::sqlstate);
    code.as_deref() == Some("23505")
}

pub(super) fn failed(doing: &str, error: sqlx::Error) -> HandlerError {
    HandlerError::from(error).within(doing)
}

/// A name as SQL takes it, whatever it is.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl<F: Fold> Handler for Folded<F> {
    fn sees_records(&self) -> bool {
        true
    }

    fn any_plan_will_do(&self) -> bool {
        true
    }

    fn keeps_states(&self) -> bool {
        true
    }

    fn entity_rows(&self) -> Option<(String, String)> {
        let table = <F::State as State>::TABLE;
        Some((table.to_owned(), <F::State as State>::KEY.to_owned()))
    }

    fn entity_type(&self) -> EntityType {
        <F::State as State>::KEY_TYPE
    }

    fn bulk(&self, gate: Gate) -> Option<Box<dyn Bulk>> {
        Some(Box::new(States::of(self, gate)?))
    }

    fn apply<'a>(
        &'a self,
        ctx: &'a mut Context<'_>,
        batch: &'a Batch<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(self.apply_batch(ctx, batch))
    }
}

#[cfg(test)]
mod tests;
