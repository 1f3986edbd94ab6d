//! Whole values as JSON, for handlers that ask for one. What a projection declares is read with the rest of its batch
//! instead.

use std::slice;
use std::sync::Arc;

use super::avro::Plans;
use super::place::{Fields, Found, Shape};
use super::{Decoder, cloudevents, value};
use crate::projection::{
    Column, ColumnData, ColumnType, Documents, HandlerError, Projection, Source,
};
use crate::registry::Registry;
use crate::types::{Record, TopicPartition};

/// Reads one value after the other, as what a pointer goes into.
#[derive(Debug)]
pub(super) struct Document(Decoder);

impl Document {
    pub(super) fn new(projection: &Projection, registry: Option<&Arc<Registry>>) -> Self {
        let whole = Source::Pointer(String::new());
        let whole = Projection {
            entity: None,
            sequence: None,
            event_id: None,
            types: None,
            columns: vec![Column::new("value", ColumnType::Jsonb, whole)],
            ..projection.clone()
        };
        Self(Decoder::of_columns(&whole, registry))
    }

    fn read(&self, record: &Record, plans: &Plans) -> Result<String, String> {
        let decoder = &self.0;
        let mut found = Found {
            value: decoder.payload.fields(),
            key: Fields::Json(Vec::new()),
            wrong_key: None,
        };
        let shape = match record.value() {
            None if !cloudevents::is_event(record) => Shape::Plain,
            _ => decoder.extract(record, plans, &mut found)?,
        };
        let mut json = ColumnData::new(ColumnType::Jsonb);
        let value = decoder.places[0].read(record, &found, shape)?;
        value::push(&mut json, ColumnType::Jsonb, value)?;
        let json = match &json {
            ColumnData::Text(json) => json.get(0),
            _ => None,
        };
        Ok(json.unwrap_or("null").to_owned())
    }
}

impl Documents for Document {
    fn json(&self, partition: &TopicPartition, record: &Record) -> Result<String, HandlerError> {
        let shares = [(partition, slice::from_ref(record))];
        let plans = self.0.payload.plans(&shares, Record::value);
        // I10: it was known a moment ago, and what it stands for is in doubt by now.
        let plans = plans.map_err(|_| HandlerError::transient("its schema must be asked for"))?;
        let json = self.read(record, &plans);
        json.map_err(|why| HandlerError::terminal(format!("value: {why}")))
    }
}
