//! A schema in a form that is easy to walk: types in one list, names resolved.

use std::collections::HashMap;
use std::panic::catch_unwind;

use apache_avro::rabin::Rabin;
use apache_avro::schema::{InnerDecimalSchema, Name, RecordSchema, UuidSchema};

use super::datum::Unit;

/// A type's place in its schema.
pub(super) type Id = usize;

/// A schema with all names that it refers to.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    pub(super) types: Vec<Type>,
    pub(super) root: Id,
    fingerprint: [u8; 8],
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Type {
    Null,
    Boolean,
    Int(Meaning),
    Long(Meaning),
    Float,
    Double,
    Bytes(Meaning),
    String(Meaning),
    Fixed {
        names: Names,
        size: usize,
        meaning: Meaning,
    },
    Enum {
        names: Names,
        symbols: Vec<String>,
        default: Option<String>,
    },
    Array(Id),
    Map(Id),
    Union(Vec<Id>),
    Record {
        names: Names,
        fields: Vec<Field>,
    },
}

/// A logical type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Plain,
    Date,
    Time(Unit),
    Timestamp(Unit),
    LocalTimestamp(Unit),
    Decimal { scale: usize },
    BigDecimal,
    Uuid,
    Duration,
}

/// A named type's full name and its aliases, full too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) full: String,
    aliases: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) aliases: Vec<String>,
    pub(super) default: Option<serde_json::Value>,
    pub(super) of: Id,
}

impl Names {
    /// The name without its namespace.
    fn short(name: &str) -> &str {
        name.rsplit('.').next().unwrap_or(name)
    }

    /// Whether what was written under `writer`'s name is what this reads: the same name, whatever its namespace, or
    /// an alias.
    pub(super) fn reads(&self, writer: &Self) -> bool {
        Self::short(&self.full) == Self::short(&writer.full) || self.aliases.contains(&writer.full)
    }

    /// The same, and the namespace too.
    pub(super) fn is(&self, writer: &Self) -> bool {
        self.full == writer.full
    }
}

/// What kind of value stands somewhere, as far as columns care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Boolean,
    Integer,
    Float,
    Bytes,
    Text,
    Date,
    Time,
    Timestamp,
    LocalTimestamp,
    Decimal,
    Uuid,
    Duration,
    /// A record, an array or a map.
    Tree,
}

impl Kind {
    /// As a person calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Integer => "an integer",
            Self::Float => "a floating-point number",
            Self::Bytes => "bytes",
            Self::Text => "a string",
            Self::Date => "a date",
            Self::Time => "a time of day",
            Self::Timestamp => "a timestamp",
            Self::LocalTimestamp => "a local timestamp",
            Self::Decimal => "a decimal",
            Self::Uuid => "a UUID",
            Self::Duration => "a duration",
            Self::Tree => "a record, an array or a map",
        }
    }
}

impl Schema {
    /// Reads a schema, and those that it refers to by name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &str, references: &[&str]) -> Result<Self, String> {
        // The text is anybody's who may register a schema; a panic must not end a writer.
        let parsed = catch_unwind(|| -> Result<_, String> {
            let (schema, others) =
                apache_avro::Schema::parse_str_with_list(text, references).map_err(why)?;
            let fingerprint = match others.is_empty() {
                true => schema.fingerprint::<Rabin>(),
                false => {
                    let whole = schema.independent_canonical_form(&others).map_err(why)?;
                    let whole = apache_avro::Schema::parse_str(&whole).map_err(why)?;
                    whole.fingerprint::<Rabin>()
                }
            };
            Ok((schema, others, fingerprint.bytes))
        });
        let (schema, others, fingerprint) =
            parsed.map_err(|_| "the schema makes the parser panic".to_owned())??;
        let mut definitions = HashMap::new();
        for schema in others.iter().chain([&schema]) {
            define(schema, &mut definitions)?;
        }
        let mut types = Types {
            definitions,
            known: HashMap::new(),
            types: Vec::new(),
        };
        let root = types.add(&schema)?;
        Ok(Self {
            types: types.types,
            root,
            fingerprint: fingerprint
                .try_into()
                .map_err(|_| "a fingerprint of another length than 8".to_owned())?,
        })
    }

    /// CRC-64-AVRO, as single-object encoding has it.
    pub(crate) fn fingerprint(&self) -> [u8; 8] {
        self.fingerprint
    }

    /// The full name, if it is a record's.
    pub(crate) fn record_name(&self) -> Option<&str> {
        match &self.types[self.root] {
            Type::Record { names, .. } => Some(&names.full),
            _ => None,
        }
    }

    /// What may stand at the end of a path; each kind once.
    ///
    /// # Errors
    /// Which step leads nowhere, and the names there are instead.
    pub(crate) fn at(&self, path: &[String]) -> Result<Vec<Kind>, (String, Vec<String>)> {
        let mut places = self.branches(self.root);
        for step in path {
            let mut next = Vec::new();
            let mut names = Vec::new();
            for place in &places {
                match &self.types[*place] {
                    Type::Record { fields, .. } => {
                        for field in fields {
                            match field.name == *step {
                                true => next.extend(self.branches(field.of)),
                                false => names.push(field.name.clone()),
                            }
                        }
                    }
                    Type::Map(values) => next.extend(self.branches(*values)),
                    Type::Array(items) if super::plan::index(step).is_some() => {
                        next.extend(self.branches(*items));
                    }
                    _ => {}
                }
            }
            if next.is_empty() {
                return Err((step.clone(), names));
            }
            next.sort_unstable();
            next.dedup();
            places = next;
        }
        let mut kinds: Vec<Kind> = Vec::new();
        for kind in places.iter().map(|place| self.types[*place].kind()) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        Ok(kinds)
    }

    /// The types that may stand where this one does.
    fn branches(&self, id: Id) -> Vec<Id> {
        match &self.types[id] {
            Type::Union(branches) => branches.clone(),
            _ => vec![id],
        }
    }
}

