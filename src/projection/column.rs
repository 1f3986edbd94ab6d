//! Typed columns of a batch: what a SQL projection's statements see as `events`, and handlers by [`Event::get`].

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};
use uuid::Uuid;

#[cfg(doc)]
use super::events::Event;
use super::source::Source;

/// A value that is taken from each record, as a certain type.
///
/// ```
/// # use tidegate::projection::{Column, ColumnType, Source};
/// let amount = Column::new("amount", ColumnType::Bigint, Source::Pointer("/amount".to_owned()));
/// let note = Column { nullable: true, ..Column::new("note", ColumnType::Text, Source::Header("note".to_owned())) };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// The column's name in `events`.
    pub name: String,
    /// Its Postgres type.
    pub column_type: ColumnType,
    /// Where its value stands in a record.
    pub source: Source,
    /// Whether a missing or null value is allowed; otherwise it is an error of the record.
    pub nullable: bool,
    /// What stands for a missing or null value, as text that a header could have.
    pub default: Option<String>,
    /// What a number counts where a time is wanted.
    pub unit: Option<TimeUnit>,
}

impl Column {
    /// A column that has a value in every record.
    pub fn new(name: &str, column_type: ColumnType, source: Source) -> Self {
        Self {
            name: name.to_owned(),
            column_type,
            source,
            nullable: false,
            default: None,
            unit: None,
        }
    }
}

/// What a number since 1970 counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// For a `date`.
    Days,
    /// For a `timestamptz` or a `timestamp`, as the following ones.
    Seconds,
    /// Thousandths of a second.
    Millis,
    /// Millionths of a second.
    Micros,
    /// Billionths of a second.
    Nanos,
}

impl TimeUnit {
    /// The moment, whichever side of 1970; none beyond what a date can say.
    pub(crate) fn moment(self, number: i64) -> Option<DateTime<Utc>> {
        match self {
            Self::Days => DateTime::from_timestamp(number.checked_mul(86_400)?, 0),
            Self::Seconds => DateTime::from_timestamp(number, 0),
            Self::Millis => DateTime::from_timestamp_millis(number),
            Self::Micros => DateTime::from_timestamp_micros(number),
            Self::Nanos => Some(DateTime::from_timestamp_nanos(number)),
        }
    }
}

/// The Postgres types a column may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColumnType {
    /// `bigint`, from a JSON integer.
    Bigint,
    /// `integer`, from a JSON integer.
    Integer,
    /// `double precision`, from a JSON number.
    Double,
    /// `numeric`, from a JSON number or a string that holds one; no digit is lost.
    Numeric,
    /// `boolean`.
    Boolean,
    /// `text`, from a JSON string.
    Text,
    /// `uuid`, from a JSON string.
    Uuid,
    /// `timestamptz`, from an RFC 3339 string such as `2026-01-31T09:30:00Z`.
    Timestamptz,
    /// `timestamp`, without a time zone, from a string such as `2026-01-31T09:30:00`.
    Timestamp,
    /// `date`, from a string such as `2026-01-31`.
    Date,
    /// `bytea`, from a JSON string in base64.
    Bytea,
    /// `jsonb`, from any JSON value.
    Jsonb,
}

impl ColumnType {
    /// All types, with the name that Postgres and the configuration use.
    pub const ALL: [(&'static str, Self); 12] = [
        ("bigint", Self::Bigint),
        ("integer", Self::Integer),
        ("double precision", Self::Double),
        ("numeric", Self::Numeric),
        ("boolean", Self::Boolean),
        ("text", Self::Text),
        ("uuid", Self::Uuid),
        ("timestamptz", Self::Timestamptz),
        ("timestamp", Self::Timestamp),
        ("date", Self::Date),
        ("bytea", Self::Bytea),
        ("jsonb", Self::Jsonb),
    ];

    /// The type's name in SQL.
    pub fn sql(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, t)| *t == self)
            .map_or("text", |(name, _)| name)
    }

    /// The element type the values travel as: text for types that Postgres parses better than we do.
    pub(crate) fn wire(self) -> &'static str {
        match self {
            Self::Numeric | Self::Jsonb => "text",
            other => other.sql(),
        }
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sql())
    }
}

