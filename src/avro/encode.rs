//! From JSON to Avro: defaults of fields, events of tests, outgoing messages.
//!
//! JSON as [`Datum::write_json`](super::Datum::write_json) makes it of Avro is taken back, and what the specification
//! writes as a default: a branch of a union without its name, bytes as a string.

use std::borrow::Cow;
use std::cell::Cell;

use base64::Engine as _;
use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime};
use num_bigint::BigInt;
use serde_json::Value;
use uuid::Uuid;

use super::datum::Unit;
use super::schema::{Id, Meaning, Schema, Type};

/// So many digits of a number are the same after it was a floating-point one.
const DIGITS_EXACT: usize = 15;

/// Values inside each other.
const NESTING_MAX: usize = 128;
/// Values of a message, and branches of unions that are tried for them.
const VALUES_MAX: usize = 10_000_000;
/// The same of a default, which may consist of the defaults of other fields.
const DEFAULT_VALUES_MAX: usize = 10_000;

/// Where bytes stand in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bytes {
    /// A character for each byte.
    Default,
    Base64,
}

/// Writes a JSON value as a datum.
///
/// # Errors
/// What of it does not fit, by its path.
pub(crate) fn encode(schema: &Schema, json: &Value) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let left = Left::new(VALUES_MAX);
    Writer {
        schema,
        bytes: Bytes::Base64,
        left: &left,
    }
    .write(schema.root, json, &mut bytes)?;
    Ok(bytes)
}

/// Writes a default.
pub(super) fn encode_at(
    schema: &Schema,
    id: Id,
    json: &Value,
    bytes: &mut Vec<u8>,
) -> Result<(), String> {
    let left = Left::new(DEFAULT_VALUES_MAX);
    Writer {
        schema,
        bytes: Bytes::Default,
        left: &left,
    }
    .write(id, json, bytes)
}

/// How much may still be written: a schema can have defaults of defaults without end.
struct Left {
    values_max: usize,
    values: Cell<usize>,
    nesting: Cell<usize>,
}

impl Left {
    fn new(values_max: usize) -> Self {
        Self {
            values_max,
            values: Cell::new(values_max),
            nesting: Cell::new(NESTING_MAX),
        }
    }
}

struct Writer<'s> {
    schema: &'s Schema,
    bytes: Bytes,
    left: &'s Left,
}

