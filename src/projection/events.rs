//! The events of a batch: decoded columns beside the records they came from.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::column::{Column, ColumnData, FromColumn, TextColumn};
use super::gate_in::GateRows;
use super::handler::HandlerError;
use crate::engine::Class;
use crate::engine::parking::Rejection;
use crate::types::{Record, TopicPartition};

/// An event's place in its batch: what `_ref` is in SQL.
pub(crate) type Ref = u32;

/// What became of a record of a committed batch. Each record is exactly one of these (I6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Applied,
    /// Not newer than the gate.
    Stale,
    /// Its id was applied already.
    Duplicate,
    /// The projection does not want it.
    Filtered,
    /// It became a dead letter.
    Parked,
}

/// A partition's part of a batch: consecutive records, and the refs they have in it.
#[derive(Clone, Debug)]
pub(crate) struct Share<'a> {
    pub(crate) partition: &'a TopicPartition,
    pub(crate) refs: Range<Ref>,
}

/// Makes JSON of values that travel as something else.
pub(crate) trait Documents: fmt::Debug + Send + Sync {
    /// A value as JSON: what a path goes into.
    ///
    /// # Errors
    /// What is wrong with it, or that it cannot be read for now.
    fn json(&self, partition: &TopicPartition, record: &Record) -> Result<String, HandlerError>;
}

/// All events of a batch, in batch order: share by share, by offset in each.
#[derive(Debug)]
pub(crate) struct Events<'a> {
    pub(crate) shares: Vec<Share<'a>>,
    pub(crate) records: Vec<&'a Record>,
    pub(crate) entities: TextColumn,
    pub(crate) sequences: Vec<Option<i64>>,
    pub(crate) event_ids: TextColumn,
    pub(crate) columns: Vec<ColumnData>,
    /// As they were declared.
    pub(crate) declared: Arc<[Column]>,
    /// Each event's type, as its place among those that the projection knows.
    pub(crate) types: Vec<Option<u16>>,
    /// Those that it knows.
    pub(crate) known_types: Arc<[String]>,
    /// For values that are not JSON as they travel, where a handler may ask for them.
    pub(crate) documents: Option<Arc<dyn Documents>>,
    pub(crate) filtered: Vec<bool>,
    /// Those that cannot be applied, as far as that is known, by their place.
    pub(crate) rejected: BTreeMap<Ref, Rejection>,
    /// The first of them that must not be parked: its partition halts.
    pub(crate) halts_at: Option<Ref>,
}

impl<'a> Events<'a> {
    /// The partition an event came from.
    pub(crate) fn partition(&self, event: Ref) -> &'a TopicPartition {
        let share = self.shares.partition_point(|share| share.refs.end <= event);
        self.shares[share].partition
    }

    pub(crate) fn entity(&self, event: Ref) -> &str {
        self.entities.get(event as usize).unwrap_or_default()
    }

    /// The name of its type, if the projection tells types apart; a tombstone has none.
    pub(crate) fn event_type(&self, event: Ref) -> Option<&str> {
        let place = self.types[event as usize]?;
        self.known_types.get(usize::from(place)).map(String::as_str)
    }

    /// The entity, if it could be read.
    pub(crate) fn readable_entity(&self, event: Ref) -> Option<&str> {
        self.entities.get(event as usize)
    }

    /// The events that are not filtered and have an entity if the projection knows entities, by entity (bytes), then in arrival order: the order in
    /// which gate rows are locked by every writer, so that two of them never wait for each other.
    pub(crate) fn by_entity(&self) -> Vec<Ref> {
        let mut order: Vec<_> = (0..self.filtered.len() as Ref)
            .filter(|event| !self.filtered[*event as usize])
            // What cannot be read holds up nobody.
            .filter(|event| {
                !self.rejected.contains_key(event) || self.readable_entity(*event).is_some()
            })
            .map(|event| (sorts_like(self.entity(event)), event))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, event)| event).collect()
    }
}

/// What sorts like a text, mostly by one number: of its first bytes and how many there are. Then comes the rest.
fn sorts_like(text: &str) -> (u128, &[u8]) {
    let (first, rest) = text.as_bytes().split_at(text.len().min(15));
    let mut bytes = [0; 16];
    bytes[..first.len()].copy_from_slice(first);
    bytes[15] = first.len() as u8;
    (u128::from_be_bytes(bytes), rest)
}

/// The admitted events of a batch, as a handler sees them.
///
/// A batch may hold several events of one entity and may span partitions. Applying it must give
/// what applying its events one after the other gives, however the batch is cut.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub(crate) events: &'a Events<'a>,
    pub(crate) by_entity: &'a [Ref],
    pub(crate) in_order: &'a [Ref],
    /// With the gate in the row: the rows of its entities, and what they carried before.
    pub(crate) gate_rows: Option<&'a GateRows>,
}

