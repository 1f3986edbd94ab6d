//! A fold's states in memory, over many batches: what a build takes in before it writes.
//!
//! A batch loads the states of its entities, folds, and writes them back, so that over a whole log each entity is loaded and
//! written again and again. Here its state and its gate stay in memory from its first event on, and are written once.
//!
//! Nothing here holds a lock. What was read is only believed: whoever writes compares each gate with what it was
//! believed to be ([`Bulk::moves`]), and throws all of it away if one has moved meanwhile (I4).
//!
//! There is deliberately no parking, no message and no way to take an event back: the first event that is not plain ends it,
//! and goes the ordinary way.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgRow};
use sqlx::{AssertSqlSafe, Encode, FromRow as _, PgConnection, Postgres, Row as _, Type};

use super::context::problem;
use super::definition::{First, Gate};
use super::events::{Event, Events, Outcome, Ref};
use super::exact::Exact;
use super::fold::{Columns, Fold, Folded, Messages, State, failed};
use super::handler::HandlerError;
use crate::engine::gate::{self, Admission};
use crate::store;
use crate::store::copy::Copy;
use crate::store::gate::{Move, Stands};

/// Rows that one statement writes, so that none of them runs into a timeout.
const ROWS_MAX: usize = 50_000;
/// Entities that a batch may add, as far as memory is reckoned.
const BATCH: usize = 10_000;
/// Of so many events of an entity one has its state measured, and besides the first ones as they double.
const MEASURED_OF: u32 = 64;
/// What a state may take for each byte of it that is stored: strings and lists have their own allocations, and room to grow.
const HEAP: usize = 4;

/// How far a batch was taken in.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Of its first events; the one behind them, if there is one, is not plain.
    pub(crate) outcomes: Vec<Outcome>,
    /// The fold has refused that one. The state before it is gone, and with it all that is in memory.
    pub(crate) is_spoilt: bool,
}

/// What a build has in memory.
pub(crate) trait Bulk: Send + Sync {
    /// Looks whether there is anything in the tables. Where there is not, nothing need be loaded. Answers why a row may
    /// become another one as it is written, if it may: then every state has to be read back.
    fn begin<'a>(
        &'a mut self,
        connection: &'a mut PgConnection,
    ) -> BoxFuture<'a, Result<Option<String>, HandlerError>>;

    /// The entities of these events that must be loaded before; each once.
    fn unknown(&self, events: &Events<'_>) -> Vec<String>;

    /// Loads the states of entities whose gates were read before (I4: in this order, or a state could be newer
    /// than its gate is believed to be).
    fn load<'a>(
        &'a mut self,
        connection: &'a mut PgConnection,
        entities: &'a [String],
        gates: Vec<(String, Stands)>,
    ) -> BoxFuture<'a, Result<(), HandlerError>>;

    /// Takes events in, up to the first that is not plain.
    fn take(&mut self, events: &Events<'_>, is_plain: &dyn Fn(Ref) -> bool) -> Taken;

    /// About how much memory it takes.
    fn bytes(&self) -> usize;

    /// The gates that have moved, sorted by entity.
    fn moves(&self) -> Vec<Move<'_>>;

    /// Writes the states of those entities, whose gates were compared before.
    fn write<'a>(
        &'a self,
        connection: &'a mut PgConnection,
    ) -> BoxFuture<'a, Result<(), HandlerError>>;

    /// What was written is committed. It stays in memory, or is forgotten.
    fn written(&mut self, forget: bool);
}

/// The statements of a state's table.
pub(super) struct Statements {
    pub(super) load: Arc<str>,
    pub(super) store: Arc<str>,
    pub(super) delete: Arc<str>,
    /// Adds rows, all of them new.
    pub(super) copy: Arc<str>,
    /// The columns but the key, in the order of `copy`.
    pub(super) columns: Vec<&'static str>,
    pub(super) types: Arc<str>,
    /// Whether neither the table nor the gate has a row.
    pub(super) is_empty: Arc<str>,
}

/// Asks for names and types of the columns of a table, whose name is quoted.
pub(super) fn types(table: &str) -> Arc<str> {
    let table = table.replace('\'', "''");
    let types = format!(
        "SELECT a.attname::text, a.atttypid FROM pg_catalog.pg_attribute a \
         WHERE a.attrelid = '{table}'::regclass AND a.attnum > 0 AND NOT a.attisdropped"
    );
    types.into()
}