impl Writer<'_> {
    fn write(&self, id: Id, json: &Value, out: &mut Vec<u8>) -> Result<(), String> {
        let (values, nesting) = (self.left.values.get(), self.left.nesting.get());
        if nesting == 0 {
            return Err(format!("nested deeper than {NESTING_MAX}"));
        }
        if values == 0 {
            return Err(format!("more than {} values", self.left.values_max));
        }
        self.left.values.set(values - 1);
        self.left.nesting.set(nesting - 1);
        let written = self.write_value(id, json, out);
        self.left.nesting.set(nesting);
        written
    }

    fn write_value(&self, id: Id, json: &Value, out: &mut Vec<u8>) -> Result<(), String> {
        let of = &self.schema.types[id];
        let refused = || Err(format!("{} is no {}", kind(json), of.name()));
        match (of, json) {
            (Type::Null, Value::Null) => {}
            (Type::Boolean, Value::Bool(value)) => out.push(u8::from(*value)),
            (Type::Int(meaning) | Type::Long(meaning), _) => {
                let Some(number) = number(*meaning, json) else {
                    return refused();
                };
                if matches!(of, Type::Int(_)) && i32::try_from(number).is_err() {
                    return Err(format!("{number} is no int of 32 bits"));
                }
                long(number, out);
            }
            #[allow(
                clippy::cast_possible_truncation,
                reason = "a float is what the schema has"
            )]
            (Type::Float, Value::Number(value)) => {
                let value = value.as_f64().unwrap_or(f64::NAN) as f32;
                if !value.is_finite() {
                    return Err(format!("{json} is no float of 32 bits"));
                }
                out.extend_from_slice(&value.to_le_bytes());
            }
            (Type::Double, Value::Number(value)) => {
                let value = value.as_f64().unwrap_or(f64::NAN);
                out.extend_from_slice(&value.to_le_bytes());
            }
            (Type::Bytes(meaning), _) => {
                let bytes = self.bytes(*meaning, json)?;
                block(&bytes, out);
            }
            (Type::Fixed { size, meaning, .. }, _) => {
                let mut bytes = self.bytes(*meaning, json)?;
                if let Meaning::Decimal { .. } = meaning
                    && bytes.len() < *size
                {
                    let sign = bytes.first().is_some_and(|first| first & 0x80 != 0);
                    let mut padded = vec![if sign { 0xff } else { 0 }; size - bytes.len()];
                    padded.extend_from_slice(&bytes);
                    bytes = Cow::Owned(padded);
                }
                if bytes.len() != *size {
                    return Err(format!("{} bytes are no {}", bytes.len(), of.name()));
                }
                out.extend_from_slice(&bytes);
            }
            (Type::String(_), Value::String(text)) => block(text.as_bytes(), out),
            (Type::Enum { symbols, .. }, Value::String(text)) => {
                match symbols.iter().position(|symbol| symbol == text) {
                    Some(at) => long(i64::try_from(at).unwrap_or(i64::MAX), out),
                    None => return Err(format!("`{text}` is no symbol of {}", of.name())),
                }
            }
            (Type::Array(items), Value::Array(values)) => {
                if !values.is_empty() {
                    long(i64::try_from(values.len()).unwrap_or(i64::MAX), out);
                }
                for (at, value) in values.iter().enumerate() {
                    self.write(*items, value, out)
                        .map_err(|why| within(&at.to_string(), &why))?;
                }
                long(0, out);
            }
            (Type::Map(of), Value::Object(values)) => {
                if !values.is_empty() {
                    long(i64::try_from(values.len()).unwrap_or(i64::MAX), out);
                }
                for (name, value) in values {
                    block(name.as_bytes(), out);
                    self.write(*of, value, out)
                        .map_err(|why| within(name, &why))?;
                }
                long(0, out);
            }
            (Type::Union(branches), _) => return self.union(branches, json, out),
            (Type::Record { fields, names }, Value::Object(values)) => {
                for field in fields {
                    let written = match (values.get(&field.name), &field.default) {
                        (Some(value), _) => self.write(field.of, value, out),
                        (None, Some(default)) => Writer {
                            bytes: Bytes::Default,
                            ..*self
                        }
                        .write(field.of, default, out),
                        (None, None) => Err("missing, and there is no default".to_owned()),
                    };
                    written.map_err(|why| within(&field.name, &why))?;
                }
                let known = |name: &&String| fields.iter().any(|field| field.name == **name);
                if let Some(unknown) = values.keys().find(|name| !known(name)) {
                    return Err(format!("record `{}` has no field `{unknown}`", names.full));
                }
            }
            _ => return refused(),
        }
        Ok(())
    }

    /// The first branch that takes it.
    fn union(&self, branches: &[Id], json: &Value, out: &mut Vec<u8>) -> Result<(), String> {
        let begin = out.len();
        let mut last = Err(format!("{} fits no branch of an empty union", kind(json)));
        for (at, branch) in branches.iter().enumerate() {
            long(i64::try_from(at).unwrap_or(i64::MAX), out);
            match self.write(*branch, json, out) {
                Ok(()) => return Ok(()),
                Err(why) => {
                    out.truncate(begin);
                    // What is said of a value that is at least of the kind says more.
                    let is_null = self.schema.types[*branch] == Type::Null;
                    if !is_null || branches.len() == 1 {
                        last = Err(why);
                    }
                }
            }
        }
        last
    }

    fn bytes<'j>(&self, meaning: Meaning, json: &'j Value) -> Result<Cow<'j, [u8]>, String> {
        let refused = || Err(format!("{} are no bytes", kind(json)));
        if self.bytes == Bytes::Base64 {
            match (meaning, json) {
                (Meaning::Decimal { scale }, Value::Number(_) | Value::String(_)) => {
                    let text = json
                        .as_str()
                        .map_or_else(|| json.to_string(), str::to_owned);
                    let digits = text.bytes().filter(u8::is_ascii_digit).count();
                    if json.is_f64() && digits > DIGITS_EXACT {
                        return Err(format!("{text} may have lost digits; write it as a string"));
                    }
                    return unscaled(&text, scale).map(Cow::Owned);
                }
                (Meaning::Uuid, Value::String(text)) => {
                    let uuid = Uuid::try_parse(text).map_err(|_| format!("`{text}` is no UUID"))?;
                    return Ok(Cow::Owned(uuid.as_bytes().to_vec()));
                }
                (Meaning::BigDecimal | Meaning::Duration, _) => {
                    return Err("a big-decimal or a duration cannot be written".to_owned());
                }
                _ => {}
            }
        }
        let Value::String(text) = json else {
            return refused();
        };
        match self.bytes {
            Bytes::Default => {
                let bytes: Option<Vec<u8>> = text
                    .chars()
                    .map(|c| u8::try_from(u32::from(c)).ok())
                    .collect();
                bytes.map(Cow::Owned).map_or_else(refused, Ok)
            }
            Bytes::Base64 => {
                let decoded = base64::engine::general_purpose::STANDARD.decode(text);
                decoded
                    .map(Cow::Owned)
                    .map_err(|_| "bytes are written in base64".to_owned())
            }
        }
    }
}

