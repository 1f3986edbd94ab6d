//! Tests of projections in TOML, for those who write them in TOML.

use std::collections::BTreeMap;
use std::path::Path;

use chrono::DateTime;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{Given, Test};
use crate::projection::Projection;

/// A file of tests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    test: Vec<Case>,
}

/// One test.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) projection: String,
    /// SQL for what the projection finds outside of its own schema.
    #[serde(default)]
    prepare: String,
    given: Vec<Event>,
    #[serde(default)]
    then: Then,
    #[serde(default = "yes")]
    copies: bool,
    seed: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    topic: Option<String>,
    #[serde(default)]
    partition: i32,
    key: Option<String>,
    /// As JSON; written with the projection's schema where its values are Avro.
    value: Option<Value>,
    /// Byte for byte: what is not JSON, or must be written in just this way.
    text: Option<String>,
    #[serde(default)]
    tombstone: bool,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// As RFC 3339.
    #[serde(default, deserialize_with = "time")]
    timestamp: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Then {
    #[serde(default)]
    tables: BTreeMap<String, Value>,
    messages: Option<Value>,
    #[serde(default)]
    parked: usize,
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time = DateTime::parse_from_rfc3339(&text);
    let time = time.map_err(|error| D::Error::custom(format!("`{text}` is no time: {error}")))?;
    Ok(Some(time.timestamp_millis()))
}

fn yes() -> bool {
    true
}

/// Reads the tests of a file.
///
/// # Errors
/// What is wrong, with line and column.
pub(crate) fn read(path: &Path) -> Result<Vec<Case>, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    parse(&text).map_err(|why| format!("{}: {why}", path.display()))
}

fn parse(text: &str) -> Result<Vec<Case>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    for case in &file.test {
        for (number, event) in (1..).zip(&case.given) {
            let contents = [event.value.is_some(), event.text.is_some(), event.tombstone];
            if contents.into_iter().filter(|given| *given).count() != 1 {
                return Err(format!(
                    "test \"{}\", event {number}: say one of `value` (as JSON), `text` (byte for byte) and `tombstone = true`",
                    case.name
                ));
            }
        }
    }
    Ok(file.test)
}

impl Case {
    /// The test of this projection.
    ///
    /// # Errors
    /// An event whose value the projection's schema cannot write.
    pub(crate) fn of<'p>(&self, projection: &'p Projection) -> Result<Test<'p>, String> {
        let mut test = Test::of(projection).prepare(&self.prepare);
        for (number, event) in (1..).zip(&self.given) {
            let given = event.given().written_for(projection);
            test = test.given(
                given.map_err(|why| format!("test \"{}\", event {number}: {why}", self.name))?,
            );
        }
        for (table, rows) in &self.then.tables {
            test = test.then(table, rows.clone());
        }
        if let Some(messages) = &self.then.messages {
            test = test.then_messages(messages.clone());
        }
        if !self.copies {
            test = test.without_copies();
        }
        if let Some(seed) = self.seed {
            test = test.seed(seed);
        }
        Ok(test.then_parked(self.then.parked))
    }
}

impl Event {
    fn given(&self) -> Given {
        let mut given = match (&self.value, &self.text) {
            (Some(value), _) => Given::json(value.clone()),
            (None, Some(text)) => Given::bytes(&**text),
            (None, None) => Given::default(),
        };
        given = given.partition(self.partition);
        if let Some(topic) = &self.topic {
            given = given.topic(topic);
        }
        if let Some(key) = &self.key {
            given = given.key(&**key);
        }
        for (name, value) in &self.headers {
            given = given.header(name, &**value);
        }
        match self.timestamp {
            Some(time) => given.timestamp_ms(time),
            None => given,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, contains: &str) {
        let why = parse(text).unwrap_err();
        assert!(why.contains(contains), "{why}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        refused(
            "[[test]]\nname = \"a\"\nprojection = \"p\"\ngiven = [{ valeu = {} }]",
            "line 4",
        );
        refused(
            "[[test]]\nname = \"a\"\nprojection = \"p\"\ngiven = [{ key = \"k\" }]",
            "test \"a\", event 1: say one of",
        );
        refused(
            "[[test]]\nname = \"a\"\ngiven = []",
            "missing field `projection`",
        );
    }
}
