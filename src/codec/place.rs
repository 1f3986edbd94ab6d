//! Where the values stand that a projection wants of a record, by the record's format.
//!
//! A wanted value is one or several paths into the record's value, of which its shape says which one counts: a row of
//! a change event is under `after` or under `before`, and either may be inside a `payload`.

use serde_json::value::RawValue;

use super::json::Wanted;
use super::value::{self, Value};
use crate::avro::Datum;
use crate::projection::{Format, Source};
use crate::types::Record;

/// A [`Source`], with paths replaced by their slots.
#[derive(Debug)]
pub(super) enum Place {
    Key,
    /// In the key: as it is, and inside of a payload.
    InKey {
        slots: [usize; 2],
        pointer: String,
    },
    Header(String),
    /// In the value.
    Slot {
        slot: usize,
        pointer: String,
    },
    /// In the data of a CloudEvent: by itself, and inside of the whole.
    Data {
        slots: [usize; 2],
        pointer: String,
    },
    /// A CloudEvent's attribute: in a header, or inside of the whole.
    Attribute {
        header: String,
        slot: usize,
        name: String,
    },
    /// In a change event's row: as it was, and as it is; the same inside of a payload.
    Row {
        slots: [usize; 4],
        pointer: String,
    },
    /// In a change event itself, and inside of a payload.
    Envelope {
        slots: [usize; 2],
        pointer: String,
    },
}

/// How a record's value is made, as it turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// As it is.
    Plain,
    /// A CloudEvent, with its attributes inside or in headers.
    Event { structured: bool },
    /// A change event, inside of a payload or not, of a row that is gone or not.
    Change { in_payload: bool, gone: bool },
}

/// The wanted parts of one value, by slot.
pub(super) enum Fields<'a> {
    Json(Vec<Option<&'a RawValue>>),
    Avro(Vec<Option<Datum<'a>>>),
}

/// What was found of one record.
pub(super) struct Found<'a> {
    pub(super) value: Fields<'a>,
    pub(super) key: Fields<'a>,
    /// Why nothing can be found in the key.
    pub(super) wrong_key: Option<String>,
}

impl Fields<'_> {
    fn get(&self, slot: usize) -> Option<Value<'_>> {
        match self {
            Self::Json(fields) => fields[slot].and_then(Value::from_json),
            Self::Avro(fields) => fields[slot].as_ref().map(Value::Avro),
        }
    }

    pub(super) fn clear(&mut self) {
        match self {
            Self::Json(fields) => fields.fill(None),
            Self::Avro(fields) => fields.fill(None),
        }
    }
}

/// Gives out slots for paths.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) wanted: Vec<Wanted>,
    /// The same in the key.
    pub(super) wanted_in_key: Vec<Wanted>,
    /// Whether what is asked for next decides about the event.
    pub(super) strict: bool,
}

impl Slots {
    fn slot(&mut self, pointer: String) -> usize {
        let strict = self.strict;
        self.wanted.push(Wanted { pointer, strict });
        self.wanted.len() - 1
    }

    pub(super) fn place(&mut self, source: &Source, format: &Format) -> Place {
        match (source, format) {
            (Source::Key, _) => Place::Key,
            (Source::KeyPath(pointer), _) => Place::InKey {
                slots: ["", "/payload"].map(|before| {
                    let (pointer, strict) = (format!("{before}{pointer}"), self.strict);
                    self.wanted_in_key.push(Wanted { pointer, strict });
                    self.wanted_in_key.len() - 1
                }),
                pointer: pointer.clone(),
            },
            (Source::Header(name), _) => Place::Header(name.clone()),
            (Source::Pointer(pointer), Format::CloudEvents) => Place::Data {
                slots: [
                    self.slot(pointer.clone()),
                    self.slot(format!("/data{pointer}")),
                ],
                pointer: pointer.clone(),
            },
            (Source::Pointer(pointer), Format::Debezium(_)) => Place::Row {
                slots: ["/before", "/after", "/payload/before", "/payload/after"]
                    .map(|before| self.slot(format!("{before}{pointer}"))),
                pointer: pointer.clone(),
            },
            (Source::Pointer(pointer), _) => Place::Slot {
                slot: self.slot(pointer.clone()),
                pointer: pointer.clone(),
            },
            // The configuration allows these two where they mean something; elsewhere nothing is there.
            (Source::Attribute(name), _) => Place::Attribute {
                header: format!("ce_{name}"),
                slot: self.slot(format!("/{name}")),
                name: name.clone(),
            },
            (Source::Envelope(pointer), _) => Place::Envelope {
                slots: ["", "/payload"].map(|before| self.slot(format!("{before}{pointer}"))),
                pointer: pointer.clone(),
            },
        }
    }
}

