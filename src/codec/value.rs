//! Scalars of a record, converted to the type that is wanted, or refused with a reason.

use std::borrow::Cow;

use base64::Engine as _;
use chrono::{DateTime, Datelike as _, NaiveDate, NaiveDateTime, Utc};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::avro::Datum;
use crate::projection::{ColumnData, ColumnType, TimeUnit};

/// The longest text that names something. It becomes a key of an index, and a row of one must fit into
/// a third of a page; beyond that Postgres refuses the whole batch, not the record.
const IDENTITY_BYTES_MAX: usize = 1000;

/// A value as it stands in a record; never JSON's null.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'p> {
    /// JSON text of any kind but null.
    Json(&'p str),
    /// A key or header.
    Text(&'p str),
    /// A value in Avro.
    Avro(&'p Datum<'p>),
}

/// What Debezium writes in place of a value that Postgres has not logged, since it is large and has not changed.
const NOT_LOGGED: &str = "__debezium_unavailable_value";
/// The same where a value is bytes in JSON.
const NOT_LOGGED_BASE64: &str = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==";

/// A text that names something, if it can.
pub(super) fn identity(text: Cow<'_, str>) -> Result<Cow<'_, str>, String> {
    match text.len() {
        0 => Err("empty".to_owned()),
        1..=IDENTITY_BYTES_MAX => Ok(text),
        _ => Err(format!("longer than {IDENTITY_BYTES_MAX} bytes")),
    }
}

/// A key or header, which must be UTF-8.
pub(super) fn bytes(bytes: Option<&[u8]>) -> Result<Option<Value<'_>>, String> {
    let text = bytes.map(std::str::from_utf8).transpose();
    text.map(|text| text.map(Value::Text))
        .map_err(|_| "not UTF-8 text".to_owned())
}

impl<'p> Value<'p> {
    pub(super) fn from_json(raw: &'p RawValue) -> Option<Self> {
        (raw.get() != "null").then(|| Self::Json(raw.get()))
    }

    /// The text of a string that has no escapes, without a look at what it means.
    pub(super) fn plain_text(&self) -> Option<&'p str> {
        match self {
            Self::Json(json) => json.strip_prefix('"')?.strip_suffix('"'),
            Self::Avro(Datum::Text(text)) => Some(text),
            Self::Text(_) | Self::Avro(_) => None,
        }
    }

    /// Whether Debezium has written it in place of one that Postgres has not logged: as text, as bytes, or in an
    /// array or a map.
    pub(super) fn is_in_place_of_one(&self) -> bool {
        let inside = |tree: &str| {
            tree.starts_with(['[', '{'])
                && (tree.contains(&format!("\"{NOT_LOGGED}\""))
                    || tree.contains(&format!("\"{NOT_LOGGED_BASE64}\"")))
        };
        match self {
            Self::Avro(Datum::Bytes(bytes)) => **bytes == *NOT_LOGGED.as_bytes(),
            Self::Avro(Datum::Tree(tree)) => inside(tree),
            Self::Json(json) if inside(json) => true,
            _ => matches!(self.plain_text(), Some(NOT_LOGGED | NOT_LOGGED_BASE64)),
        }
    }

    /// The text of a string.
    fn as_text(&self) -> Result<Cow<'p, str>, String> {
        let text = match self {
            Self::Text(text) => Cow::Borrowed(*text),
            Self::Avro(datum) => match datum.text() {
                Some(text) => text,
                None => return Err(format!("expected a string, found {}", self.kind())),
            },
            Self::Json(json) => match json.strip_prefix('"').and_then(|s| s.strip_suffix('"')) {
                None => return Err(format!("expected a string, found {}", self.kind())),
                Some(plain) if !plain.contains('\\') => Cow::Borrowed(plain),
                Some(_) => Cow::Owned(
                    serde_json::from_str(json).map_err(|error| format!("bad string: {error}"))?,
                ),
            },
        };
        if text.contains('\0') {
            return Err("holds a NUL character, which Postgres cannot store as text".to_owned());
        }
        Ok(text)
    }

    fn as_integer<T: std::str::FromStr>(&self, bits: u32) -> Result<T, String> {
        let text = match self {
            Self::Text(text) | Self::Json(text) => Cow::Borrowed(*text),
            Self::Avro(Datum::Integer(number)) => Cow::Owned(number.to_string()),
            Self::Avro(_) => {
                return Err(format!("expected an integer, found {}", self.kind()));
            }
        };
        text.parse().map_err(|_| match Number::parse(&text) {
            Some(_) => format!("{} is not an integer of {bits} bits", excerpt(&text)),
            None => format!("expected an integer, found {}", self.kind()),
        })
    }

    /// A number that orders an entity's events: an integer, or a string that holds one.
    pub(super) fn as_sequence(&self) -> Result<i64, String> {
        if self.is_json_number() {
            return self.as_integer(64); // the usual one: no error need be made first
        }
        match self.as_text() {
            Ok(text) => Value::Text(&text).as_integer(64),
            Err(_) => self.as_integer(64),
        }
    }

    /// Text that names something: a string, or an integer.
    pub(super) fn as_identity(&self) -> Result<Cow<'p, str>, String> {
        let text = match self {
            Self::Json(json) if self.is_json_number() => {
                if !json.bytes().skip(1).all(|b| b.is_ascii_digit()) {
                    return Err(format!(
                        "expected a string or an integer, found {}",
                        excerpt(json)
                    ));
                }
                Cow::Borrowed(*json)
            }
            Self::Avro(Datum::Integer(number)) => Cow::Owned(number.to_string()),
            Self::Avro(Datum::Text(_) | Datum::Uuid(_)) => self.as_text()?,
            Self::Avro(_) => {
                return Err(format!(
                    "expected a string, a UUID or an integer, found {}",
                    self.kind()
                ));
            }
            _ => self.as_text()?,
        };
        identity(text)
    }

    /// Whether it is a number, or a text from outside that may be one.
    pub(super) fn is_number(&self) -> bool {
        match self {
            Self::Json(_) => self.is_json_number(),
            Self::Text(text) => text.parse::<i64>().is_ok(),
            Self::Avro(datum) => matches!(datum, Datum::Integer(_)),
        }
    }

    fn is_json_number(&self) -> bool {
        matches!(self, Self::Json(json) if json.starts_with(|c: char| c == '-' || c.is_ascii_digit()))
    }

    fn kind(&self) -> String {
        match self {
            Self::Text(text) => format!("the text `{}`", excerpt(text)),
            Self::Avro(Datum::Text(text)) => format!("the string \"{}\"", excerpt(text)),
            Self::Avro(Datum::Integer(number)) => number.to_string(),
            Self::Avro(datum) => datum.kind().name().to_owned(),
            Self::Json(json) => match json.as_bytes().first() {
                Some(b'{') => "an object".to_owned(),
                Some(b'[') => "an array".to_owned(),
                Some(b'"') => format!("the string {}", excerpt(json)),
                _ => excerpt(json).to_string(),
            },
        }
    }
}