/// A state as COPY takes it, without its key.
#[derive(Default)]
pub(super) struct Fields {
    types: Vec<Option<Oid>>,
    /// Each field's length, and its bytes.
    bytes: PgArgumentBuffer,
}

impl Fields {
    pub(super) fn push<'q, T>(&mut self, value: &T) -> Result<(), BoxDynError>
    where
        T: Encode<'q, Postgres> + Type<Postgres>,
    {
        let of_value = value.produces().unwrap_or_else(T::type_info);
        self.types.push(of_value.oid());
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        let length = match value.encode_by_ref(&mut self.bytes)? {
            IsNull::Yes => -1,
            IsNull::No => i32::try_from(self.bytes.len() - start - 4)?,
        };
        self.bytes[start..start + 4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }
}

/// An entity in memory.
struct Entry<S> {
    /// Where its gate stands.
    sequence: Option<i64>,
    /// The same in the database.
    stored: Option<i64>,
    /// Records of it are parked: it goes the ordinary way.
    parked: bool,
    state: Option<S>,
    /// Whether its table has a row of it.
    has_row: bool,
    is_changed: bool,
    /// Events taken in, which tell when it is measured.
    events: u32,
    /// Bytes of its state as they are stored, when it was measured last.
    width: usize,
}

/// The states of a [`Fold`].
pub(super) struct States<F: Fold> {
    fold: Arc<F>,
    statements: Arc<Statements>,
    exact: Exact,
    is_next: bool,
    /// Where a gate stands before the entity's first event, if it must begin with a certain one.
    before_first: Option<i64>,
    entries: HashMap<Box<str>, Entry<F::State>>,
    /// What is not in memory is not in the tables either.
    is_whole: bool,
    names_bytes: usize,
    /// The widths of all.
    states_bytes: usize,
}

impl<F: Fold> States<F> {
    /// None without a gate: then nothing could be compared.
    pub(super) fn of(folded: &Folded<F>, gate: Gate) -> Option<Self> {
        let before_first = match gate {
            Gate::None => return None,
            Gate::Newest | Gate::Next { first: First::Any } => None,
            Gate::Next {
                first: First::At(first),
            } => Some(first.saturating_sub(1)),
        };
        Some(Self {
            fold: Arc::clone(&folded.fold),
            statements: Arc::clone(&folded.bulk),
            exact: folded.exact.clone(),
            is_next: gate != Gate::Newest,
            before_first,
            entries: HashMap::new(),
            is_whole: false,
            names_bytes: 0,
            states_bytes: 0,
        })
    }

    fn insert(&mut self, entity: &str, entry: Entry<F::State>) {
        self.names_bytes += entity.len();
        self.entries.insert(entity.into(), entry);
    }

    /// Takes one event in; none if it is not plain.
    fn take_one(
        &mut self,
        events: &Events<'_>,
        event: Ref,
    ) -> Result<Option<Outcome>, HandlerError> {
        if events.filtered[event as usize] {
            return Ok(Some(Outcome::Filtered));
        }
        let entity = events.entity(event);
        if !self.entries.contains_key(entity) {
            self.insert(entity, Entry::new());
        }
        let (Some(entry), Some(sequence)) = (
            self.entries.get_mut(entity),
            events.sequences[event as usize],
        ) else {
            return Ok(None);
        };
        let last = entry.sequence.or(self.before_first);
        match gate::one(last, sequence, self.is_next) {
            _ if entry.parked => return Ok(None),
            Admission::Waits => return Ok(None),
            Admission::Stale => return Ok(Some(Outcome::Stale)),
            Admission::Admitted => {}
        }
        let mut messages = Messages::default();
        let state = entry.state.take();
        let state = self
            .fold
            .fold(state, &Event::new(events, event), &mut messages)?;
        // It is not sent, but refused as it would be.
        if let Some(why) = messages.emitted.iter().find_map(|(n, m)| problem(n, m)) {
            return Err(HandlerError::terminal(why));
        }
        entry.state = state;
        entry.events = entry.events.wrapping_add(1);
        if entry.events.is_power_of_two() || entry.events.is_multiple_of(MEASURED_OF) {
            entry.measure(&mut self.states_bytes);
        }
        entry.sequence = Some(sequence);
        entry.is_changed = true;
        Ok(Some(Outcome::Applied))
    }

