//! One value of a datum, as it is taken out.

use std::borrow::Cow;
use std::fmt::Write as _;

use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Utc};
use num_bigint::BigInt;
use uuid::Uuid;

use super::schema::{Kind, Meaning};

/// What a number of a time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Millis,
    Micros,
    Nanos,
}

impl Unit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Millis => "millis",
            Self::Micros => "micros",
            Self::Nanos => "nanos",
        }
    }

    /// The instant a number stands for, whichever side of 1970; none beyond what a date can say.
    pub(crate) fn instant(self, number: i64) -> Option<DateTime<Utc>> {
        match self {
            Self::Millis => DateTime::from_timestamp_millis(number),
            Self::Micros => DateTime::from_timestamp_micros(number),
            Self::Nanos => Some(DateTime::from_timestamp_nanos(number)),
        }
    }

    fn delta(self, number: i64) -> Option<TimeDelta> {
        match self {
            Self::Millis => TimeDelta::try_milliseconds(number),
            Self::Micros => Some(TimeDelta::microseconds(number)),
            Self::Nanos => Some(TimeDelta::nanoseconds(number)),
        }
    }
}

/// A value; never null, which is no value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Datum<'p> {
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Bytes(Cow<'p, [u8]>),
    Text(Cow<'p, str>),
    /// Digits, with a point and an exponent where there is one.
    Decimal(String),
    Date(NaiveDate),
    Time(NaiveTime),
    Timestamp(DateTime<Utc>),
    LocalTimestamp(NaiveDateTime),
    Uuid(Uuid),
    /// As ISO 8601 writes it, which Postgres takes as an interval.
    Duration(String),
    /// A record, an array or a map, as JSON.
    Tree(String),
}

/// The longest unscaled value of a decimal: more digits than a Postgres numeric has.
const DECIMAL_BYTES_MAX: usize = 61_300;

impl<'p> Datum<'p> {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Boolean(_) => Kind::Boolean,
            Self::Integer(_) => Kind::Integer,
            Self::Float(_) => Kind::Float,
            Self::Bytes(_) => Kind::Bytes,
            Self::Text(_) => Kind::Text,
            Self::Decimal(_) => Kind::Decimal,
            Self::Date(_) => Kind::Date,
            Self::Time(_) => Kind::Time,
            Self::Timestamp(_) => Kind::Timestamp,
            Self::LocalTimestamp(_) => Kind::LocalTimestamp,
            Self::Uuid(_) => Kind::Uuid,
            Self::Duration(_) => Kind::Duration,
            Self::Tree(_) => Kind::Tree,
        }
    }

    /// The same, which borrows from nothing.
    pub(super) fn into_owned(self) -> Datum<'static> {
        match self {
            Self::Boolean(value) => Datum::Boolean(value),
            Self::Integer(value) => Datum::Integer(value),
            Self::Float(value) => Datum::Float(value),
            Self::Bytes(value) => Datum::Bytes(Cow::Owned(value.into_owned())),
            Self::Text(value) => Datum::Text(Cow::Owned(value.into_owned())),
            Self::Decimal(value) => Datum::Decimal(value),
            Self::Date(value) => Datum::Date(value),
            Self::Time(value) => Datum::Time(value),
            Self::Timestamp(value) => Datum::Timestamp(value),
            Self::LocalTimestamp(value) => Datum::LocalTimestamp(value),
            Self::Uuid(value) => Datum::Uuid(value),
            Self::Duration(value) => Datum::Duration(value),
            Self::Tree(value) => Datum::Tree(value),
        }
    }

    /// What an integer means.
    pub(super) fn of_integer(number: i64, meaning: Meaning) -> Result<Self, String> {
        let beyond = || format!("{number} is beyond the times that there are");
        Ok(match meaning {
            Meaning::Date => {
                let days = TimeDelta::try_days(number).ok_or_else(beyond)?;
                let date = NaiveDate::default().checked_add_signed(days);
                Self::Date(date.ok_or_else(beyond)?)
            }
            Meaning::Time(unit) => {
                let since = unit.delta(number).ok_or_else(beyond)?;
                let (time, days) = NaiveTime::MIN.overflowing_add_signed(since);
                if days != 0 {
                    return Err(format!("{number} {} are no time of a day", unit.name()));
                }
                Self::Time(time)
            }
            Meaning::Timestamp(unit) => Self::Timestamp(unit.instant(number).ok_or_else(beyond)?),
            Meaning::LocalTimestamp(unit) => {
                let instant = unit.instant(number).ok_or_else(beyond)?;
                Self::LocalTimestamp(instant.naive_utc())
            }
            _ => Self::Integer(number),
        })
    }

    /// What bytes mean.
    pub(super) fn of_bytes(bytes: &'p [u8], meaning: Meaning) -> Result<Self, String> {
        Ok(match meaning {
            Meaning::Decimal { scale } => {
                let exponent = i64::try_from(scale).unwrap_or(i64::MAX);
                Self::Decimal(decimal(bytes, exponent)?)
            }
            Meaning::BigDecimal => {
                let mut inner = super::read::Cursor::plain(bytes);
                let read = inner.bytes().and_then(|unscaled| {
                    let scale = inner.long()?;
                    inner.end()?;
                    Ok((unscaled, scale))
                });
                let (unscaled, scale) =
                    read.map_err(|fault| format!("a big-decimal: {}", fault.what))?;
                Self::Decimal(decimal(unscaled, scale)?)
            }
            Meaning::Uuid => {
                let uuid = Uuid::from_slice(bytes);
                Self::Uuid(uuid.map_err(|_| "a UUID has 16 bytes".to_owned())?)
            }
            Meaning::Duration => Self::Duration(duration(bytes)?),
            _ => Self::Bytes(Cow::Borrowed(bytes)),
        })
    }

    /// What a string means.
    pub(super) fn of_text(text: &'p str, meaning: Meaning) -> Result<Self, String> {
        Ok(match meaning {
            Meaning::Uuid => {
                let uuid = Uuid::try_parse(text);
                Self::Uuid(uuid.map_err(|_| "a string that is no UUID".to_owned())?)
            }
            _ => Self::Text(Cow::Borrowed(text)),
        })
    }

    /// The text that stands for it where text is wanted; none for what has none.
    pub(crate) fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Uuid(uuid) => Some(Cow::Owned(uuid.to_string())),
            Self::Time(time) => Some(Cow::Owned(time.to_string())),
            Self::Duration(text) => Some(Cow::Borrowed(text)),
            _ => None,
        }
    }

    /// Appends it as JSON.
    pub(crate) fn write_json(&self, json: &mut String) -> Result<(), String> {
        match self {
            Self::Boolean(value) => json.push_str(if *value { "true" } else { "false" }),
            Self::Integer(value) => {
                let _ = write!(json, "{value}");
            }
            Self::Float(value) if value.is_finite() => {
                let _ = write!(json, "{value}");
            }
            Self::Float(value) => {
                return Err(format!("{value} is a number that JSON does not have"));
            }
            Self::Bytes(bytes) => {
                use base64::Engine as _;
                json.push('"');
                base64::engine::general_purpose::STANDARD.encode_string(bytes, json);
                json.push('"');
            }
            Self::Decimal(text) | Self::Tree(text) => json.push_str(text),
            Self::Date(date) => {
                let _ = write!(json, "\"{date}\"");
            }
            Self::Timestamp(time) => {
                let text = time.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true);
                let _ = write!(json, "\"{text}\"");
            }
            Self::LocalTimestamp(time) => {
                let _ = write!(json, "\"{}\"", time.format("%Y-%m-%dT%H:%M:%S%.f"));
            }
            Self::Text(_) | Self::Uuid(_) | Self::Time(_) | Self::Duration(_) => {
                let text = self.text().unwrap_or_default();
                write_string(&text, json);
            }
        }
        Ok(())
    }
}

