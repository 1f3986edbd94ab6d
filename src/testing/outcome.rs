//! What came of events, and how two outcomes differ. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::store::hex;
use crate::store::scratch::{Message, Parked};

/// Lines of a difference that are shown.
const LINES_MAX: usize = 20;

/// Tables, messages and what waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Each table's rows as JSON text, sorted.
    pub(super) tables: BTreeMap<String, Vec<String>>,
    pub(super) messages: Vec<Message>,
    pub(super) parked: Vec<Parked>,
}

/// Bytes as JSON: what is JSON itself, text, or hexadecimal.
fn shown(bytes: Option<&[u8]>) -> Value {
    let Some(bytes) = bytes else {
        return Value::Null;
    };
    match serde_json::from_slice(bytes) {
        Ok(value @ (Value::Object(_) | Value::Array(_))) => value,
        _ => text(bytes),
    }
}

fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => Value::from(format!("\\x{}", hex(bytes))),
    }
}

/// A message as reports and expectations write it.
pub(super) fn message(message: &Message) -> Value {
    let mut value = json!({
        "topic": message.topic,
        "key": message.key.as_deref().map(text),
        "type": message.kind,
        "payload": shown(message.payload.as_deref()),
    });
    let names = message.header_names.iter();
    let headers = names.zip(&message.header_values);
    let headers: Vec<Value> = headers
        .filter(|(name, _)| *name != "content-type")
        .map(|(name, value)| json!([name, value.as_deref().map(text)]))
        .collect();
    if !headers.is_empty() {
        value["headers"] = Value::from(headers);
    }
    if let Some(partition) = message.partition {
        value["partition"] = Value::from(partition);
    }
    value
}

impl Outcome {
    /// The messages of each topic and key in order, since no other order is promised.
    fn by_key(&self, with_ids: bool) -> BTreeMap<String, Vec<String>> {
        let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for one in &self.messages {
            let key = one.key.as_deref().map_or(Value::Null, text);
            let of = by_key
                .entry(format!("messages to {}, key {key}", one.topic))
                .or_default();
            let mut value = message(one);
            if with_ids {
                value["id"] = Value::from(one.id.to_string());
            }
            of.push(value.to_string());
        }
        by_key
    }

    fn waiting(&self) -> Vec<String> {
        let line = |parked: &Parked| {
            let entity = parked.entity.as_deref().unwrap_or("none");
            format!("{}: {} (entity {entity})", parked.reason, parked.detail)
        };
        let mut lines: Vec<String> = self.parked.iter().map(line).collect();
        lines.sort_unstable();
        lines
    }

    /// How another outcome of the same events differs; none if it does not. Copies have other places in the log,
    /// so messages have other ids then, and more records may wait.
    pub(super) fn difference(&self, other: &Self, copies: bool) -> Option<String> {
        let mut text = String::new();
        for (table, rows) in &self.tables {
            let found = other.tables.get(table).map_or(&[][..], |rows| rows);
            lines(&mut text, &format!("table {table}"), rows, found);
        }
        let (mine, theirs) = (self.by_key(!copies), other.by_key(!copies));
        let mut keys: Vec<&String> = mine.keys().chain(theirs.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let of = |messages: &BTreeMap<String, Vec<String>>| {
                messages.get(key).cloned().unwrap_or_default()
            };
            lines(&mut text, key, &of(&mine), &of(&theirs));
        }
        if !copies {
            lines(
                &mut text,
                "parked records",
                &self.waiting(),
                &other.waiting(),
            );
        }
        (!text.is_empty()).then_some(text)
    }
}