    /// Entities that have changed, sorted, so that all writers lock in one order.
    fn changed(&self) -> Vec<(&str, &Entry<F::State>)> {
        let changed = self.entries.iter().filter(|(_, entry)| entry.is_changed);
        let mut changed: Vec<(&str, &Entry<F::State>)> =
            changed.map(|(entity, entry)| (&**entity, entry)).collect();
        changed.sort_unstable_by_key(|(entity, _)| *entity);
        changed
    }

    async fn write_all(&self, connection: &mut PgConnection) -> Result<(), HandlerError> {
        let (mut new, mut known, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for (entity, entry) in self.changed() {
            match &entry.state {
                Some(state) if entry.has_row => known.push((entity, state)),
                Some(state) => new.push((entity, state)),
                None if entry.has_row => gone.push(entity),
                None => {}
            }
        }
        for gone in gone.chunks(ROWS_MAX) {
            sqlx::query(AssertSqlSafe(Arc::clone(&self.statements.delete)))
                .bind(gone)
                .execute(&mut *connection)
                .await
                .map_err(|error| failed("deleting states", error))?;
        }
        match new.first() {
            Some((_, state)) if self.fits_copy(connection, *state).await? => {
                for new in new.chunks(ROWS_MAX) {
                    copy(connection, &self.statements.copy, new).await?;
                }
            }
            _ => known.append(&mut new),
        }
        for known in known.chunks(ROWS_MAX) {
            let (entities, states): (Vec<&str>, Vec<&F::State>) = known.iter().copied().unzip();
            let arguments = Columns::arrays(entities, states)?;
            sqlx::query_with(AssertSqlSafe(Arc::clone(&self.statements.store)), arguments)
                .execute(&mut *connection)
                .await
                .map_err(|error| failed("writing states", error))?;
        }
        Ok(())
    }

    /// Whether the columns have the very types that the states have: COPY casts nothing.
    async fn fits_copy(
        &self,
        connection: &mut PgConnection,
        state: &F::State,
    ) -> Result<bool, HandlerError> {
        let found = sqlx::query_as(AssertSqlSafe(Arc::clone(&self.statements.types)));
        let found: Vec<(String, Oid)> = found
            .fetch_all(connection)
            .await
            .map_err(|error| failed("reading the types of columns", error))?;
        let is = |name: &str, of_value: Option<Oid>| {
            let of_column =
                |(column, oid): &(String, Oid)| column == name && Some(*oid) == of_value;
            found.iter().any(of_column)
        };
        let fields = Columns::fields(state)?;
        let key = Some(Oid(F::State::KEY_TYPE.oid()));
        let mut columns = self.statements.columns.iter().zip(&fields.types);
        Ok(is(F::State::KEY, key) && columns.all(|(name, of_value)| is(name, *of_value)))
    }
}

impl<S: State> Entry<S> {
    /// Measures its state, as part of a sum.
    fn measure(&mut self, sum: &mut usize) {
        let fields = self.state.as_ref().map(Columns::fields);
        // What cannot be stored is for whoever writes to say.
        let width = fields.map_or(0, |fields| fields.map_or(0, |fields| fields.bytes.len()));
        *sum = sum.saturating_sub(self.width).saturating_add(width);
        self.width = width;
    }
}

impl<S> Entry<S> {
    fn new() -> Self {
        Self {
            sequence: None,
            stored: None,
            parked: false,
            state: None,
            has_row: false,
            is_changed: false,
            events: 0,
            width: 0,
        }
    }
}

impl<F: Fold> Bulk for States<F> {
    fn begin<'a>(
        &'a mut self,
        connection: &'a mut PgConnection,
    ) -> BoxFuture<'a, Result<Option<String>, HandlerError>> {
        Box::pin(async move {
            let look = |error| failed("looking at the tables", error);
            let is_empty = sqlx::query_scalar(AssertSqlSafe(Arc::clone(&self.statements.is_empty)));
            self.is_whole = is_empty.fetch_one(&mut *connection).await.map_err(look)?;
            self.exact.why_not(connection).await
        })
    }

    fn unknown(&self, events: &Events<'_>) -> Vec<String> {
        if self.is_whole {
            return Vec::new();
        }
        let all =
            (0..events.filtered.len() as Ref).filter(|event| !events.filtered[*event as usize]);
        let mut unknown: Vec<&str> = all
            .filter_map(|event| events.readable_entity(event))
            .filter(|entity| !self.entries.contains_key(*entity))
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown.into_iter().map(str::to_owned).collect()
    }

