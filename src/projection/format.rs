//! What a record's value is: its format, its schemas, its types, and what it may cost.

use std::sync::Arc;

use super::source::Source;
use crate::avro::Schema;

/// What a record's value is. See [`Projection::format`](super::Projection::format).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Format {
    /// JSON.
    #[default]
    Json,
    /// Avro.
    Avro(Avro),
    /// JSON in the data of CloudEvents, in binary or structured mode.
    CloudEvents,
    /// Change events of Debezium: in JSON, or in Avro by the schema of the whole event.
    Debezium(Option<Avro>),
}

impl Format {
    /// What is in Avro.
    pub(crate) fn avro(&self) -> Option<&Avro> {
        match self {
            Self::Avro(avro) | Self::Debezium(Some(avro)) => Some(avro),
            Self::Json | Self::CloudEvents | Self::Debezium(None) => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn avro_mut(&mut self) -> Option<&mut Avro> {
        match self {
            Self::Avro(avro) | Self::Debezium(Some(avro)) => Some(avro),
            Self::Json | Self::CloudEvents | Self::Debezium(None) => None,
        }
    }
}

/// An Avro schema. What is wrong with its text is told by [`Registry::register`](super::Registry::register).
///
/// ```
/// # use tidegate::projection::{Avro, AvroSchema};
/// const KIND: &str = r#"{"type": "enum", "name": "Kind", "symbols": ["FEE", "INTEREST"]}"#;
/// const ENTRY: &str = r#"{"type": "record", "name": "Entry", "fields": [{"name": "kind", "type": "Kind"}]}"#;
/// let avro = Avro::confluent(AvroSchema::with_types(&[KIND], ENTRY));
/// ```
#[derive(Clone, Debug)]
pub struct AvroSchema(pub(crate) Result<Arc<Schema>, String>);

impl AvroSchema {
    /// A schema that refers by name to what others define, each of which comes after those it refers to itself.
    pub fn with_types(types: &[&str], text: &str) -> Self {
        let schema = Schema::parse(text, types);
        let schema = schema.and_then(|schema| schema.check_defaults().map(|()| schema));
        Self(schema.map(Arc::new))
    }
}

impl From<&str> for AvroSchema {
    fn from(text: &str) -> Self {
        Self::with_types(&[], text)
    }
}

/// Values in Avro: the projection's own schema, by which everything is read whatever it was written with, and how a value
/// says what that was.
///
/// ```
/// # use tidegate::projection::{Avro, Format};
/// # const ENTRY: &str = r#"{"type": "record", "name": "Entry", "fields": []}"#;
/// # const OLD_ENTRY: &str = ENTRY;
/// # const KEY: &str = ENTRY;
/// let registry = Format::Avro(Avro::confluent(ENTRY));
/// let fingerprints = Format::Avro(Avro::single_object(ENTRY, &[OLD_ENTRY]));
/// let change_events = Format::Debezium(Some(Avro::confluent(ENTRY).key(KEY)));
/// ```
#[derive(Clone, Debug)]
pub struct Avro {
    pub(crate) schema: Arc<Schema>,
    pub(crate) framing: Framing,
    /// How keys are read of which a part is wanted; framed as values are.
    pub(crate) key: Option<Box<Avro>>,
    /// What is wrong with the texts of schemas: then it is never used.
    pub(crate) wrong: Vec<String>,
}

impl Avro {
    /// Confluent's framing: a zero byte and the number of the writer's schema, which is asked for at the `[schema_registry]`
    /// of the configuration.
    pub fn confluent(schema: impl Into<AvroSchema>) -> Self {
        Self::with(schema.into(), |_| Ok(Framing::Confluent))
    }

    /// Single-object encoding: `c3 01` and the fingerprint of the writer's schema, which is `schema` or one of `written_with`.
    pub fn single_object(schema: impl Into<AvroSchema>, written_with: &[&str]) -> Self {
        Self::with(schema.into(), |_| {
            let writers = written_with.iter().map(|text| AvroSchema::from(*text).0);
            writers.collect::<Result<_, _>>().map(Framing::SingleObject)
        })
    }

    /// The datum alone, written with `schema`.
    pub fn raw(schema: impl Into<AvroSchema>) -> Self {
        Self::with(schema.into(), |schema| Ok(Framing::Raw(Arc::clone(schema))))
    }

    /// The datum alone, written with another schema than it is read by.
    pub fn raw_written_with(
        schema: impl Into<AvroSchema>,
        written_with: impl Into<AvroSchema>,
    ) -> Self {
        Self::with(schema.into(), |_| written_with.into().0.map(Framing::Raw))
    }

    /// The schema by which keys are read, framed as values are: for a [`Source::KeyPath`].
    #[must_use]
    pub fn key(mut self, schema: impl Into<AvroSchema>) -> Self {
        let framing = self.framing.clone();
        let key = Self::with(schema.into(), |schema| {
            Ok(match framing {
                Framing::Confluent => Framing::Confluent,
                Framing::SingleObject(_) => Framing::SingleObject(Vec::new()),
                Framing::Raw(_) => Framing::Raw(Arc::clone(schema)),
            })
        });
        self.wrong
            .extend(key.wrong.iter().map(|why| format!("of the key: {why}")));
        self.key = Some(Box::new(key));
        self
    }

    /// By a schema that was read elsewhere.
    pub(crate) fn new(schema: Arc<Schema>, framing: Framing) -> Self {
        Self {
            schema,
            framing,
            key: None,
            wrong: Vec::new(),
        }
    }

    fn with(
        schema: AvroSchema,
        framing: impl FnOnce(&Arc<Schema>) -> Result<Framing, String>,
    ) -> Self {
        let mut wrong = Vec::new();
        let schema = schema.0.unwrap_or_else(|why| {
            wrong.push(why);
            Arc::new(Schema::nothing())
        });
        let framing = framing(&schema).unwrap_or_else(|why| {
            wrong.push(format!("in `written_with`: {why}"));
            Framing::Confluent
        });
        Self {
            wrong,
            ..Self::new(schema, framing)
        }
    }
}

/// How a value in Avro says which schema it was written with.
#[derive(Clone, Debug)]
pub(crate) enum Framing {
    /// A zero byte and the number that a schema registry gave to the schema.
    Confluent,
    /// `C3 01` and the schema's fingerprint: one of these.
    SingleObject(Vec<Arc<Schema>>),
    /// It does not: with this one.
    Raw(Arc<Schema>),
}

/// The types of event that a projection tells apart. See [`Projection::types`](super::Projection::types).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Types {
    /// Where an event's type stands.
    pub(crate) source: Source,
    /// Those that it knows.
    pub(crate) known: Vec<String>,
    pub(crate) unknown: UnknownType,
}

impl Types {
    /// Where an event's type stands, and the types that the projection knows. One of another type halts its partition.
    pub fn new(source: Source, known: &[&str]) -> Self {
        Self {
            source,
            known: known.iter().map(|name| (*name).to_owned()).collect(),
            unknown: UnknownType::default(),
        }
    }

