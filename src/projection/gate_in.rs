//! The gate in the row: a table keyed by the entity, whose rows carry the sequence themselves.
//!
//! It spares the second row of each entity. What a row cannot carry, that records of an entity wait or that a
//! person has moved its gate on, makes a row in `_gate` after all, which from then on has the last word.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgRow, PgTypeInfo, PgValueRef};
use sqlx::{AssertSqlSafe, Decode, Encode, PgConnection, Postgres, Row as _, Type};

use super::column::TextColumn;
use super::entity_type::EntityType;
use super::fold::quoted;
use super::handler::HandlerError;
use crate::engine::Class;
use crate::store::schema::{self, Problem};

/// The column in which a row carries its entity's last sequence.
pub(crate) const SEQUENCE: &str = "_sequence";
/// The one in which a statement of the user's says which sequence it found.
pub(crate) const PREVIOUS: &str = "_previous";

/// Which table carries the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GateIn {
    pub(crate) table: String,
    /// Its primary key: the entity.
    pub(crate) key: String,
    entity_type: EntityType,
    /// Reads the rows of entities: key, sequence, place, and what else the handler needs.
    load: Arc<str>,
}

impl GateIn {
    /// `further` are columns that are read along, as SQL, each with its comma.
    pub(crate) fn new(table: &str, key: &str, entity_type: EntityType, further: &str) -> Self {
        let (table_sql, key_sql) = (quoted(table), quoted(key));
        let (text, asked) = (entity_type.as_text(&key_sql), entity_type.array("$1"));
        let load = format!(
            "SELECT {text}, {SEQUENCE}, ctid{further} FROM {table_sql} WHERE {key_sql} = ANY ({asked})"
        );
        Self {
            table: table.to_owned(),
            key: key.to_owned(),
            entity_type,
            load: load.into(),
        }
    }

    /// Whether the table that a schema has can carry the gate.
    pub(crate) async fn is_held(
        &self,
        connection: &mut PgConnection,
        schema: &str,
    ) -> Result<(), Problem> {
        let of_type = (Oid(self.entity_type.oid()), self.entity_type.sql());
        schema::holds_gate(connection, schema, (&self.table, &self.key), of_type).await
    }

    /// The statement that reads rows, as it is sent.
    pub(crate) fn load(&self) -> AssertSqlSafe<Arc<str>> {
        AssertSqlSafe(Arc::clone(&self.load))
    }

    /// Reads the rows of these entities. They are not locked: whoever writes one compares its sequence with the one
    /// read here.
    pub(crate) async fn read(
        &self,
        connection: &mut PgConnection,
        entities: &[&str],
    ) -> Result<GateRows, HandlerError> {
        let within =
            |error: HandlerError| error.within(&format!("reading gates in `{}`", self.table));
        let rows = sqlx::query(self.load())
            .bind(entities)
            .fetch_all(connection)
            .await
            .map_err(|error| within(error.into()))?;
        let mut keyed: Vec<(&str, i64, usize)> = Vec::with_capacity(rows.len());
        for (index, row) in rows.iter().enumerate() {
            let key = row.try_get(0).map_err(|error| within(error.into()))?;
            let sequence = row.try_get(1).map_err(|error| within(error.into()))?;
            keyed.push((key, sequence, index));
        }
        keyed.sort_unstable_by_key(|(key, ..)| *key);
        let mut asked = entities.iter();
        let mut keys = keyed.iter().map(|(key, ..)| key);
        // Both are sorted, and each entity is asked for once.
        match keys.find(|key| !asked.any(|entity| entity == *key)) {
            None => {
                let mut keys = TextColumn::default();
                let mut sorted = Vec::with_capacity(keyed.len());
                for (key, sequence, index) in keyed {
                    keys.push(Some(key));
                    sorted.push((sequence, index));
                }
                Ok(GateRows {
                    rows,
                    keys,
                    sorted,
                    alone: false,
                })
            }
            Some(key) => Err(HandlerError::new(
                Class::Halt,
                format!(
                    "table `{}` has answered with `{key}`, which it was not asked for or has twice; its key `{}` must be its primary key, and of type `{}`",
                    self.table, self.key, self.entity_type
                ),
            )),
        }
    }
}

impl fmt::Display for GateIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.table, self.key)
    }
}

/// The rows of a batch's entities, as they stood before it.
#[derive(Default)]
pub(crate) struct GateRows {
    rows: Vec<PgRow>,
    /// Key of each row, by entity, and its sequence and index.
    keys: TextColumn,
    sorted: Vec<(i64, usize)>,
    /// Whether nobody else can write any meanwhile.
    pub(super) alone: bool,
}

impl fmt::Debug for GateRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GateRows").field(&self.rows.len()).finish()
    }
}

impl GateRows {
    /// Says whether nobody else can write any meanwhile.
    pub(crate) fn alone(self, alone: bool) -> Self {
        Self { alone, ..self }
    }

    /// Finds rows of entities that are asked for in ascending order.
    pub(crate) fn walk(&self) -> Walk<'_> {
        Walk { of: self, next: 0 }
    }
}

/// Where a row stood in its table when it was read: found there without the index, unless it was written since.
///
/// Another row may stand there by now, so it takes the comparison besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place([u8; 6]);

impl Place {
    /// The place of a row that the gate was read from.
    pub(crate) fn of(row: &PgRow) -> sqlx::Result<Self> {
        row.try_get(2)
    }
}

impl Type<Postgres> for Place {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(27)) // tid
    }
}

impl PgHasArrayType for Place {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1010)) // tid[]
    }
}

impl Encode<'_, Postgres> for Place {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }
}

impl Decode<'_, Postgres> for Place {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        Ok(Self(value.as_bytes()?.try_into()?))
    }
}

/// See [`GateRows::walk`].
pub(crate) struct Walk<'r> {
    of: &'r GateRows,
    next: usize,
}

impl<'r> Walk<'r> {
    /// The sequence that an entity's row carries, and the row. The entity must not be before the last one asked for.
    pub(crate) fn find(&mut self, entity: &str) -> Option<(i64, &'r PgRow)> {
        while let Some(&(sequence, index)) = self.of.sorted.get(self.next) {
            match self.of.keys.get(self.next).cmp(&Some(entity)) {
                Ordering::Less => self.next += 1,
                Ordering::Equal => return Some((sequence, &self.of.rows[index])),
                Ordering::Greater => return None,
            }
        }
        None
    }

    /// The sequence alone.
    pub(crate) fn sequence(&mut self, entity: &str) -> Option<i64> {
        self.find(entity).map(|(sequence, _)| sequence)
    }
}
