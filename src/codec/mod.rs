//! Bytes to events: JSON, Avro, CloudEvents and change events.
//!
//! What is wrong with a record is found here, with the record's name, before a transaction begins. Decoding never
//! waits: a batch whose records name schemas that are not known yet comes back with their numbers, and is decoded
//! once they were [asked for](Decoder::learn), outside of any transaction.

mod avro;
mod cloudevents;
mod debezium;
mod document;
mod json;
mod place;
mod value;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::engine::parking::{Reason, Rejection};
use crate::projection::{
    Column, ColumnData, ColumnType, Documents, EntityType, Events, First, Format, Framing, Gate,
    Outgoing, Projection, Ref, Share, Source, TextColumn, Tombstones, Types, UnknownType,
};
use crate::registry::{Registry, Unavailable};
use crate::types::{Record, TopicPartition};

use avro::{AvroDecoder, Plans};
use cloudevents::Mode;
use document::Document;
use json::Layout;
use place::{Fields, Found, Place, Shape, Slots};
use value::Value;

/// Decodes the records of one projection.
#[derive(Debug)]
pub(crate) struct Decoder {
    payload: Payload,
    /// The key, where a part of it is wanted.
    key: Option<Payload>,
    /// Where a change event says what was done.
    op: Option<Place>,
    /// Where schemas are asked for that are known by number.
    registry: Option<Arc<Registry>>,
    /// How its messages are written.
    outgoing: Vec<Arc<Outgoing>>,
    value_bytes_max: usize,
    /// Where headers are read at all: they are not there otherwise, unless a record was parked before.
    headers_bytes_max: Option<usize>,
    entity: Option<Place>,
    entity_type: EntityType,
    /// Events of another entity are not wanted.
    only: Option<String>,
    sequence: Option<Place>,
    sequence_required: bool,
    /// The lowest sequence allowed.
    first: i64,
    event_id: Option<Place>,
    /// What an event id is unique within.
    event_source: Option<Place>,
    types: Option<(Place, Types)>,
    known_types: Arc<[String]>,
    /// For handlers that ask for whole values.
    documents: Option<Arc<dyn Documents>>,
    columns: Arc<[Column]>,
    /// Where each of them stands.
    places: Vec<Place>,
    tombstones: Tombstones,
}

/// How values are read.
#[derive(Debug)]
enum Payload {
    Json(Layout),
    /// A CloudEvent's data by itself, and the whole of one with its data inside.
    CloudEvents {
        binary: Layout,
        structured: Layout,
    },
    Avro(AvroDecoder),
}

impl Payload {
    /// The plans that are needed of what is in Avro.
    fn plans(
        &self,
        shares: &[(&TopicPartition, &[Record])],
        part: fn(&Record) -> Option<&[u8]>,
    ) -> Result<Plans, UnknownSchemas> {
        match self {
            Self::Json(_) | Self::CloudEvents { .. } => Ok(Plans::default()),
            Self::Avro(avro) => avro.plans(shares, part),
        }
    }