/// Appends a string as JSON.
pub(super) fn write_string(text: &str, json: &mut String) {
    json.push('"');
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c == '"' || c == '\\' || c < ' ') {
        let (before, from) = rest.split_at(at);
        json.push_str(before);
        let mut chars = from.chars();
        match chars.next() {
            Some(c @ ('"' | '\\')) => {
                json.push('\\');
                json.push(c);
            }
            Some(c) => {
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            None => {}
        }
        rest = chars.as_str();
    }
    json.push_str(rest);
    json.push('"');
}

/// A big-endian number in two's complement, divided by a power of ten, exactly.
fn decimal(unscaled: &[u8], scale: i64) -> Result<String, String> {
    if unscaled.is_empty() {
        return Err("a decimal of no bytes".to_owned());
    }
    if unscaled.len() > DECIMAL_BYTES_MAX {
        return Err(format!(
            "a decimal of {} bytes, more than a Postgres numeric holds",
            unscaled.len()
        ));
    }
    let digits = match unscaled.len() {
        0..=16 => {
            let sign = if unscaled[0] & 0x80 == 0 { 0 } else { 0xff };
            let mut bytes = [sign; 16];
            bytes[16 - unscaled.len()..].copy_from_slice(unscaled);
            i128::from_be_bytes(bytes).to_string()
        }
        _ => BigInt::from_signed_bytes_be(unscaled).to_string(),
    };
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", &*digits),
    };
    match usize::try_from(scale) {
        Ok(0) => Ok(format!("{sign}{digits}")),
        Ok(scale) if scale < digits.len() => {
            let (before, after) = digits.split_at(digits.len() - scale);
            Ok(format!("{sign}{before}.{after}"))
        }
        // Written out, as long as that is not long.
        Ok(scale) if scale <= 64 => Ok(format!("{sign}0.{digits:0>scale$}")),
        _ => Ok(format!(
            "{sign}{digits}e{}",
            scale.checked_neg().unwrap_or(i64::MAX)
        )),
    }
}

/// Months, days and milliseconds.
fn duration(bytes: &[u8]) -> Result<String, String> {
    let number = |at: usize| {
        let part = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(part))
    };
    let parts = (number(0), number(4), number(8));
    let (Some(months), Some(days), Some(millis)) = parts else {
        return Err("a duration has 12 bytes".to_owned());
    };
    Ok(format!(
        "P{months}M{days}DT{}.{:03}S",
        millis / 1000,
        millis % 1000
    ))
}