    /// What was done to the row of a change event: `c`, `u`, `d` and `r`. Truncations and messages of the log have no row.
    pub fn of_changes() -> Self {
        let op = Source::Envelope("/op".to_owned());
        Self::new(op, &["c", "u", "d", "r"])
    }

    /// What becomes of an event of another type.
    #[must_use]
    pub fn unknown(self, unknown: UnknownType) -> Self {
        Self { unknown, ..self }
    }
}

/// What becomes of an event of a type that the projection does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownType {
    /// Its partition halts, with the type's name: nobody said what it means.
    #[default]
    Halt,
    /// It means nothing here: it is counted as filtered.
    Filter,
    /// It cannot be applied: it is parked, and with it what follows of its entity.
    Park,
}

/// What the value and the headers of one record may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueLimits {
    pub(crate) bytes_max: usize,
    /// Names and values of its headers together.
    pub(crate) headers_bytes_max: usize,
    /// Of values that are not JSON: records and collections inside each other.
    pub(crate) nesting_max: usize,
    /// Of values that are not JSON: items of all collections together.
    pub(crate) items_max: usize,
}

impl Default for ValueLimits {
    fn default() -> Self {
        Self {
            bytes_max: 16 << 20,
            headers_bytes_max: 1 << 20,
            nesting_max: 64,
            items_max: 1_000_000,
        }
    }
}