    /// Room for what is wanted of one.
    fn fields<'a>(&self) -> Fields<'a> {
        match self {
            Self::Json(layout) | Self::CloudEvents { binary: layout, .. } => {
                Fields::Json(vec![None; layout.slots()])
            }
            Self::Avro(avro) => Fields::Avro(vec![None; avro.slots()]),
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

/// Why a record is no event for the handler.
enum Not {
    /// It cannot be applied.
    Applicable(String),
    /// Nor may anything behind it in its partition.
    Passable(String),
    /// The projection does not want it.
    Wanted,
}

impl From<String> for Not {
    fn from(why: String) -> Self {
        Self::Applicable(why)
    }
}

impl Decoder {
    /// `registry` is where schemas are asked for that records name by number.
    pub(crate) fn new(projection: &Projection, registry: Option<&Arc<Registry>>) -> Self {
        let mut decoder = Self::of_columns(projection, registry);
        if projection.handler.sees_records() && !matches!(projection.format, Format::Json) {
            decoder.documents = Some(Arc::new(Document::new(projection, registry)));
        }
        decoder
    }

    fn of_columns(projection: &Projection, registry: Option<&Arc<Registry>>) -> Self {
        let format = &projection.format;
        let mut slots = Slots {
            strict: true,
            ..Slots::default()
        };
        let mut place = |source: &Source| slots.place(source, format);
        let entity = projection.entity.as_ref().map(&mut place);
        let sequence = projection.sequence.as_ref().map(&mut place);
        let event_id = projection.event_id.as_ref().map(&mut place);
        // By the specification an id is unique within its source.
        let event_source = match &projection.event_id {
            Some(Source::Attribute(name)) if name == "id" => {
                Some(place(&Source::Attribute("source".to_owned())))
            }
            _ => None,
        };
        let op = match format {
            Format::Debezium(_) => Some(place(&Source::Envelope("/op".to_owned()))),
            _ => None,
        };
        let types = projection.types.as_ref();
        let types = types.map(|types| (place(&types.source), types.clone()));
        slots.strict = false;
        let columns = projection.columns.iter();
        let columns: Vec<Place> = columns
            .map(|column| slots.place(&column.source, format))
            .collect();
        let key = format.avro().and_then(|avro| avro.key.as_deref());
        let key = (!slots.wanted_in_key.is_empty()).then(|| match key {
            None => Payload::Json(Layout::new(&slots.wanted_in_key)),
            Some(avro) => {
                let (wanted, limits) = (&slots.wanted_in_key, projection.limits);
                Payload::Avro(AvroDecoder::new(avro, wanted, limits, registry))
            }
        });
        let wanted = slots.wanted;
        let payload = match format {
            Format::Json | Format::Debezium(None) => Payload::Json(Layout::new(&wanted)),
            Format::CloudEvents => {
                let is_whole = |place: &Place, slot: usize| match place {
                    Place::Data { slots, .. } => slots[1] == slot,
                    Place::Attribute { slot: own, .. } => *own == slot,
                    _ => false,
                };
                let own = [&entity, &sequence, &event_id, &event_source];
                let mut places: Vec<&Place> = own.into_iter().flatten().collect();
                places.extend(types.as_ref().map(|(place, _)| place));
                places.extend(&columns);
                let layout = |whole: bool| {
                    let some = wanted.iter().enumerate().filter(|(slot, _)| {
                        places.iter().any(|place| is_whole(place, *slot)) == whole
                    });
                    Layout::of(wanted.len(), some)
                };
                Payload::CloudEvents {
                    binary: layout(false),
                    structured: layout(true),
                }
            }
            Format::Avro(avro) | Format::Debezium(Some(avro)) => {
                Payload::Avro(AvroDecoder::new(avro, &wanted, projection.limits, registry))
            }
        };
        Self {
            payload,
            key,
            op,
            registry: registry.cloned(),
            outgoing: projection.outgoing.clone(),
            value_bytes_max: projection.limits.bytes_max,
            headers_bytes_max: projection
                .reads_headers()
                .then_some(projection.limits.headers_bytes_max),
            entity,
            entity_type: projection.entity_type,
            only: projection.only.clone(),
            sequence,
            sequence_required: projection.gate != Gate::None,
            first: match projection.gate {
                Gate::Next {
                    first: First::At(first),
                } => first,
                Gate::None => i64::MIN,
                // The lowest number stands for an entity that was never met.
                Gate::Newest | Gate::Next { first: First::Any } => i64::MIN + 1,
            },
            event_id,
            event_source,
            known_types: types
                .as_ref()
                .map_or_else(Arc::default, |(_, types)| types.known.as_slice().into()),
            types,
            documents: None,
            columns: projection.columns.as_slice().into(),
            places: columns,
            tombstones: projection.tombstones.unwrap_or_default(),
        }
    }

    /// The same for values that have no frame and are written with the projection's own schema, as in its tests.
    pub(crate) fn unframed(projection: &Projection) -> Self {
        let mut projection = projection.clone();
        if let Some(avro) = projection.format.avro_mut() {
            avro.framing = Framing::Raw(Arc::clone(&avro.schema));
            // Written as JSON there.
            avro.key = None;
        }
        Self::new(&projection, None)
    }

    /// What a number stands for, without a registry.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn knows(&self, id: u32, schema: &crate::avro::Schema) {
        if let Payload::Avro(avro) = &self.payload {
            avro.plan(id.into(), schema, 0);
        }
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
        let Some(registry) = &self.registry else {
            return Ok(());
        };
        let ids: BTreeSet<u32> = schemas.0.keys().copied().collect();
        // Rarely awaited, and large.
        Box::pin(registry.learn(&ids)).await
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
        self.look_at_outgoing()?;
        let plans = self.payload.plans(shares, Record::value);
        let key = self.key.as_ref();
        let key_plans = key.map_or_else(
            || Ok(Plans::default()),
            |key| key.plans(shares, Record::key),
        );
        let (plans, key_plans) = match (plans, key_plans) {
            (Ok(plans), Ok(key_plans)) => (plans, key_plans),
            (Err(mut unknown), Err(others)) => {
                for (id, event) in others.0 {
                    let first = unknown.0.entry(id).or_insert(event);
                    *first = event.min(*first);
                }
                return Err(unknown);
            }
            (Err(unknown), Ok(_)) | (Ok(_), Err(unknown)) => return Err(unknown),
        };
        let columns = self.columns.iter();
        let mut events = Events {
            shares: Vec::new(),
            records: Vec::new(),
            entities: TextColumn::default(),
            sequences: Vec::new(),
            event_ids: TextColumn::default(),
            columns: columns
                .map(|column| ColumnData::new(column.column_type))
                .collect(),
            declared: Arc::clone(&self.columns),
            types: Vec::new(),
            known_types: Arc::clone(&self.known_types),
            documents: self.documents.clone(),
            filtered: Vec::new(),
            rejected: BTreeMap::new(),
            halts_at: None,
        };
        let mut found = Found {
            value: self.payload.fields(),
            key: key.map_or_else(|| Fields::Json(Vec::new()), Payload::fields),
            wrong_key: None,
        };
        for (partition, records) in shares {
            let first = events.records.len() as Ref;
            for record in *records {
                self.extract_key(record, &key_plans, &mut found);
                if let Err(not) = self.push(record, &plans, &mut found, &mut events) {
                    self.fill(&mut events, matches!(not, Not::Wanted));
                    let event = events.records.len() as Ref;
                    if matches!(not, Not::Passable(_)) {
                        events.halts_at.get_or_insert(event);
                    }
                    if let Not::Applicable(why) | Not::Passable(why) = not {
                        let rejection = Rejection::new(Reason::Undecodable, why);
                        events.rejected.insert(event, rejection);
                    }
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

    /// Nothing is written with an id that may stand for another schema than it did (I10): as with one of a record, the
    /// registry must say what it stands for before anything of the batch is applied.
    fn look_at_outgoing(&self) -> Result<(), UnknownSchemas> {
        let Some(registry) = &self.registry else {
            return Ok(());
        };
        let ids = self.outgoing.iter().filter_map(|outgoing| outgoing.id());
        let in_doubt = ids.filter(|id| registry.known(*id).is_none());
        let unknown: BTreeMap<u32, Ref> = in_doubt.map(|id| (id, 0)).collect();
        match unknown.is_empty() {
            true => Ok(()),
            false => Err(UnknownSchemas(unknown)),
        }
    }

    /// Fills the fields with what is wanted of a value, and says how it is made.
    fn extract<'f>(
        &self,
        record: &'f Record,
        plans: &'f Plans,
        found: &mut Found<'f>,
    ) -> Result<Shape, String> {
        let value = record.value().unwrap_or_default();
        let max = self.value_bytes_max;
        if value.len() > max {
            return Err(format!(
                "the value has {} bytes; {max} are allowed (decode.value_bytes_max)",
                value.len()
            ));
        }
        match (&self.payload, &mut found.value) {
            (Payload::Json(layout), Fields::Json(found)) => layout.extract(value, found)?,
            (Payload::CloudEvents { binary, structured }, Fields::Json(found)) => {
                let mode = cloudevents::mode(record)?;
                match mode {
                    Mode::Structured => structured.extract(value, found)?,
                    Mode::Json if record.value().is_some() => binary.extract(value, found)?,
                    // Data of another kind says nothing, unless something is wanted of it.
                    Mode::Other(kind) if !binary.is_empty() => {
                        return Err(format!("its data is {kind}, not JSON"));
                    }
                    Mode::Json | Mode::Other(_) => found.fill(None),
                }
                return Ok(Shape::Event {
                    structured: matches!(mode, Mode::Structured),
                });
            }
            (Payload::Avro(avro), Fields::Avro(found)) => avro.extract(value, plans, found)?,
            _ => {}
        }
        match &self.op {
            None => Ok(Shape::Plain),
            Some(op) => debezium::shape(op, record, found),
        }
    }

    /// Fills the fields with what is wanted of a key, or says why it cannot be.
    fn extract_key<'f>(&self, record: &'f Record, plans: &'f Plans, found: &mut Found<'f>) {
        let max = self.value_bytes_max;
        let extracted = match (&self.key, record.key(), &mut found.key) {
            (None, ..) => return,
            (Some(_), None, fields) => {
                fields.clear();
                Ok(())
            }
            (Some(_), Some(key), _) if key.len() > max => Err(format!(
                "the key has {} bytes; {max} are allowed (decode.value_bytes_max)",
                key.len()
            )),
            (Some(Payload::Json(layout)), Some(key), Fields::Json(fields)) => {
                layout.extract(key, fields)
            }
            (Some(Payload::Avro(avro)), Some(key), Fields::Avro(fields)) => {
                avro.extract(key, plans, fields)
            }
            (Some(_), Some(_), _) => Ok(()),
        };
        found.wrong_key = extracted
            .err()
            .map(|why| match why.strip_prefix("the value ") {
                Some(why) => format!("the key {why}"),
                None => format!("the key: {why}"),
            });
    }

    /// Gives a record that could not be read to its end what it has not got.
    fn fill(&self, events: &mut Events<'_>, filtered: bool) {
        let rows = events.records.len() + 1;
        if events.entities.len() < rows {
            events.entities.push(None);
        }
        events.types.resize(rows, None);
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
        events.filtered.push(filtered);
    }

    /// Adds one event, or a part of it. `fields` is lent to be filled, once for the whole batch.
    fn push<'f, 'a: 'f>(
        &self,
        record: &'a Record,
        plans: &'f Plans,
        found: &mut Found<'f>,
        events: &mut Events<'a>,
    ) -> Result<(), Not> {
        let is_tombstone = record.value().is_none()
            && !(matches!(self.payload, Payload::CloudEvents { .. })
                && cloudevents::is_event(record));
        let shape = match (is_tombstone, self.tombstones) {
            (false, _) => self.extract(record, plans, found),
            (true, Tombstones::Filter) => return Err(Not::Wanted),
            (true, Tombstones::Event) => {
                found.value.clear();
                Ok(Shape::Plain)
            }
            (true, Tombstones::Refuse) => Err(
                "the record has no value (a tombstone); set `tombstones = \"filter\"` if it means nothing here, or \"event\"".to_owned(),
            ),
        };
        let found = &*found;
        let read = |place: &Place| match &shape {
            Err(_) if !place.is_outside() => Ok(None),
            shape => place.read(record, found, *shape.as_ref().unwrap_or(&Shape::Plain)),
        };
        let identity = |place: &Place| match read(place)? {
            None => Err("missing".to_owned()),
            Some(value) => value.as_identity(),
        };

        let entity = self.entity.as_ref().map(|place| {
            // I4: equal values are one entity at the gate, as they are one row.
            let entity = identity(place).and_then(|entity| self.entity_type.spelled(entity));
            entity.map_err(|why| place.named("entity", &why))
        });
        events
            .entities
            .push(entity.as_ref().and_then(|e| e.as_deref().ok()));
        // One that cannot be told may be the one that is wanted: it is parked, and whoever compares sees it (I6).
        if let Some(only) = &self.only
            && match &entity {
                Some(Ok(entity)) => **entity != **only,
                Some(Err(_)) => false,
                None => true,
            }
        {
            return Err(Not::Wanted);
        }
        // Behind the entity, which waits for the record.
        let headers = record.headers_size();
        if let Some(max) = self.headers_bytes_max.filter(|max| headers > *max) {
            return Err(Not::Applicable(format!(
                "the headers have {headers} bytes; {max} are allowed (decode.headers_bytes_max)"
            )));
        }
        let shape = shape.clone()?;
        events.types.push(match &self.types {
            // A tombstone is of no type.
            Some(_) if is_tombstone => None,
            None => None,
            Some((place, types)) => Some(type_of(identity(place), place, types)?),
        });
        entity.transpose()?;
        events.sequences.push(match &self.sequence {
            None => None,
            Some(place) => self
                .sequence_of(read(place))
                .map_err(|why| place.named("sequence", &why))?,
        });
        if let Some(place) = &self.event_id {
            let named = |why: String| place.named("event_id", &why);
            let id = identity(place).map_err(named)?;
            match &self.event_source {
                None => events.event_ids.push(Some(&id)),
                Some(source) => {
                    let source = identity(source).map_err(|why| source.named("event_id", &why))?;
                    let whole = format!("{source} {id}");
                    let whole = value::identity(Cow::Owned(whole)).map_err(named)?;
                    events.event_ids.push(Some(&whole));
                }
            }
        }
        // Of a row that is gone only what identifies it need be there.
        let may_be_null = is_tombstone || matches!(shape, Shape::Change { gone: true, .. });
        let columns = self.columns.iter().zip(&self.places);
        for ((column, place), data) in columns.zip(&mut events.columns) {
            read(place)
                .and_then(|value| push_column(data, column, may_be_null, value))
                .map_err(|why| place.named(&format!("column `{}`", column.name), &why))?;
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

/// The place of an event's type among those that are known.
fn type_of(found: Result<Cow<'_, str>, String>, place: &Place, types: &Types) -> Result<u16, Not> {
    let found = found.map_err(|why| place.named("type", &why))?;
    let known = types.known.iter().position(|known| *known == *found);
    if let Some(known) = known.and_then(|known| u16::try_from(known).ok()) {
        return Ok(known);
    }
    let why = place.named(
        "type",
        &format!("`{found}` is none that the projection knows"),
    );
    Err(match types.unknown {
        UnknownType::Filter => Not::Wanted,
        UnknownType::Park => Not::Applicable(why),
        UnknownType::Halt => Not::Passable(format!(
            "{why}; say what is to become of it: `types`, or `unknown_type` of the projection"
        )),
    })
}

fn push_column(
    data: &mut ColumnData,
    column: &Column,
    may_be_null: bool,
    value: Option<Value<'_>>,
) -> Result<(), String> {
    match (value, &column.default, column.unit) {
        (Some(value), _, Some(unit)) if value.is_number() => value::push_counted(data, unit, value),
        (Some(value), ..) => value::push(data, column.column_type, Some(value)),
        (None, ..) if may_be_null => value::push(data, column.column_type, None),
        (None, Some(default), _) => value::push_default(data, column.column_type, default),
        (None, None, _) if column.nullable => value::push(data, column.column_type, None),
        (None, None, _) => {
            Err("missing or null; declare it nullable if that is allowed".to_owned())
        }
    }
}

/// Whether a text can be a column's default.
pub(crate) fn default_problem(column_type: ColumnType, default: &str) -> Option<String> {
    value::push_default(&mut ColumnData::new(column_type), column_type, default).err()
}

#[cfg(test)]
mod tests;