impl<'a> Batch<'a> {
    /// The number of events.
    pub fn len(&self) -> usize {
        self.in_order.len()
    }

    /// Whether there is nothing to apply; a handler is not called then.
    pub fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }

    /// The events in batch order: by partition and offset, so an entity's events keep their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Event<'a>> + use<'a> {
        let events = self.events;
        self.in_order
            .iter()
            .map(move |reference| Event::new(events, *reference))
    }

    /// The events by entity, then in order: fold and write in this order, and two writers that meet
    /// on shared rows wait for each other instead of deadlocking.
    pub fn iter_by_entity(&self) -> impl ExactSizeIterator<Item = Event<'a>> + use<'a> {
        let events = self.events;
        self.by_entity
            .iter()
            .map(move |reference| Event::new(events, *reference))
    }
}

/// One admitted event.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    events: &'a Events<'a>,
    pub(crate) reference: Ref,
}

impl<'a> Event<'a> {
    pub(super) fn new(events: &'a Events<'a>, reference: Ref) -> Self {
        Self { events, reference }
    }

    /// The record as Kafka delivered it.
    pub fn record(&self) -> &'a Record {
        self.events.records[self.reference as usize]
    }

    /// Where the record stood.
    pub fn partition(&self) -> &'a TopicPartition {
        self.events.partition(self.reference)
    }

    /// What the event is about; empty if the projection declares no entity.
    pub fn entity(&self) -> &'a str {
        self.events.entity(self.reference)
    }

    /// The event's number within its entity, if the projection declares one.
    pub fn sequence(&self) -> Option<i64> {
        self.events.sequences[self.reference as usize]
    }

    /// The value of a column that the projection [declares](super::Projection::column): an `i64` of a `bigint`, a `&str`
    /// of a `text`, and so on as [`ColumnValue`](super::ColumnValue) says; an `Option` of it where the column is nullable.
    ///
    /// It was read when the batch was, so this costs next to nothing.
    ///
    /// ```
    /// # use tidegate::projection::{Event, HandlerError};
    /// # fn amount(event: &Event<'_>) -> Result<(), HandlerError> {
    /// let amount: i64 = event.get("amount")?;
    /// let note: Option<&str> = event.get("note")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// That there is nothing, as in a tombstone or a row that is gone, which is this event's fault. That there is no column of
    /// that name or type, or that it is nullable and `T` is no `Option`, halts the partition: the handler is at fault.
    pub fn get<T: FromColumn<'a>>(&self, column: &str) -> Result<T, HandlerError> {
        let declared = &self.events.declared;
        let halt = |why: String| HandlerError::new(Class::Halt, why);
        let Some(index) = declared.iter().position(|known| known.name == column) else {
            let names: Vec<&str> = declared.iter().map(|known| &*known.name).collect();
            return Err(halt(format!(
                "there is no column `{column}`; declared are {}",
                match names.is_empty() {
                    true => "none: see `Projection::column`".to_owned(),
                    false => names.join(", "),
                }
            )));
        };
        let (data, known) = (&self.events.columns[index], &declared[index]);
        if T::from_column(data.sample()).is_none() {
            let (name, column_type) = (T::NAME, known.column_type);
            return Err(halt(format!(
                "column `{column}` is of type {column_type}, which is not read as {name}"
            )));
        }
        let value = T::from_column(data.get(self.reference as usize));
        value.ok_or_else(|| match known.nullable {
            true => halt(format!(
                "column `{column}` is declared nullable; read it as Option<{}>",
                T::NAME
            )),
            false => HandlerError::terminal(format!("column `{column}` is null")).at(self),
        })
    }

    /// The event's type, if the projection declares [types](super::Projection::types); a tombstone has none.
    pub fn event_type(&self) -> Option<&'a str> {
        self.events.event_type(self.reference)
    }

    /// The value as JSON, in any [format](super::Format): what a pointer goes into, so the data of a CloudEvent, and the row of
    /// a change event. Avro becomes JSON as it does in a `jsonb` column. Where there is no value it is `null`.
    ///
    /// # Errors
    /// A terminal error that names this event, when the value is not what `T` expects.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        let record = self.record();
        let parsed = match &self.events.documents {
            None => serde_json::from_slice(record.value().unwrap_or(b"null")),
            Some(documents) => {
                let json = documents.json(self.partition(), record);
                serde_json::from_str(&json.map_err(|error| error.at(self))?)
            }
        };
        parsed.map_err(|error| HandlerError::terminal(format!("value: {error}")).at(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_sorted_by_all_of_their_bytes() {
        let long = "fifteen letters";
        let (a, b) = (format!("{long}a"), format!("{long}b"));
        let mut texts = ["", "a", "a\0", "a\0b", "ab", "b", long, &a, &b, "ü"];
        texts.reverse();
        texts.sort_unstable_by_key(|text| sorts_like(text));
        assert!(texts.is_sorted(), "{texts:?}");
    }
}