impl Type {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Null => Kind::Null,
            Self::Boolean => Kind::Boolean,
            Self::Int(meaning) | Self::Long(meaning) => match meaning {
                Meaning::Date => Kind::Date,
                Meaning::Time(_) => Kind::Time,
                Meaning::Timestamp(_) => Kind::Timestamp,
                Meaning::LocalTimestamp(_) => Kind::LocalTimestamp,
                _ => Kind::Integer,
            },
            Self::Float | Self::Double => Kind::Float,
            Self::Bytes(meaning) | Self::Fixed { meaning, .. } => match meaning {
                Meaning::Decimal { .. } | Meaning::BigDecimal => Kind::Decimal,
                Meaning::Uuid => Kind::Uuid,
                Meaning::Duration => Kind::Duration,
                _ => Kind::Bytes,
            },
            Self::String(Meaning::Uuid) => Kind::Uuid,
            Self::String(_) | Self::Enum { .. } => Kind::Text,
            Self::Array(_) | Self::Map(_) | Self::Record { .. } | Self::Union(_) => Kind::Tree,
        }
    }

    /// As the specification calls it, for errors.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Boolean => "boolean".to_owned(),
            Self::Int(meaning) => meaning.of("int"),
            Self::Long(meaning) => meaning.of("long"),
            Self::Float => "float".to_owned(),
            Self::Double => "double".to_owned(),
            Self::Bytes(meaning) => meaning.of("bytes"),
            Self::String(meaning) => meaning.of("string"),
            Self::Fixed { names, size, .. } => format!("fixed `{}` of {size} bytes", names.full),
            Self::Enum { names, .. } => format!("enum `{}`", names.full),
            Self::Array(_) => "array".to_owned(),
            Self::Map(_) => "map".to_owned(),
            Self::Union(_) => "union".to_owned(),
            Self::Record { names, .. } => format!("record `{}`", names.full),
        }
    }
}

impl Meaning {
    fn of(self, base: &str) -> String {
        match self {
            Self::Plain => base.to_owned(),
            Self::Date => "date".to_owned(),
            Self::Time(unit) => format!("time-{}", unit.name()),
            Self::Timestamp(unit) => format!("timestamp-{}", unit.name()),
            Self::LocalTimestamp(unit) => format!("local-timestamp-{}", unit.name()),
            Self::Decimal { .. } => "decimal".to_owned(),
            Self::BigDecimal => "big-decimal".to_owned(),
            Self::Uuid => "uuid".to_owned(),
            Self::Duration => "duration".to_owned(),
        }
    }
}

/// What the library says, with what it says of the cause.
fn why(error: apache_avro::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Gathers what is defined under a name, or an alias, anywhere inside.
fn define<'s>(
    schema: &'s apache_avro::Schema,
    definitions: &mut HashMap<String, &'s apache_avro::Schema>,
) -> Result<(), String> {
    use apache_avro::Schema as Avro;
    if let (false, Some(name)) = (matches!(schema, Avro::Ref { .. }), schema.name()) {
        let name = name.fullname(None);
        if let Some(other) = definitions.insert(name.clone(), schema)
            && other != schema
        {
            return Err(format!("`{name}` is defined twice, in different ways"));
        }
        for alias in schema.aliases().into_iter().flatten() {
            definitions.entry(alias.fullname(None)).or_insert(schema);
        }
    }
    match schema {
        Avro::Array(array) => define(&array.items, definitions),
        Avro::Map(map) => define(&map.types, definitions),
        Avro::Union(union) => union
            .variants()
            .iter()
            .try_for_each(|branch| define(branch, definitions)),
        Avro::Record(record) => record
            .fields
            .iter()
            .try_for_each(|field| define(&field.schema, definitions)),
        _ => Ok(()),
    }
}

struct Types<'s> {
    definitions: HashMap<String, &'s apache_avro::Schema>,
    known: HashMap<String, Id>,
    types: Vec<Type>,
}

impl<'s> Types<'s> {
    fn push(&mut self, of: Type) -> Id {
        self.types.push(of);
        self.types.len() - 1
    }