    fn load<'a>(
        &'a mut self,
        connection: &'a mut PgConnection,
        entities: &'a [String],
        gates: Vec<(String, Stands)>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let rows = sqlx::query(AssertSqlSafe(Arc::clone(&self.statements.load)))
                .bind(entities)
                .fetch_all(connection)
                .await
                .map_err(|error| failed("loading states", error))?;
            for entity in entities {
                self.insert(entity, Entry::new());
            }
            for (entity, stands) in gates {
                if let Some(entry) = self.entries.get_mut(&*entity) {
                    entry.sequence = Some(stands.sequence);
                    entry.stored = entry.sequence;
                    // Of one at the very beginning none could be read so far.
                    entry.parked = stands.parked || stands.sequence == i64::MIN;
                }
            }
            for row in rows {
                let read = |row: &PgRow| Ok((row.try_get(0)?, F::State::from_row(row)?));
                let (entity, state): (String, F::State) =
                    read(&row).map_err(|error| failed("reading a state", error))?;
                // A key of another type than text; the ordinary way says so.
                let Some(entry) = self.entries.get_mut(&*entity) else {
                    continue;
                };
                entry.state = Some(state);
                entry.has_row = true;
                entry.measure(&mut self.states_bytes);
            }
            Ok(())
        })
    }

    fn take(&mut self, events: &Events<'_>, is_plain: &dyn Fn(Ref) -> bool) -> Taken {
        let all = 0..events.records.len() as Ref;
        let mut outcomes = Vec::with_capacity(all.len());
        let taking = AssertUnwindSafe(|| {
            for event in all {
                if events.rejected.contains_key(&event) || !is_plain(event) {
                    break;
                }
                match self.take_one(events, event) {
                    Ok(Some(outcome)) => outcomes.push(outcome),
                    Ok(None) => break,
                    Err(_) => return true,
                }
            }
            false
        });
        let is_spoilt = std::panic::catch_unwind(taking).unwrap_or(true);
        Taken {
            outcomes,
            is_spoilt,
        }
    }

    fn bytes(&self) -> usize {
        let (entities, capacity) = (self.entries.len(), self.entries.capacity());
        // The table grows by doubling, and is there once more while it does.
        let tables = if entities + BATCH > capacity { 3 } else { 1 };
        let place = size_of::<(Box<str>, Entry<F::State>)>() + 1;
        // Its name with what an allocation costs, its state, and its places in lists while it is written.
        let of_one = 16 + 4 * size_of::<(&str, &F::State)>();
        let heap = self.states_bytes.saturating_mul(HEAP);
        capacity * 8 / 7 * place * tables + entities * of_one + self.names_bytes + heap
    }

    fn moves(&self) -> Vec<Move<'_>> {
        let to_move = |(entity, entry): (_, &Entry<F::State>)| {
            Some(Move {
                entity,
                from: entry.stored,
                to: entry.sequence?,
            })
        };
        self.changed().into_iter().filter_map(to_move).collect()
    }

    fn write<'a>(
        &'a self,
        connection: &'a mut PgConnection,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(self.write_all(connection))
    }

    fn written(&mut self, forget: bool) {
        if forget {
            self.entries = HashMap::new();
            self.names_bytes = 0;
            self.states_bytes = 0;
            self.is_whole = false;
            return;
        }
        for entry in self.entries.values_mut() {
            if std::mem::take(&mut entry.is_changed) {
                entry.stored = entry.sequence;
                entry.has_row = entry.state.is_some();
            }
        }
    }
}

/// Adds rows to a table; sorted.
async fn copy<S: State>(
    connection: &mut PgConnection,
    statement: &str,
    rows: &[(&str, &S)],
) -> Result<(), HandlerError> {
    let failed_to = |error: store::Error| match error {
        store::Error::Sql(error) => failed("writing states", error),
        other => HandlerError::new(other.class(), format!("writing states: {other}")),
    };
    let mut copy = Copy::begin(connection, statement)
        .await
        .map_err(failed_to)?;
    for (entity, state) in rows {
        let fields = Columns::fields(*state)?;
        let count = i16::try_from(1 + fields.types.len()).unwrap_or(i16::MAX);
        let mut row = copy.row(count);
        let key = S::KEY_TYPE.binary(entity);
        row.bytes(key.as_deref()).map_err(failed_to)?;
        row.encoded(&fields.bytes);
        copy.send_if_full().await.map_err(failed_to)?;
    }
    copy.finish().await.map_err(failed_to)?;
    Ok(())
}
