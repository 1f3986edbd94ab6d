//! Reads the rows of an `emit` statement as messages.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sqlx::postgres::{PgRow, PgValueRef};
use sqlx::{Column as _, Row as _, TypeInfo as _, ValueRef as _};

use super::Emit;
use crate::engine::Class;
use crate::projection::{HandlerError, Message, Ref};
use crate::types::Header;

/// The result columns of an `emit`, with the Postgres types they may have.
pub(super) const RESULT: [(&str, &[&str]); 8] = [
    ("_ref", &["INT8"]),
    ("key", TEXTUAL),
    ("payload", &["JSONB", "JSON", "TEXT", "VARCHAR", "BYTEA"]),
    ("topic", &["TEXT", "VARCHAR"]),
    ("type", &["TEXT", "VARCHAR"]),
    ("headers", &["JSONB", "JSON"]),
    ("partition", &["INT4", "INT2"]),
    ("_index", &["INT8", "INT4"]),
];

const CONTENT_TYPE: &str = "content-type";

const TEXTUAL: &[&str] = &["TEXT", "VARCHAR", "UUID", "INT8", "INT4", "INT2", "BYTEA"];

/// The messages of a result, in the order in which they leave: by source event, then `_index`, then
/// key and payload, since SQL promises no order of its own. `known` are the events there are.
pub(super) fn read(
    emit: &Emit,
    rows: &[PgRow],
    known: &[Ref],
) -> Result<Vec<(Ref, Message)>, HandlerError> {
    let fail = |why: String| HandlerError::new(Class::Halt, format!("emit {}: {why}", emit.name));
    let mut known = known.to_vec();
    known.sort_unstable();
    let columns: Vec<(&str, bool)> = rows.first().map_or_else(Vec::new, |row| {
        let json = |name: &str| matches!(name, "JSONB" | "JSON");
        let columns = row.columns().iter();
        columns
            .map(|c| (c.name(), json(c.type_info().name())))
            .collect()
    });
    let mut messages = Vec::with_capacity(rows.len());
    for row in rows {
        let reference: Option<i64> = row
            .try_get("_ref")
            .map_err(|error| fail(format!("column `_ref`: {error}")))?;
        let reference = reference
            .and_then(|reference| Ref::try_from(reference).ok())
            .filter(|reference| known.binary_search(reference).is_ok())
            .ok_or_else(|| {
                fail("`_ref` is not that of an event of the batch; a message comes from one event: select `_ref` of `events`".to_owned())
            })?;
        let mut message = Message {
            topic: emit.topic.clone(),
            ..Message::default()
        };
        let mut index: i64 = 0;
        let mut is_json = false;
        for (place, (name, json)) in columns.iter().enumerate() {
            if *name == "_ref" {
                continue;
            }
            let value = row
                .try_get_raw(place)
                .map_err(|error| fail(error.to_string()))?;
            let value = bytes(&value).map_err(|why| fail(format!("column `{name}`: {why}")))?;
            let text = |value: Option<Vec<u8>>| {
                value.map(|value| String::from_utf8_lossy(&value).into_owned())
            };
            match *name {
                "key" => message.key = value,
                "payload" => {
                    is_json = *json && value.is_some();
                    message.payload = value;
                }
                "topic" => message.topic = text(value).unwrap_or_default(),
                "type" => message.kind = text(value).unwrap_or_default(),
                "headers" => {
                    message.headers = headers(value.as_deref()).map_err(|why| {
                        HandlerError::terminal(format!("emit {}: headers: {why}", emit.name))
                            .at_ref(reference)
                    })?;
                }
                "partition" => message.partition = text(value).and_then(|t| t.parse().ok()),
                "_index" => index = text(value).and_then(|t| t.parse().ok()).unwrap_or_default(),
                _ => {}
            }
        }
        if let (Some(outgoing), Some(payload)) = (&emit.outgoing, &message.payload) {
            is_json = false;
            let written = outgoing.write(payload).ok_or_else(|| {
                fail("what its payload is to be written with is not settled".to_owned())
            })?;
            message.payload = Some(written.map_err(|why| {
                HandlerError::terminal(format!("emit {}: payload: {why}", emit.name))
                    .at_ref(reference)
            })?);
        }
        let named = message.headers.iter().any(|h| h.name == CONTENT_TYPE);
        if is_json && !named {
            let header = Header {
                name: CONTENT_TYPE.to_owned(),
                value: Some(b"application/json".to_vec()),
            };
            message.headers.insert(0, header);
        }
        messages.push((reference, index, message));
    }
    let mut order: Vec<usize> = (0..messages.len()).collect();
    order.sort_by(|a, b| {
        let ((ref_a, index_a, a), (ref_b, index_b, b)) = (&messages[*a], &messages[*b]);
        (ref_a, index_a, &a.key, &a.payload).cmp(&(ref_b, index_b, &b.key, &b.payload))
    });
    let mut take = |place: usize| {
        let (reference, _, message) = &mut messages[place];
        (*reference, std::mem::take(message))
    };
    Ok(order.into_iter().map(&mut take).collect())
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

/// Headers from a JSON object, or from an array of pairs where a name comes more than once.
fn headers(json: Option<&[u8]>) -> Result<Vec<Header>, String> {
    let Some(json) = json else {
        return Ok(Vec::new());
    };
    let pairs: Vec<(String, Value)> = match serde_json::from_slice(json) {
        Ok(Value::Object(fields)) => fields.into_iter().collect(),
        Ok(Value::Array(pairs)) => pairs.into_iter().map(pair).collect::<Result<_, _>>()?,
        _ => {
            return Err(
                r#"give an object, {"name": "value"}, or an array of pairs, [["name", "value"]]"#
                    .to_owned(),
            );
        }
    };
    let header = |(name, value)| match header_value(value) {
        Ok(value) => Ok(Header { name, value }),
        Err(why) => Err(format!("`{name}` {why}")),
    };
    pairs.into_iter().map(header).collect()
}

fn pair(pair: Value) -> Result<(String, Value), String> {
    let shown: String = pair.to_string().chars().take(100).collect();
    serde_json::from_value(pair)
        .map_err(|_| format!(r#"`{shown}` is no header; give a pair, ["name", "value"]"#))
}

fn header_value(value: Value) -> Result<Option<Vec<u8>>, String> {
    const CURE: &str = r#"is no string; give a string, null, or {"base64": ".."} for bytes"#;
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.into_bytes())),
        Value::Object(fields) if fields.len() == 1 => {
            let text = fields.get("base64").and_then(Value::as_str).ok_or(CURE)?;
            // Postgres' encode() breaks lines.
            let text: String = text.split_ascii_whitespace().collect();
            let bytes = STANDARD.decode(text);
            bytes
                .map(Some)
                .map_err(|error| format!("is no base64: {error}"))
        }
        _ => Err(CURE.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pair<'a> = (&'a str, Option<&'a [u8]>);

    #[track_caller]
    fn check(json: &str, expected: Result<&[Pair<'_>], &str>) {
        match (headers(Some(json.as_bytes())), expected) {
            (Ok(found), Ok(expected)) => {
                let found: Vec<Pair<'_>> = found
                    .iter()
                    .map(|header| (&*header.name, header.value.as_deref()))
                    .collect();
                assert_eq!(found, expected, "{json}");
            }
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
            (found, expected) => panic!("{json}: {found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn headers_are_an_object_or_pairs_of_text_or_bytes() {
        check("{}", Ok(&[]));
        check("[]", Ok(&[]));
        check(
            r#"{"a": "x", "b": null, "c": {"base64": "AP8="}}"#,
            Ok(&[("a", Some(b"x")), ("b", None), ("c", Some(b"\0\xff"))]),
        );
        check(
            r#"[["b", "1"], ["a", "2"], ["b", {"base64": "QUJD\nREVG\n"}], ["b", null]]"#,
            Ok(&[
                ("b", Some(b"1")),
                ("a", Some(b"2")),
                ("b", Some(b"ABCDEF")),
                ("b", None),
            ]),
        );
    }

    #[test]
    fn what_is_no_header_is_named() {
        check("3", Err("give an object"));
        check("null", Err("give an object"));
        check(r#"["a"]"#, Err(r#"`"a"` is no header; give a pair"#));
        check(r#"[["a", "1", "2"]]"#, Err("is no header"));
        check(r#"[[1, "1"]]"#, Err("is no header"));
        check(r#"{"a": 1}"#, Err("`a` is no string"));
        check(r#"{"a": {"base64": 1}}"#, Err("`a` is no string"));
        check(r#"{"a": {"hex": "00"}}"#, Err("`a` is no string"));
        check(r#"{"a": {"base64": "", "b": 1}}"#, Err("`a` is no string"));
        check(r#"{"a": {"base64": "A"}}"#, Err("`a` is no base64"));
    }
}