/// Says which lines are on one side only, if any are, or that the order differs.
pub(super) fn lines(text: &mut String, what: &str, expected: &[String], found: &[String]) {
    if expected == found {
        return;
    }
    let mut counts: BTreeMap<&String, i64> = BTreeMap::new();
    expected
        .iter()
        .for_each(|line| *counts.entry(line).or_default() += 1);
    found
        .iter()
        .for_each(|line| *counts.entry(line).or_default() -= 1);
    let mut differing: Vec<String> = Vec::new();
    for (line, count) in counts {
        let sign = if count > 0 { '-' } else { '+' };
        let times = usize::try_from(count.unsigned_abs()).unwrap_or_default();
        differing.extend(std::iter::repeat_n(format!("    {sign} {line}"), times));
    }
    let _ = writeln!(text, "  {what}:");
    if differing.is_empty() {
        let in_order = |sign: char, lines: &[String]| {
            let lines = lines.iter().map(|line| format!("    {sign} {line}"));
            lines.collect::<Vec<_>>()
        };
        let _ = writeln!(text, "    the same, in another order");
        differing = in_order('-', expected);
        differing.extend(in_order('+', found));
    }
    let more = differing.len().saturating_sub(LINES_MAX);
    differing.truncate(LINES_MAX);
    for line in differing {
        let _ = writeln!(text, "{line}");
    }
    if more > 0 {
        let _ = writeln!(text, "    and {more} more");
    }
}

/// Compares what was found with an array of objects, each of which names what it expects of one of them. With
/// `in_order`, those of each topic and key come in this order.
pub(super) fn expect(
    text: &mut String,
    what: &str,
    expected: &Value,
    found: Vec<Value>,
    in_order: bool,
) {
    let Some(expected) = expected.as_array() else {
        let _ = writeln!(
            text,
            "  {what}: expected is not an array of objects: {expected}"
        );
        return;
    };
    let mut missing: Vec<String> = Vec::new();
    let mut places: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut numbered: Vec<(usize, Value)> = found.into_iter().enumerate().collect();
    for wanted in expected {
        let Some(place) = numbered.iter().position(|(_, one)| fits(wanted, one)) else {
            missing.push(wanted.to_string());
            continue;
        };
        let (number, one) = numbered.remove(place);
        let key = (one["topic"].to_string(), one["key"].to_string());
        if in_order
            && places
                .insert(key.clone(), number)
                .is_some_and(|before| before > number)
        {
            let (topic, key) = key;
            let _ = writeln!(text, "  {what} to {topic}, key {key}: in another order");
        }
    }
    let surplus: Vec<String> = numbered.iter().map(|(_, one)| one.to_string()).collect();
    lines(text, what, &missing, &surplus);
}

/// Whether a value is what is wanted, as far as that goes: of objects only the fields that are named.
fn fits(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => wanted
            .iter()
            .all(|(name, value)| fits(value, found.get(name).unwrap_or(&Value::Null))),
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => wanted == found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expected: Value, found: &[Value], in_order: bool, contains: &str) {
        let mut text = String::new();
        expect(&mut text, "rows", &expected, found.to_vec(), in_order);
        assert!(text.contains(contains), "{text}");
        assert_eq!(text.is_empty(), contains.is_empty(), "{text}");
    }

    #[test]
    fn an_expectation_names_what_matters() {
        let found = [json!({ "a": 1, "b": 2 }), json!({ "a": 2, "b": null })];
        check(json!([{ "a": 2 }, { "a": 1 }]), &found, false, "");
        check(
            json!([{ "a": 1.0 }, { "a": 2, "b": null }]),
            &found,
            false,
            "",
        );
        check(json!([{ "a": 1 }]), &found, false, "+ {\"a\":2,\"b\":null}");
        check(
            json!([{ "a": 1 }, { "a": 3 }]),
            &found,
            false,
            "- {\"a\":3}",
        );
        check(json!({ "a": 1 }), &found, false, "not an array");
    }

    #[test]
    fn messages_of_a_key_come_in_order() {
        let found = [json!({ "key": "a", "n": 1 }), json!({ "key": "a", "n": 2 })];
        check(json!([{ "n": 1 }, { "n": 2 }]), &found, true, "");
        check(
            json!([{ "n": 2 }, { "n": 1 }]),
            &found,
            true,
            "in another order",
        );
        let found = [json!({ "key": "a", "n": 1 }), json!({ "key": "b", "n": 2 })];
        check(json!([{ "n": 2 }, { "n": 1 }]), &found, true, "");
    }
}
