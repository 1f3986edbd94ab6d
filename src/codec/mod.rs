//! Bytes to events. JSON for now.
//!
//! What is wrong with a record is found here, with the record's name, before a transaction begins.

mod json;
mod value;

use std::collections::BTreeMap;

use crate::engine::parking::{Reason, Rejection};
use crate::projection::{
    ColumnData, Events, First, Gate, Projection, Ref, Share, Source, TextColumn, Tombstones,
};
use crate::types::{Record, TopicPartition};

use json::{Layout, Slots};

/// Decodes the records of one projection.
#[derive(Debug)]
pub(crate) struct Decoder {
    layout: Layout,
    entity: Option<Place>,
    sequence: Option<Place>,
    sequence_required: bool,
    /// The lowest sequence allowed.
    first: i64,
    event_id: Option<Place>,
    columns: Vec<(String, Place, crate::projection::ColumnType, bool)>,
    tombstones: Tombstones,
}

/// A [`Source`], with a pointer replaced by its slot in the layout.
#[derive(Debug)]
enum Place {
    Key,
    Header(String),
    Slot { slot: usize, pointer: String },
}

impl Place {
    /// What is wrong with the value here, and what it was wanted for.
    fn named(&self, role: &str, why: &str) -> String {
        match self {
            Self::Key => format!("{role} (the record key): {why}"),
            Self::Header(name) => format!("{role} (header `{name}`): {why}"),
            Self::Slot { pointer, .. } => format!("{role} (`{pointer}`): {why}"),
        }
    }
}

impl Decoder {
    pub(crate) fn new(projection: &Projection) -> Self {
        let mut layout = Layout::default();
        let mut place = |source: &Source| match source {
            Source::Key => Place::Key,
            Source::Header(name) => Place::Header(name.clone()),
            Source::Pointer(pointer) => Place::Slot {
                slot: layout.slot(pointer),
                pointer: pointer.clone(),
            },
        };
        let entity = projection.entity.as_ref().map(&mut place);
        let sequence = projection.sequence.as_ref().map(&mut place);
        let event_id = projection.event_id.as_ref().map(&mut place);
        let columns = projection
            .columns
            .iter()
            .map(|c| (c.name.clone(), place(&c.source), c.column_type, c.nullable))
            .collect();
        Self {
            layout,
            entity,
            sequence,
            sequence_required: projection.gate != Gate::None,
            first: match projection.gate {
                Gate::Next {
                    first: First::At(first),
                } => first,
                _ => i64::MIN,
            },
            event_id,
            columns,
            tombstones: projection.tombstones,
        }
    }

    /// Decodes a batch, given each partition's consecutive records. What cannot be decoded has its place in
    /// the batch all the same, with its entity if that can be read.
    pub(crate) fn decode<'a>(
        &self,
        shares: impl IntoIterator<Item = (&'a TopicPartition, &'a [Record])>,
    ) -> Events<'a> {
        let mut events = Events {
            shares: Vec::new(),
            records: Vec::new(),
            entities: TextColumn::default(),
            sequences: Vec::new(),
            event_ids: TextColumn::default(),
            columns: self.columns.iter().map(|c| ColumnData::new(c.2)).collect(),
            filtered: Vec::new(),
            rejected: BTreeMap::new(),
        };
        let mut fields = vec![None; self.layout.slots()];
        for (partition, records) in shares {
            let first = events.records.len() as Ref;
            for record in records {
                if let Err(why) = self.push(record, &mut fields, &mut events) {
                    self.fill(&mut events);
                    let rejection = Rejection::new(Reason::Undecodable, why);
                    let event = events.records.len() as Ref;
                    events.rejected.insert(event, rejection);
                }
                events.records.push(record);
            }
            events.shares.push(Share {
                partition,
                refs: first..events.records.len() as Ref,
            });
        }
        events
    }

    /// Gives a record that could not be read to its end what it has not got.
    fn fill(&self, events: &mut Events<'_>) {
        let rows = events.records.len() + 1;
        if events.entities.len() < rows {
            events.entities.push(None);
        }
        if events.sequences.len() < rows {
            events.sequences.push(None);
        }
        if self.event_id.is_some() && events.event_ids.len() < rows {
            events.event_ids.push(None);
        }
        for column in &mut events.columns {
            if column.len() < rows {
                value::push_null(column);
            }
        }
        events.filtered.push(false);
    }

    /// Adds one event, or a part of it. `fields` is lent to be filled, once for the whole batch.
    fn push<'a>(
        &self,
        record: &'a Record,
        fields: &mut Slots<'a>,
        events: &mut Events<'a>,
    ) -> Result<(), String> {
        let extracted = match (record.value(), self.tombstones) {
            (Some(value), _) => self.layout.extract(value, fields),
            (None, Tombstones::Filter) => {
                push_filtered(events, self.event_id.is_some());
                return Ok(());
            }
            (None, Tombstones::Refuse) => Err(
                "the record has no value (a tombstone); set `tombstones = \"filter\"` if it means nothing here".to_owned(),
            ),
        };
        let read = |place: &Place| -> Result<Option<value::Value<'a>>, String> {
            match place {
                Place::Key => value::bytes(record.key()),
                Place::Header(name) => value::bytes(record.header(name)),
                Place::Slot { .. } if extracted.is_err() => Ok(None),
                Place::Slot { slot, .. } => Ok(fields[*slot].and_then(value::Value::from_json)),
            }
        };
        let identity = |place: &Place| match read(place)? {
            None => Err("missing".to_owned()),
            Some(value) => value.as_identity(),
        };

        let entity = self.entity.as_ref().map(|place| {
            let entity = identity(place).map_err(|why| place.named("entity", &why))?;
            Ok::<_, String>(entity)
        });
        events
            .entities
            .push(entity.as_ref().and_then(|e| e.as_deref().ok()));
        extracted.clone()?;
        entity.transpose()?;
        events.sequences.push(match &self.sequence {
            None => None,
            Some(place) => self
                .sequence_of(read(place))
                .map_err(|why| place.named("sequence", &why))?,
        });
        if let Some(place) = &self.event_id {
            let id = identity(place).map_err(|why| place.named("event_id", &why))?;
            events.event_ids.push(Some(&id));
        }
        for ((name, place, column_type, nullable), data) in
            self.columns.iter().zip(&mut events.columns)
        {
            let push = |value: Option<value::Value<'_>>| match value {
                None if !nullable => {
                    Err("missing or null; declare it nullable if that is allowed".to_owned())
                }
                value => value::push(data, *column_type, value),
            };
            read(place)
                .and_then(push)
                .map_err(|why| place.named(&format!("column `{name}`"), &why))?;
        }
        events.filtered.push(false);
        Ok(())
    }

    fn sequence_of(
        &self,
        read: Result<Option<value::Value<'_>>, String>,
    ) -> Result<Option<i64>, String> {
        match read? {
            None if self.sequence_required => Err("missing".to_owned()),
            None => Ok(None),
            Some(value) => match value.as_sequence()? {
                sequence if sequence < self.first => Err(format!(
                    "{sequence} is below the first one allowed, {}; set `first` of the projection if that is right",
                    self.first
                )),
                sequence => Ok(Some(sequence)),
            },
        }
    }
}

/// A row without values, for a record that no handler sees.
fn push_filtered(events: &mut Events<'_>, with_event_ids: bool) {
    events.entities.push(None);
    events.sequences.push(None);
    if with_event_ids {
        events.event_ids.push(None);
    }
    for column in &mut events.columns {
        value::push_null(column);
    }
    events.filtered.push(true);
}

#[cfg(test)]
mod tests;