/// At most the first characters of something that is quoted in an error.
fn excerpt(text: &str) -> Cow<'_, str> {
    const CHARS_MAX: usize = 40;
    match text.char_indices().nth(CHARS_MAX) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}..", &text[..end])),
    }
}

/// A decimal number: digits before and after the point, and the exponent, as far as it can matter.
struct Number {
    before: usize,
    after: usize,
    exponent: i32,
}

impl Number {
    /// Reads a JSON number's syntax, which is also a Postgres numeric's. Leading zeros are allowed.
    fn parse(text: &str) -> Option<Self> {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let text = text.strip_prefix('-').unwrap_or(text);
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            None => (text, 0),
            Some((mantissa, exponent)) => {
                let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
                if !digits(unsigned) {
                    return None;
                }
                let limit = if exponent.starts_with('-') {
                    i32::MIN
                } else {
                    i32::MAX
                };
                (mantissa, exponent.parse().unwrap_or(limit))
            }
        };
        let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
        (digits(before) && digits(after)).then_some(Self {
            before: before.len(),
            after: if mantissa.contains('.') {
                after.len()
            } else {
                0
            },
            exponent,
        })
    }

    /// Whether it is within the digits of a Postgres numeric.
    fn is_numeric(&self) -> bool {
        const BEFORE_MAX: i64 = 131_072;
        const AFTER_MAX: i64 = 16_383;
        let count = |digits: usize| i64::try_from(digits).unwrap_or(i64::MAX / 2);
        count(self.before) + i64::from(self.exponent) <= BEFORE_MAX
            && count(self.after) - i64::from(self.exponent) <= AFTER_MAX
    }
}