fn within(name: &str, why: &str) -> String {
    match why.strip_prefix('/') {
        Some(rest) => format!("/{name}/{rest}"),
        None => format!("/{name}: {why}"),
    }
}

fn kind(json: &Value) -> &'static str {
    match json {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// An integer, or the text of a time as the integer that stands for it.
fn number(meaning: Meaning, json: &Value) -> Option<i64> {
    let text = match json {
        Value::Number(number) => return number.as_i64(),
        Value::String(text) => text,
        _ => return None,
    };
    let since = |seconds: i64, nanos: u32, unit: Unit| {
        let per_second = match unit {
            Unit::Millis => 1_000,
            Unit::Micros => 1_000_000,
            Unit::Nanos => 1_000_000_000,
        };
        let part = i64::from(nanos) / (1_000_000_000 / per_second);
        seconds.checked_mul(per_second)?.checked_add(part)
    };
    match meaning {
        Meaning::Date => {
            let date: NaiveDate = text.parse().ok()?;
            Some((date - NaiveDate::default()).num_days())
        }
        Meaning::Time(unit) => {
            use chrono::Timelike as _;
            let time: NaiveTime = text.parse().ok()?;
            since(
                time.num_seconds_from_midnight().into(),
                time.nanosecond(),
                unit,
            )
        }
        Meaning::Timestamp(unit) => {
            let time = DateTime::parse_from_rfc3339(text).ok()?;
            since(time.timestamp(), time.timestamp_subsec_nanos(), unit)
        }
        Meaning::LocalTimestamp(unit) => {
            let time: NaiveDateTime = text.parse().ok()?;
            let time = time.and_utc();
            since(time.timestamp(), time.timestamp_subsec_nanos(), unit)
        }
        _ => None,
    }
}

/// A decimal's digits as a big-endian number, if it has no more of them after the point than the schema.
fn unscaled(text: &str, scale: usize) -> Result<Vec<u8>, String> {
    let refused = || format!("`{text}` is no decimal with {scale} digits after the point");
    let (before, after) = text.split_once('.').unwrap_or((text, ""));
    let after = after.trim_end_matches('0');
    let plain = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit());
    let whole = before.strip_prefix('-').unwrap_or(before);
    if after.len() > scale || whole.is_empty() || !plain(whole) || !plain(after) {
        return Err(refused());
    }
    let digits = format!("{before}{after:0<scale$}");
    let number: BigInt = digits.parse().map_err(|_| refused())?;
    Ok(number.to_signed_bytes_be())
}

fn block(bytes: &[u8], out: &mut Vec<u8>) {
    long(i64::try_from(bytes.len()).unwrap_or(i64::MAX), out);
    out.extend_from_slice(bytes);
}

fn long(number: i64, out: &mut Vec<u8>) {
    let mut rest = ((number << 1) ^ (number >> 63)).cast_unsigned();
    while rest >= 0x80 {
        out.push(u8::try_from(rest & 0x7f).unwrap_or(0) | 0x80);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap_or(0));
}