impl FromStr for ColumnType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, t)| *t).ok_or_else(|| {
            let meant = match name {
                "int8" | "long" => "bigint",
                "int" | "int4" | "smallint" | "int2" => "integer",
                "double" | "float8" | "float" | "real" => "double precision",
                "decimal" => "numeric",
                "bool" => "boolean",
                "varchar" | "char" | "string" => "text",
                "timestamp with time zone" => "timestamptz",
                "timestamp without time zone" => "timestamp",
                "bytes" => "bytea",
                "json" => "jsonb",
                _ => {
                    let known: Vec<_> = Self::ALL.iter().map(|(name, _)| *name).collect();
                    return format!("unknown type `{name}`; known are {}", known.join(", "));
                }
            };
            format!("unknown type `{name}`; write \"{meant}\"")
        })
    }
}

/// Strings of a batch in one allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextColumn {
    bytes: String,
    spans: Vec<Option<Range<usize>>>,
}

impl TextColumn {
    /// Adds a value.
    pub(crate) fn push(&mut self, value: Option<&str>) {
        let span = value.map(|value| {
            let start = self.bytes.len();
            self.bytes.push_str(value);
            start..self.bytes.len()
        });
        self.spans.push(span);
    }

    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The value at `index`.
    pub(crate) fn get(&self, index: usize) -> Option<&str> {
        Some(&self.bytes[self.spans[index].clone()?])
    }
}

/// One column of a batch, one value per event.
#[derive(Clone, Debug)]
pub(crate) enum ColumnData {
    Bigint(Vec<Option<i64>>),
    Integer(Vec<Option<i32>>),
    Double(Vec<Option<f64>>),
    Boolean(Vec<Option<bool>>),
    Uuid(Vec<Option<Uuid>>),
    Timestamptz(Vec<Option<DateTime<Utc>>>),
    Timestamp(Vec<Option<NaiveDateTime>>),
    Date(Vec<Option<NaiveDate>>),
    Bytea(Vec<Option<Vec<u8>>>),
    /// Also `numeric` and `jsonb`, which Postgres casts.
    Text(TextColumn),
}

impl ColumnData {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bigint(column) => column.len(),
            Self::Integer(column) => column.len(),
            Self::Double(column) => column.len(),
            Self::Boolean(column) => column.len(),
            Self::Uuid(column) => column.len(),
            Self::Timestamptz(column) => column.len(),
            Self::Timestamp(column) => column.len(),
            Self::Date(column) => column.len(),
            Self::Bytea(column) => column.len(),
            Self::Text(column) => column.len(),
        }
    }

    pub(crate) fn new(column_type: ColumnType) -> Self {
        match column_type {
            ColumnType::Bigint => Self::Bigint(Vec::new()),
            ColumnType::Integer => Self::Integer(Vec::new()),
            ColumnType::Double => Self::Double(Vec::new()),
            ColumnType::Boolean => Self::Boolean(Vec::new()),
            ColumnType::Uuid => Self::Uuid(Vec::new()),
            ColumnType::Timestamptz => Self::Timestamptz(Vec::new()),
            ColumnType::Timestamp => Self::Timestamp(Vec::new()),
            ColumnType::Date => Self::Date(Vec::new()),
            ColumnType::Bytea => Self::Bytea(Vec::new()),
            ColumnType::Text | ColumnType::Numeric | ColumnType::Jsonb => {
                Self::Text(TextColumn::default())
            }
        }
    }

    /// Some value of the column's type.
    pub(super) fn sample(&self) -> ColumnValue<'_> {
        match self {
            Self::Bigint(_) => ColumnValue::Bigint(0),
            Self::Integer(_) => ColumnValue::Integer(0),
            Self::Double(_) => ColumnValue::Double(0.0),
            Self::Boolean(_) => ColumnValue::Boolean(false),
            Self::Uuid(_) => ColumnValue::Uuid(Uuid::nil()),
            Self::Timestamptz(_) => ColumnValue::Timestamptz(DateTime::UNIX_EPOCH),
            Self::Timestamp(_) => ColumnValue::Timestamp(NaiveDateTime::default()),
            Self::Date(_) => ColumnValue::Date(NaiveDate::default()),
            Self::Bytea(_) => ColumnValue::Bytea(&[]),
            Self::Text(_) => ColumnValue::Text(""),
        }
    }

    /// The value of an event.
    pub(super) fn get(&self, event: usize) -> ColumnValue<'_> {
        let value = match self {
            Self::Bigint(column) => column[event].map(ColumnValue::Bigint),
            Self::Integer(column) => column[event].map(ColumnValue::Integer),
            Self::Double(column) => column[event].map(ColumnValue::Double),
            Self::Boolean(column) => column[event].map(ColumnValue::Boolean),
            Self::Uuid(column) => column[event].map(ColumnValue::Uuid),
            Self::Timestamptz(column) => column[event].map(ColumnValue::Timestamptz),
            Self::Timestamp(column) => column[event].map(ColumnValue::Timestamp),
            Self::Date(column) => column[event].map(ColumnValue::Date),
            Self::Bytea(column) => column[event].as_deref().map(ColumnValue::Bytea),
            Self::Text(column) => column.get(event).map(ColumnValue::Text),
        };
        value.unwrap_or(ColumnValue::Null)
    }
}