/// Converts and appends a number that counts time since 1970.
pub(super) fn push_counted(
    data: &mut ColumnData,
    unit: TimeUnit,
    value: Value<'_>,
) -> Result<(), String> {
    let number = value.as_integer(64)?;
    let moment = unit.moment(number);
    let moment = moment.ok_or_else(|| format!("{number} is beyond the times that there are"))?;
    within_postgres(moment.year())?;
    match data {
        ColumnData::Timestamptz(column) => column.push(Some(moment)),
        ColumnData::Timestamp(column) => column.push(Some(moment.naive_utc())),
        ColumnData::Date(column) => column.push(Some(moment.date_naive())),
        // The configuration allows a unit for those only.
        _ => return Err("a unit where no time is wanted".to_owned()),
    }
    Ok(())
}

/// Appends a default, which stands as a header would.
pub(super) fn push_default(
    data: &mut ColumnData,
    column_type: ColumnType,
    default: &str,
) -> Result<(), String> {
    let value = match column_type {
        ColumnType::Jsonb => {
            let json = serde_json::from_str::<serde::de::IgnoredAny>(default);
            json.map_err(|error| format!("not JSON: {error}"))?;
            Value::Json(default)
        }
        _ => Value::Text(default),
    };
    push(data, column_type, Some(value))
}

/// Converts and appends a value; no value is null.
pub(super) fn push(
    data: &mut ColumnData,
    column_type: ColumnType,
    value: Option<Value<'_>>,
) -> Result<(), String> {
    let Some(value) = value else {
        push_null(data);
        return Ok(());
    };
    match data {
        ColumnData::Bigint(column) => column.push(Some(match value {
            Value::Avro(Datum::Integer(number)) => *number,
            _ => value.as_integer(64)?,
        })),
        ColumnData::Integer(column) => column.push(Some(value.as_integer(32)?)),
        ColumnData::Double(column) => column.push(Some(match value {
            Value::Avro(Datum::Float(number)) => *number,
            #[allow(
                clippy::cast_precision_loss,
                reason = "as where the same number stands in JSON"
            )]
            Value::Avro(Datum::Integer(number)) => *number as f64,
            Value::Json(text) | Value::Text(text) if Number::parse(text).is_some() => text
                .parse()
                .ok()
                .filter(|number: &f64| number.is_finite())
                .ok_or_else(|| format!("{} is beyond a double precision", excerpt(text)))?,
            _ => return Err(format!("expected a number, found {}", value.kind())),
        })),
        ColumnData::Boolean(column) => column.push(Some(match value {
            Value::Avro(Datum::Boolean(value)) => *value,
            Value::Json("true") | Value::Text("true") => true,
            Value::Json("false") | Value::Text("false") => false,
            _ => return Err(format!("expected true or false, found {}", value.kind())),
        })),
        ColumnData::Uuid(column) => column.push(Some(match value {
            Value::Avro(Datum::Uuid(uuid)) => *uuid,
            _ => {
                let text = value.as_text()?;
                let uuid = Uuid::try_parse(&text);
                uuid.map_err(|_| format!("`{}` is not a UUID", excerpt(&text)))?
            }
        })),
        ColumnData::Timestamptz(column) => column.push(Some(match value {
            Value::Avro(Datum::Timestamp(time)) => {
                within_postgres(time.year())?;
                *time
            }
            _ => {
                let text = value.as_text()?;
                let time = DateTime::parse_from_rfc3339(&text).map_err(|_| {
                    format!(
                        "`{}` is not an RFC 3339 time such as 2026-01-31T09:30:00Z",
                        excerpt(&text)
                    )
                })?;
                time.with_timezone(&Utc)
            }
        })),
        ColumnData::Timestamp(column) => column.push(Some(match value {
            Value::Avro(Datum::LocalTimestamp(time)) => {
                within_postgres(time.year())?;
                *time
            }
            _ => {
                let text = value.as_text()?;
                let time = NaiveDateTime::parse_from_str(&text, "%Y-%m-%dT%H:%M:%S%.f").ok();
                let time = time.filter(|_| text.as_bytes().get(4) == Some(&b'-'));
                time.ok_or_else(|| {
                    format!(
                        "`{}` is not a time without an offset such as 2026-01-31T09:30:00; declare it timestamptz if it has one",
                        excerpt(&text)
                    )
                })?
            }
        })),
        ColumnData::Date(column) => column.push(Some(match value {
            Value::Avro(Datum::Date(date)) => {
                within_postgres(date.year())?;
                *date
            }
            _ => {
                let text = value.as_text()?;
                // Ten characters: the parser would take `2026-1-5`, and years that Postgres does not have.
                let date = NaiveDate::parse_from_str(&text, "%Y-%m-%d").ok();
                let date = date.filter(|_| text.len() == 10 && !text.starts_with('-'));
                date.ok_or_else(|| {
                    format!("`{}` is not a date such as 2026-01-31", excerpt(&text))
                })?
            }
        })),
        ColumnData::Bytea(column) => column.push(Some(match value {
            Value::Avro(Datum::Bytes(bytes)) => bytes.to_vec(),
            Value::Avro(_) => return Err(format!("expected bytes, found {}", value.kind())),
            _ => {
                let text = value.as_text()?;
                let bytes = base64::engine::general_purpose::STANDARD.decode(&*text);
                bytes.map_err(|_| format!("`{}` is not base64", excerpt(&text)))?
            }
        })),
        ColumnData::Text(column) => match (column_type, value) {
            (ColumnType::Jsonb, Value::Json(json)) => column.push(Some(storable_json(json)?)),
            (ColumnType::Jsonb, Value::Avro(datum)) => {
                let mut json = String::new();
                datum.write_json(&mut json)?;
                column.push(Some(storable_json(&json)?));
            }
            (ColumnType::Jsonb, Value::Text(_)) => {
                return Err("a key or header cannot be jsonb".to_owned());
            }
            (ColumnType::Numeric, value) => {
                let text = match value {
                    Value::Json(json) if value.is_json_number() => Cow::Borrowed(json),
                    Value::Avro(Datum::Integer(number)) => Cow::Owned(number.to_string()),
                    Value::Avro(Datum::Decimal(text)) => Cow::Borrowed(&**text),
                    Value::Avro(Datum::Text(_)) | Value::Text(_) | Value::Json(_) => {
                        value.as_text()?
                    }
                    Value::Avro(_) => {
                        return Err(format!("expected a number, found {}", value.kind()));
                    }
                };
                match Number::parse(&text) {
                    None => return Err(format!("`{}` is not a number", excerpt(&text))),
                    Some(number) if !number.is_numeric() => {
                        return Err(format!("{} is beyond a numeric", excerpt(&text)));
                    }
                    Some(_) => column.push(Some(&text)),
                }
            }
            _ => column.push(Some(&value.as_text()?)),
        },
    }
    Ok(())
}

