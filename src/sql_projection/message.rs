//! Reads the rows of an `emit` statement as messages.

use std::collections::BTreeSet;

use sqlx::postgres::{PgRow, PgValueRef};
use sqlx::{Column as _, Row as _, TypeInfo as _, ValueRef as _};

use super::Emit;
use crate::engine::Class;
use crate::projection::{HandlerError, Message, Ref};
use crate::types::Header;

/// The result columns of an `emit`, with the Postgres types they may have.
pub(super) const RESULT: [(&str, &[&str]); 7] = [
    ("_ref", &["INT8"]),
    ("key", TEXTUAL),
    ("payload", &["JSONB", "JSON", "TEXT", "VARCHAR", "BYTEA"]),
    ("topic", &["TEXT", "VARCHAR"]),
    ("type", &["TEXT", "VARCHAR"]),
    ("headers", &["JSONB", "JSON"]),
    ("_index", &["INT8", "INT4"]),
];

const TEXTUAL: &[&str] = &["TEXT", "VARCHAR", "UUID", "INT8", "INT4", "INT2", "BYTEA"];

/// The messages of a result, in the order in which they leave: by source event, then `_index`, then
/// key and payload, since SQL promises no order of its own.
pub(super) fn read(
    emit: &Emit,
    rows: &[PgRow],
    known: &BTreeSet<Ref>,
) -> Result<Vec<(Ref, Message)>, HandlerError> {
    let fail = |why: String| HandlerError::new(Class::Halt, format!("emit {}: {why}", emit.name));
    let mut messages = Vec::with_capacity(rows.len());
    for row in rows {
        let reference: Option<i64> = row
            .try_get("_ref")
            .map_err(|error| fail(format!("column `_ref`: {error}")))?;
        let reference = reference
            .and_then(|reference| Ref::try_from(reference).ok())
            .filter(|reference| known.contains(reference))
            .ok_or_else(|| {
                fail("`_ref` is not that of an event of the batch; a message comes from one event: select `_ref` of `events`".to_owned())
            })?;
        let mut message = Message {
            topic: emit.topic.clone(),
            ..Message::default()
        };
        let mut index: i64 = 0;
        for column in row.columns() {
            let value = row
                .try_get_raw(column.ordinal())
                .map_err(|error| fail(error.to_string()))?;
            let value =
                bytes(&value).map_err(|why| fail(format!("column `{}`: {why}", column.name())))?;
            let text = || {
                value
                    .as_deref()
                    .map(|v| String::from_utf8_lossy(v).into_owned())
            };
            match column.name() {
                "key" => message.key = value,
                "payload" => {
                    if matches!(column.type_info().name(), "JSONB" | "JSON") {
                        message.headers.push(Header {
                            name: "content-type".to_owned(),
                            value: Some(b"application/json".to_vec()),
                        });
                    }
                    message.payload = value;
                }
                "topic" => message.topic = text().unwrap_or_default(),
                "type" => message.kind = text().unwrap_or_default(),
                "headers" => {
                    message
                        .headers
                        .extend(headers(value.as_deref()).map_err(|why| {
                            HandlerError::terminal(format!("emit {}: headers: {why}", emit.name))
                                .at_ref(reference)
                        })?);
                }
                "_index" => index = text().and_then(|t| t.parse().ok()).unwrap_or_default(),
                _ => {}
            }
        }
        messages.push((reference, index, message));
    }
    messages.sort_by(|(ref_a, index_a, a), (ref_b, index_b, b)| {
        (ref_a, index_a, &a.key, &a.payload).cmp(&(ref_b, index_b, &b.key, &b.payload))
    });
    Ok(messages
        .into_iter()
        .map(|(reference, _, message)| (reference, message))
        .collect())
}

/// A value as the bytes of a message.
fn bytes(value: &PgValueRef<'_>) -> Result<Option<Vec<u8>>, String> {
    if value.is_null() {
        return Ok(None);
    }
    let raw = value.as_bytes().map_err(|error| error.to_string())?;
    let text = match value.type_info().name() {
        "TEXT" | "VARCHAR" | "JSON" | "BYTEA" => raw.to_vec(),
        // A version byte comes first.
        "JSONB" => raw.get(1..).unwrap_or_default().to_vec(),
        "UUID" => {
            let uuid = uuid::Uuid::from_slice(raw).map_err(|error| error.to_string())?;
            uuid.to_string().into_bytes()
        }
        "INT8" | "INT4" | "INT2" => {
            let sign = raw.first().is_some_and(|b| b & 0x80 != 0);
            let start: i64 = if sign { -1 } else { 0 };
            let number = raw.iter().fold(start, |n, b| (n << 8) | i64::from(*b));
            number.to_string().into_bytes()
        }
        other => {
            return Err(format!(
                "type {other} is not sent as it is; cast it to text"
            ));
        }
    };
    Ok(Some(text))
}

/// Headers from a JSON object of strings.
fn headers(json: Option<&[u8]>) -> Result<Vec<Header>, String> {
    let Some(json) = json else {
        return Ok(Vec::new());
    };
    let fields: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(json).map_err(|_| "expected an object".to_owned())?;
    let header = |(name, value): (String, serde_json::Value)| match value {
        serde_json::Value::String(text) => Ok(Header {
            name,
            value: Some(text.into_bytes()),
        }),
        serde_json::Value::Null => Ok(Header { name, value: None }),
        _ => Err(format!("`{name}` is not a string")),
    };
    fields.into_iter().map(header).collect()
}