    fn add(&mut self, schema: &'s apache_avro::Schema) -> Result<Id, String> {
        use apache_avro::Schema as Avro;
        let of = match schema {
            Avro::Null => Type::Null,
            Avro::Boolean => Type::Boolean,
            Avro::Int => Type::Int(Meaning::Plain),
            Avro::Long => Type::Long(Meaning::Plain),
            Avro::Float => Type::Float,
            Avro::Double => Type::Double,
            // By the specification a UUID is a string or a fixed.
            Avro::Bytes | Avro::Uuid(UuidSchema::Bytes) => Type::Bytes(Meaning::Plain),
            Avro::String => Type::String(Meaning::Plain),
            Avro::Array(array) => Type::Array(self.add(&array.items)?),
            Avro::Map(map) => Type::Map(self.add(&map.types)?),
            Avro::Union(union) => {
                let branches = union.variants().iter().map(|branch| self.add(branch));
                Type::Union(branches.collect::<Result<_, _>>()?)
            }
            Avro::Record(record) => return self.record(schema, record),
            Avro::Enum(of) => {
                if let Some(default) = &of.default
                    && !of.symbols.contains(default)
                {
                    return Err(format!(
                        "enum `{}`: its default `{default}` is none of its symbols",
                        of.name.fullname(None)
                    ));
                }
                Type::Enum {
                    names: names(schema, &of.name),
                    symbols: of.symbols.clone(),
                    default: of.default.clone(),
                }
            }
            Avro::Fixed(of) => fixed(schema, of, Meaning::Plain),
            Avro::Decimal(decimal) => {
                let meaning = Meaning::Decimal {
                    scale: decimal.scale,
                };
                match &decimal.inner {
                    InnerDecimalSchema::Bytes => Type::Bytes(meaning),
                    InnerDecimalSchema::Fixed(of) => fixed(schema, of, meaning),
                }
            }
            Avro::BigDecimal => Type::Bytes(Meaning::BigDecimal),
            Avro::Uuid(UuidSchema::String) => Type::String(Meaning::Uuid),
            Avro::Uuid(UuidSchema::Fixed(of)) => fixed(schema, of, Meaning::Uuid),
            Avro::Date => Type::Int(Meaning::Date),
            Avro::TimeMillis => Type::Int(Meaning::Time(Unit::Millis)),
            Avro::TimeMicros => Type::Long(Meaning::Time(Unit::Micros)),
            Avro::TimestampMillis => Type::Long(Meaning::Timestamp(Unit::Millis)),
            Avro::TimestampMicros => Type::Long(Meaning::Timestamp(Unit::Micros)),
            Avro::TimestampNanos => Type::Long(Meaning::Timestamp(Unit::Nanos)),
            Avro::LocalTimestampMillis => Type::Long(Meaning::LocalTimestamp(Unit::Millis)),
            Avro::LocalTimestampMicros => Type::Long(Meaning::LocalTimestamp(Unit::Micros)),
            Avro::LocalTimestampNanos => Type::Long(Meaning::LocalTimestamp(Unit::Nanos)),
            Avro::Duration(of) => fixed(schema, of, Meaning::Duration),
            Avro::Ref { name } => return self.named(&name.fullname(None)),
        };
        let name = match &of {
            Type::Enum { names, .. } | Type::Fixed { names, .. } => Some(names.full.clone()),
            _ => None,
        };
        let id = self.push(of);
        if let Some(name) = name {
            self.known.insert(name, id);
        }
        Ok(id)
    }

    fn named(&mut self, name: &str) -> Result<Id, String> {
        if let Some(id) = self.known.get(name) {
            return Ok(*id);
        }
        match self.definitions.get(name) {
            Some(definition) => self.add(definition),
            None => Err(format!("`{name}` is not defined")),
        }
    }

    fn record(
        &mut self,
        schema: &'s apache_avro::Schema,
        record: &'s RecordSchema,
    ) -> Result<Id, String> {
        let names = names(schema, &record.name);
        if let Some(id) = self.known.get(&names.full) {
            return Ok(*id);
        }
        let id = self.push(Type::Null);
        self.known.insert(names.full.clone(), id);
        let mut fields = Vec::with_capacity(record.fields.len());
        for field in &record.fields {
            fields.push(Field {
                name: field.name.clone(),
                aliases: field.aliases.clone(),
                default: field.default.clone(),
                of: self.add(&field.schema)?,
            });
        }
        self.types[id] = Type::Record { names, fields };
        Ok(id)
    }
}

fn fixed(
    schema: &apache_avro::Schema,
    of: &apache_avro::schema::FixedSchema,
    meaning: Meaning,
) -> Type {
    Type::Fixed {
        names: names(schema, &of.name),
        size: of.size,
        meaning,
    }
}

fn names(schema: &apache_avro::Schema, name: &Name) -> Names {
    let aliases = schema.aliases().into_iter().flatten();
    Names {
        full: name.fullname(None),
        aliases: aliases.map(|alias| alias.fullname(None)).collect(),
    }
}
