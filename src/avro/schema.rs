//! A schema in a form that is easy to walk: types in one list, names resolved.

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::panic::catch_unwind;

use apache_avro::schema::{InnerDecimalSchema, Name, UuidSchema};
use serde_json::{Value, json};

use super::datum::Unit;
use super::encode::encode_at;

/// A type's place in its schema.
pub(super) type Id = usize;

/// Levels of JSON in a schema's text: the parser of JSON stops there, and what calls itself for what is inside stops
/// with it.
const TEXT_NESTING_MAX: usize = 127;
/// Types of a schema, with all that it refers to.
const TYPES_MAX: usize = 10_000;
/// Where a field's default waits until it is wanted.
const DEFAULT: &str = "\0default";

/// A schema with all names that it refers to.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    pub(super) types: Vec<Type>,
    pub(super) root: Id,
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
    pub(super) default: Option<Value>,
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
    /// Reads a schema. Each of those that it refers to by name comes after what it refers to itself.
    ///
    /// What is nested in a text is bounded, and only that is gone into by calls: a chain of names, within a schema or
    /// from one to another, may be of any length.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &str, references: &[&str]) -> Result<Self, String> {
        let texts = references.iter().chain([&text]);
        let fields = texts.enumerate().map(|(at, text)| {
            let mut of = tree(text)?;
            put_defaults_aside(&mut of);
            Ok::<_, String>(json!({"name": format!("f{at}"), "type": of}))
        });
        let fields: Vec<Value> = fields.collect::<Result<_, _>>()?;
        // As the fields of one record, so that the parser meets each name after its definition. Given a list, it would
        // go from one to the next by calls, as far as they lead.
        let all = json!({"type": "record", "name": "all", "fields": fields});
        // The text is anybody's who may register a schema; a panic must not end a writer.
        let parsed = catch_unwind(|| apache_avro::Schema::parse(&all).map_err(why));
        let parsed = parsed.map_err(|_| "the schema makes the parser panic".to_owned())??;
        let apache_avro::Schema::Record(all) = parsed else {
            return Err("not read as a schema".to_owned());
        };
        let mut definitions = HashMap::new();
        for field in &all.fields {
            define(&field.schema, &mut definitions)?;
        }
        let Some(schema) = all.fields.last() else {
            return Err("not read as a schema".to_owned());
        };
        let mut types = Types {
            definitions,
            known: HashMap::new(),
            types: Vec::new(),
            open: Vec::new(),
        };
        let root = types.add(&schema.schema)?;
        Ok(Self {
            types: types.all()?,
            root,
        })
    }

    /// That of null alone.
    pub(crate) fn nothing() -> Self {
        Self {
            types: vec![Type::Null],
            root: 0,
        }
    }

    /// Whether the default of each field is a value of its type.
    ///
    /// # Errors
    /// Which one is not, and why.
    pub(crate) fn check_defaults(&self) -> Result<(), String> {
        for of in &self.types {
            let Type::Record { names, fields } = of else {
                continue;
            };
            for field in fields {
                if let Some(default) = &field.default {
                    encode_at(self, field.of, default, &mut Vec::new()).map_err(|why| {
                        format!(
                            "the default of field `{}` of record `{}`: {why}",
                            field.name, names.full
                        )
                    })?;
                }
            }
        }
        Ok(())
    }

    /// CRC-64-AVRO, as single-object encoding has it.
    pub(crate) fn fingerprint(&self) -> [u8; 8] {
        const EMPTY: u64 = 0xc15d_213a_a4d7_a795;
        let mut sum = EMPTY;
        for byte in self.canonical().bytes() {
            sum ^= u64::from(byte);
            for _ in 0..8 {
                sum = (sum >> 1) ^ if sum & 1 == 1 { EMPTY } else { 0 };
            }
        }
        sum.to_le_bytes()
    }

    /// The parsing canonical form: a type is written out where it is met first, and named from then on.
    fn canonical(&self) -> String {
        enum Part {
            Text(String),
            Type(Id),
        }
        let quoted = |text: &str| Value::from(text).to_string();
        let text = |text: &str| Part::Text(text.to_owned());
        let mut canonical = String::new();
        let mut written = HashSet::new();
        let mut open = vec![Part::Type(self.root)];
        while let Some(part) = open.pop() {
            let id = match part {
                Part::Text(text) => {
                    canonical.push_str(&text);
                    continue;
                }
                Part::Type(id) => id,
            };
            let mut parts = Vec::new();
            let of = &self.types[id];
            let full = of.names().map(|names| quoted(&names.full));
            match (of, full) {
                (_, Some(full)) if !written.insert(id) => parts.push(Part::Text(full)),
                (Type::Record { fields, .. }, Some(full)) => {
                    parts.push(Part::Text(format!(
                        r#"{{"name":{full},"type":"record","fields":["#
                    )));
                    for (at, field) in fields.iter().enumerate() {
                        let comma = if at == 0 { "" } else { "," };
                        let name = quoted(&field.name);
                        parts.push(Part::Text(format!(r#"{comma}{{"name":{name},"type":"#)));
                        parts.push(Part::Type(field.of));
                        parts.push(text("}"));
                    }
                    parts.push(text("]}"));
                }
                (Type::Enum { symbols, .. }, Some(full)) => {
                    let symbols: Vec<String> = symbols.iter().map(|s| quoted(s)).collect();
                    let symbols = symbols.join(",");
                    parts.push(Part::Text(format!(
                        r#"{{"name":{full},"type":"enum","symbols":[{symbols}]}}"#
                    )));
                }
                (Type::Fixed { size, .. }, Some(full)) => parts.push(Part::Text(format!(
                    r#"{{"name":{full},"type":"fixed","size":{size}}}"#
                ))),
                (Type::Array(items), _) => {
                    parts.push(text(r#"{"type":"array","items":"#));
                    parts.extend([Part::Type(*items), text("}")]);
                }
                (Type::Map(values), _) => {
                    parts.push(text(r#"{"type":"map","values":"#));
                    parts.extend([Part::Type(*values), text("}")]);
                }
                (Type::Union(branches), _) => {
                    for (at, branch) in branches.iter().enumerate() {
                        parts.push(text(if at == 0 { "[" } else { "," }));
                        parts.push(Part::Type(*branch));
                    }
                    parts.push(text(if branches.is_empty() { "[]" } else { "]" }));
                }
                (of, _) => parts.push(Part::Text(quoted(of.base()))),
            }
            open.extend(parts.into_iter().rev());
        }
        canonical
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

    /// Of a type that has a name.
    pub(super) fn names(&self) -> Option<&Names> {
        match self {
            Self::Fixed { names, .. } | Self::Enum { names, .. } | Self::Record { names, .. } => {
                Some(names)
            }
            _ => None,
        }
    }

    /// As the specification calls it, without what it means.
    fn base(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Int(_) => "int",
            Self::Long(_) => "long",
            Self::Float => "float",
            Self::Double => "double",
            Self::Bytes(_) => "bytes",
            Self::String(_) => "string",
            Self::Fixed { .. } => "fixed",
            Self::Enum { .. } => "enum",
            Self::Array(_) => "array",
            Self::Map(_) => "map",
            Self::Union(_) => "union",
            Self::Record { .. } => "record",
        }
    }

    /// The same for errors.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Int(meaning)
            | Self::Long(meaning)
            | Self::Bytes(meaning)
            | Self::String(meaning) => meaning.of(self.base()),
            Self::Fixed { names, size, .. } => format!("fixed `{}` of {size} bytes", names.full),
            Self::Enum { names, .. } => format!("enum `{}`", names.full),
            Self::Record { names, .. } => format!("record `{}`", names.full),
            _ => self.base().to_owned(),
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

/// Reads the text of a schema as JSON.
fn tree(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| {
        let why = error.to_string();
        match why.contains("recursion limit") {
            true => format!("the schema is nested deeper than {TEXT_NESTING_MAX} levels of JSON"),
            false => format!("the schema is no JSON: {why}"),
        }
    })
}

/// Renames the defaults of fields. The parser compares them with their types, and goes into the defaults of what
/// is inside by calls, as far as they lead.
fn put_defaults_aside(of: &mut Value) {
    match of {
        Value::Array(branches) => branches.iter_mut().for_each(put_defaults_aside),
        Value::Object(of) => {
            for inside in ["type", "items", "values"] {
                if let Some(inside) = of.get_mut(inside) {
                    put_defaults_aside(inside);
                }
            }
            let fields = of.get_mut("fields").and_then(Value::as_array_mut);
            for field in fields.into_iter().flatten() {
                put_defaults_aside(field);
                if let Value::Object(field) = field
                    && let Some(default) = field.remove("default")
                {
                    field.insert(DEFAULT.to_owned(), default);
                }
            }
        }
        _ => {}
    }
}

struct Types<'s> {
    definitions: HashMap<String, &'s apache_avro::Schema>,
    known: HashMap<String, Id>,
    types: Vec<Type>,
    /// Whose places are given and whose insides are not read yet.
    open: Vec<(Id, &'s apache_avro::Schema)>,
}

impl<'s> Types<'s> {
    /// Gives a type its place.
    fn add(&mut self, schema: &'s apache_avro::Schema) -> Result<Id, String> {
        let schema = match schema {
            apache_avro::Schema::Ref { name } => {
                let name = name.fullname(None);
                match self.definitions.get(&name) {
                    Some(definition) => definition,
                    None => return Err(format!("`{name}` is not defined")),
                }
            }
            other => other,
        };
        let id = self.types.len();
        if let Some(name) = schema.name() {
            match self.known.entry(name.fullname(None)) {
                Entry::Occupied(known) => return Ok(*known.get()),
                Entry::Vacant(new) => new.insert(id),
            };
        }
        if id == TYPES_MAX {
            return Err(format!("the schema has more than {TYPES_MAX} types"));
        }
        self.types.push(Type::Null);
        self.open.push((id, schema));
        Ok(id)
    }

    fn all(mut self) -> Result<Vec<Type>, String> {
        while let Some((id, schema)) = self.open.pop() {
            self.types[id] = self.read(schema)?;
        }
        Ok(self.types)
    }

    fn read(&mut self, schema: &'s apache_avro::Schema) -> Result<Type, String> {
        use apache_avro::Schema as Avro;
        Ok(match schema {
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
            Avro::Record(record) => {
                let fields = record.fields.iter().map(|field| {
                    Ok(Field {
                        name: field.name.clone(),
                        aliases: field.aliases.clone(),
                        default: field.custom_attributes.get(DEFAULT).cloned(),
                        of: self.add(&field.schema)?,
                    })
                });
                let fields = fields.collect::<Result<_, String>>()?;
                Type::Record {
                    names: names(schema, &record.name),
                    fields,
                }
            }
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
            Avro::Ref { name } => {
                return Err(format!(
                    "`{}` is another name for itself",
                    name.fullname(None)
                ));
            }
        })
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