/// The years that a date of Postgres may have, as far as ours go.
fn within_postgres(year: i32) -> Result<(), String> {
    match (-4712..=262_000).contains(&year) {
        true => Ok(()),
        false => Err(format!("the year {year} is beyond a date of Postgres")),
    }
}

/// JSON that jsonb takes: it has no NUL and no half of a surrogate pair, which JSON itself allows.
fn storable_json(json: &str) -> Result<&str, String> {
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at..];
        let length = match utf16_unit(escape) {
            None => 2,
            Some(0) => return Err("holds a NUL character, which jsonb cannot store".to_owned()),
            Some(0xd800..=0xdbff) if is_low_surrogate(&escape[6..]) => 12,
            Some(0xd800..=0xdfff) => {
                return Err("holds half of a surrogate pair, which jsonb cannot store".to_owned());
            }
            Some(_) => 6,
        };
        rest = escape.get(length..).unwrap_or_default();
    }
    Ok(json)
}

/// What `\uXXXX` stands for.
fn utf16_unit(escape: &str) -> Option<u16> {
    u16::from_str_radix(escape.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

fn is_low_surrogate(escape: &str) -> bool {
    matches!(utf16_unit(escape), Some(0xdc00..=0xdfff))
}

pub(super) fn push_null(data: &mut ColumnData) {
    match data {
        ColumnData::Bigint(column) => column.push(None),
        ColumnData::Integer(column) => column.push(None),
        ColumnData::Double(column) => column.push(None),
        ColumnData::Boolean(column) => column.push(None),
        ColumnData::Uuid(column) => column.push(None),
        ColumnData::Timestamptz(column) => column.push(None),
        ColumnData::Timestamp(column) => column.push(None),
        ColumnData::Date(column) => column.push(None),
        ColumnData::Bytea(column) => column.push(None),
        ColumnData::Text(column) => column.push(None),
    }
}