/// What a column has for one event.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ColumnValue<'a> {
    /// Nothing, where that is allowed.
    Null,
    /// Of a `bigint`.
    Bigint(i64),
    /// Of an `integer`.
    Integer(i32),
    /// Of a `double precision`.
    Double(f64),
    /// Of a `boolean`.
    Boolean(bool),
    /// Of a `uuid`.
    Uuid(Uuid),
    /// Of a `timestamptz`.
    Timestamptz(DateTime<Utc>),
    /// Of a `timestamp`.
    Timestamp(NaiveDateTime),
    /// Of a `date`.
    Date(NaiveDate),
    /// Of a `bytea`.
    Bytea(&'a [u8]),
    /// Of a `text`, and of `numeric` and `jsonb` as they are written.
    Text(&'a str),
}

/// A type that [`Event::get`] can read a column as. `Option` is for a column that may be null.
pub trait FromColumn<'a>: Sized {
    /// What it is, for an error.
    const NAME: &'static str;

    /// The value, unless it is of another type.
    fn from_column(value: ColumnValue<'a>) -> Option<Self>;
}

macro_rules! from_column {
    ($($type:ty, $name:literal: $variant:ident;)*) => {$(
        impl<'a> FromColumn<'a> for $type {
            const NAME: &'static str = $name;

            fn from_column(value: ColumnValue<'a>) -> Option<Self> {
                match value {
                    ColumnValue::$variant(value) => Some(value),
                    _ => None,
                }
            }
        }
    )*};
}

from_column! {
    i64, "i64": Bigint;
    i32, "i32": Integer;
    f64, "f64": Double;
    bool, "bool": Boolean;
    Uuid, "Uuid": Uuid;
    DateTime<Utc>, "DateTime<Utc>": Timestamptz;
    NaiveDateTime, "NaiveDateTime": Timestamp;
    NaiveDate, "NaiveDate": Date;
    &'a [u8], "&[u8]": Bytea;
    &'a str, "&str": Text;
}

impl<'a, T: FromColumn<'a>> FromColumn<'a> for Option<T> {
    const NAME: &'static str = T::NAME;

    fn from_column(value: ColumnValue<'a>) -> Option<Self> {
        match value {
            ColumnValue::Null => Some(None),
            value => T::from_column(value).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_column_gives_back_what_it_was_given() {
        let mut column = TextColumn::default();
        let values = [Some("a"), None, Some(""), Some("ü💰"), None, Some("a")];
        for value in values {
            column.push(value);
        }
        let found: Vec<_> = (0..values.len()).map(|index| column.get(index)).collect();
        assert_eq!(found, values);
    }
}
