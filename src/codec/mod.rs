//! Bytes to events: JSON and Avro.
//!
//! What is wrong with a record is found here, with the record's name, before a transaction begins. Decoding never
//! waits: a batch whose records name schemas that are not known yet comes back with their numbers, and is decoded
//! once they were [asked for](Decoder::learn), outside of any transaction.

mod avro;
mod fit;
mod json;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::engine::parking::{Reason, Rejection};
use crate::projection::{
    ColumnData, Events, First, Format, Framing, Gate, Projection, Ref, Share, Source, TextColumn,
    Tombstones,
};
use crate::registry::{Registry, Unavailable};
use crate::types::{Record, TopicPartition};

use avro::{AvroDecoder, Plans};
pub(crate) use fit::{RoleOf, misfit};
use json::Layout;

/// Decodes the records of one projection.
#[derive(Debug)]
pub(crate) struct Decoder {
    payload: Payload,
    value_bytes_max: usize,
    entity: Option<Place>,
    sequence: Option<Place>,
    sequence_required: bool,
    /// The lowest sequence allowed.
    first: i64,
    event_id: Option<Place>,
    columns: Vec<(String, Place, crate::projection::ColumnType, bool)>,
    tombstones: Tombstones,
}

/// How values are read.
#[derive(Debug)]
enum Payload {
    Json(Layout),
    Avro(AvroDecoder),
}

/// The wanted parts of one value, by slot.
enum Fields<'a> {
    Json(Vec<Option<&'a serde_json::value::RawValue>>),
    Avro(Vec<Option<crate::avro::Datum<'a>>>),
}

impl Fields<'_> {
    fn get(&self, slot: usize) -> Option<value::Value<'_>> {
        match self {
            Self::Json(fields) => fields[slot].and_then(value::Value::from_json),
            Self::Avro(fields) => fields[slot].as_ref().map(value::Value::Avro),
        }
    }
}

/// Numbers of schemas that records name and that are not known yet, with the first record of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownSchemas(BTreeMap<u32, Ref>);

/// Records that cannot be read as long as a schema is not known.
#[derive(Clone, Debug)]
pub(crate) struct Unread {
    /// The first of them.
    pub(crate) at: Ref,
    pub(crate) why: Unavailable,
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
    /// `registry` is where schemas are asked for that records name by number.
    pub(crate) fn new<'p>(projection: &'p Projection, registry: Option<&Arc<Registry>>) -> Self {
        let mut pointers: Vec<&str> = Vec::new();
        let mut place = |source: &'p Source| match source {
            Source::Key => Place::Key,
            Source::Header(name) => Place::Header(name.clone()),
            Source::Pointer(pointer) => Place::Slot {
                slot: {
                    pointers.push(pointer);
                    pointers.len() - 1
                },
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
        let payload = match &projection.format {
            Format::Json => Payload::Json(Layout::new(&pointers)),
            Format::Avro(format) => Payload::Avro(AvroDecoder::new(
                format,
                &pointers,
                projection.limits,
                registry,
            )),
        };
        Self {
            payload,
            value_bytes_max: projection.limits.bytes_max,
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

    /// The same for values that have no frame and are written with the projection's own schema, as in its tests.
    pub(crate) fn unframed(projection: &Projection) -> Self {
        let mut projection = projection.clone();
        if let Format::Avro(format) = &mut projection.format {
            format.framing = Framing::Raw(Arc::clone(&format.schema));
        }
        Self::new(&projection, None)
    }

    /// Decodes a batch, and asks for schemas where it names unknown ones.
    ///
    /// # Errors
    /// Why they cannot be asked for: no fault of any record.
    pub(crate) async fn read<'a>(
        &self,
        shares: &[(&'a TopicPartition, &'a [Record])],
    ) -> Result<Events<'a>, Unread> {
        loop {
            let unknown = match self.decode(shares) {
                Ok(events) => return Ok(events),
                Err(unknown) => unknown,
            };
            if let Err(why) = self.learn(&unknown).await {
                // Some of them may be known by now.
                let unknown = self.decode(shares).err().unwrap_or(unknown);
                let at = unknown.0.values().min().copied().unwrap_or_default();
                return Err(Unread { at, why });
            }
        }
    }

    /// Asks for schemas.
    ///
    /// # Errors
    /// Why they cannot be asked for, or must be waited for.
    pub(crate) async fn learn(&self, schemas: &UnknownSchemas) -> Result<(), Unavailable> {
        match &self.payload {
            Payload::Avro(avro) => {
                let ids: BTreeSet<u32> = schemas.0.keys().copied().collect();
                avro.learn(&ids).await
            }
            Payload::Json(_) => Ok(()),
        }
    }

    /// Decodes a batch, given each partition's consecutive records. What cannot be decoded has its place in
    /// the batch all the same, with its entity if that can be read.
    ///
    /// # Errors
    /// The schemas that must be asked for before.
    pub(crate) fn decode<'a>(
        &self,
        shares: &[(&'a TopicPartition, &'a [Record])],
    ) -> Result<Events<'a>, UnknownSchemas> {
        let plans = match &self.payload {
            Payload::Json(_) => Plans::default(),
            Payload::Avro(avro) => avro.plans(shares)?,
        };
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
        let mut fields = match &self.payload {
            Payload::Json(layout) => Fields::Json(vec![None; layout.slots()]),
            Payload::Avro(avro) => Fields::Avro(vec![None; avro.slots()]),
        };
        for (partition, records) in shares {
            let first = events.records.len() as Ref;
            for record in *records {
                if let Err(why) = self.push(record, &plans, &mut fields, &mut events) {
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
        Ok(events)
    }

    /// Fills the fields with what is wanted of a value.
    fn extract<'f>(
        &self,
        value: &'f [u8],
        plans: &'f Plans,
        fields: &mut Fields<'f>,
    ) -> Result<(), String> {
        let max = self.value_bytes_max;
        if value.len() > max {
            return Err(format!(
                "the value has {} bytes; {max} are allowed (decode.value_bytes_max)",
                value.len()
            ));
        }
        match (&self.payload, fields) {
            (Payload::Json(layout), Fields::Json(found)) => layout.extract(value, found),
            (Payload::Avro(avro), Fields::Avro(found)) => avro.extract(value, plans, found),
            _ => Ok(()),
        }
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
    fn push<'f, 'a: 'f>(
        &self,
        record: &'a Record,
        plans: &'f Plans,
        fields: &mut Fields<'f>,
        events: &mut Events<'a>,
    ) -> Result<(), String> {
        let extracted = match (record.value(), self.tombstones) {
            (Some(value), _) => self.extract(value, plans, fields),
            (None, Tombstones::Filter) => {
                push_filtered(events, self.event_id.is_some());
                return Ok(());
            }
            (None, Tombstones::Refuse) => Err(
                "the record has no value (a tombstone); set `tombstones = \"filter\"` if it means nothing here".to_owned(),
            ),
        };
        let fields = &*fields;
        let read = |place: &Place| -> Result<Option<value::Value<'_>>, String> {
            match place {
                Place::Key => value::bytes(record.key()),
                Place::Header(name) => value::bytes(record.header(name)),
                Place::Slot { .. } if extracted.is_err() => Ok(None),
                Place::Slot { slot, .. } => Ok(fields.get(*slot)),
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