impl Place {
    /// What is wrong with the value here, and what it was wanted for.
    pub(super) fn named(&self, role: &str, why: &str) -> String {
        match self {
            Self::Key => format!("{role} (the record key): {why}"),
            Self::InKey { pointer, .. } => format!("{role} (`key:{pointer}`): {why}"),
            Self::Header(name) => format!("{role} (header `{name}`): {why}"),
            Self::Slot { pointer, .. } | Self::Data { pointer, .. } | Self::Row { pointer, .. } => {
                format!("{role} (`{pointer}`): {why}")
            }
            Self::Attribute { name, .. } => format!("{role} (attribute `{name}`): {why}"),
            Self::Envelope { pointer, .. } => format!("{role} (`envelope:{pointer}`): {why}"),
        }
    }

    /// Whether it can be read although the record's value cannot.
    pub(super) fn is_outside(&self) -> bool {
        matches!(self, Self::Key | Self::InKey { .. } | Self::Header(_))
    }

    /// The value here; none if there is none, or null.
    pub(super) fn read<'f>(
        &self,
        record: &'f Record,
        found: &'f Found<'_>,
        shape: Shape,
    ) -> Result<Option<Value<'f>>, String> {
        let fields = &found.value;
        match (self, shape) {
            (Self::Key, _) => value::bytes(record.key()),
            (Self::InKey { slots, .. }, _) => match &found.wrong_key {
                Some(why) => Err(why.clone()),
                None => Ok(found.key.get(slots[0]).or_else(|| found.key.get(slots[1]))),
            },
            (Self::Header(name), _) => value::bytes(record.header(name)),
            (Self::Slot { slot, .. }, _) => Ok(fields.get(*slot)),
            (Self::Data { slots, .. }, Shape::Event { structured }) => {
                Ok(fields.get(slots[usize::from(structured)]))
            }
            (Self::Attribute { slot, .. }, Shape::Event { structured: true }) => {
                let value = fields.get(*slot);
                // A string, as most attributes are, is what the same text is in a header.
                let text = value.and_then(|value| value.plain_text());
                Ok(match text.filter(|text| !text.contains('\\')) {
                    Some(text) => Some(Value::Text(text)),
                    None => value,
                })
            }
            (Self::Attribute { header, name, .. }, Shape::Event { structured: false }) => {
                let found = record.header(header);
                // As it travels where it is no CloudEvent's.
                let found = found.or_else(|| match &**name {
                    "traceparent" | "tracestate" => record.header(name),
                    _ => None,
                });
                value::bytes(found)
            }
            (Self::Row { slots, .. }, Shape::Change { in_payload, gone }) => {
                let slot = slots[2 * usize::from(in_payload) + usize::from(!gone)];
                let value = fields.get(slot);
                match value.is_some_and(|value| value.is_in_place_of_one()) {
                    true => Err(
                        "its value was not logged, since it has not changed; set REPLICA IDENTITY FULL for the table".to_owned(),
                    ),
                    false => Ok(value),
                }
            }
            (Self::Envelope { slots, .. }, Shape::Change { in_payload, .. }) => {
                Ok(fields.get(slots[usize::from(in_payload)]))
            }
            _ => Ok(None),
        }
    }
}
