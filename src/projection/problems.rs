//! What a definition contradicts itself in, and how things may be named.

use std::borrow::Cow;
use std::fmt;

use super::definition::{First, Gate, OnFailure, Projection, Tombstones};
use super::entity_type::EntityType;
use super::format::{Format, Types, UnknownType};
use super::source::Source;

impl Projection {
    /// Contradictions in the definition.
    pub(crate) fn problems(&self) -> Vec<Contradiction> {
        let mut problems = Vec::new();
        let mut add = |setting, what: String, cure: &'static str| {
            problems.push(Contradiction {
                setting,
                column: None,
                what,
                cure: cure.into(),
            });
        };
        if !is_identifier(&self.name) || self.name.len() > 40 {
            add(
                "name",
                format!(
                    "`{}` cannot name a projection: it becomes a schema and part of a consumer group",
                    self.name
                ),
                "use up to 40 lower-case letters, digits and _, beginning with a letter",
            );
        } else if reserved_schema(&self.name) {
            add(
                "name",
                format!("`{}` is a name of Postgres or Tidegate itself", self.name),
                "choose another",
            );
        }
        if self.topics.is_empty() {
            add(
                "topics",
                "a projection needs at least one topic".to_owned(),
                "name one: topics = [\"orders\"]",
            );
        }
        for (index, topic) in self.topics.iter().enumerate() {
            if !is_topic(topic) {
                add(
                    "topics",
                    format!("`{topic}` cannot name a topic"),
                    TOPIC_CURE,
                );
            } else if self.topics[..index].contains(topic) {
                add(
                    "topics",
                    format!("topic `{topic}` is named twice"),
                    "remove one",
                );
            }
        }
        if let Some(topic) = &self.dead_letter_topic {
            if !is_topic(topic) {
                add(
                    "dead_letter_topic",
                    format!("`{topic}` cannot name a topic"),
                    TOPIC_CURE,
                );
            } else if self.topics.contains(topic) {
                add(
                    "dead_letter_topic",
                    format!(
                        "`{topic}` is a topic that the projection reads: it would park its own dead letters"
                    ),
                    "name another",
                );
            } else if self.on_failure == OnFailure::Halt {
                add(
                    "dead_letter_topic",
                    "with `on_failure = \"halt\"` there are no dead letters to send".to_owned(),
                    "remove one of the two",
                );
            }
        }
        for (index, column) in self.columns.iter().enumerate() {
            if let Some(why) = column_problem(&column.name) {
                add("columns", format!("column `{}`: {why}", column.name), "");
            } else if self.columns[..index].iter().any(|c| c.name == column.name) {
                add(
                    "columns",
                    format!("column `{}` is declared twice", column.name),
                    "remove one",
                );
            }
        }
        let in_value = |source: &Option<Source>| {
            matches!(source, Some(Source::Pointer(_) | Source::Envelope(_)))
        };
        let gated = self.gate != Gate::None;
        for (name, source, is_needed) in [
            ("entity", &self.entity, true),
            ("sequence", &self.sequence, gated),
            ("event_id", &self.event_id, true),
        ] {
            let is_event = self.tombstones == Some(Tombstones::Event);
            // A CloudEvent without data is none.
            let is_event = is_event && !matches!(self.format, Format::CloudEvents);
            if is_event && is_needed && in_value(source) {
                add(
                    "tombstones",
                    format!(
                        "a tombstone has no value, in which `{name}` is looked for: none could be applied"
                    ),
                    "take it from \"key\", \"key:<pointer>\" or \"header:<name>\", or filter tombstones",
                );
            }
        }
        // Of a fold it is said below.
        if !self.entity_rows.is_empty() && self.entity.is_none() && !self.handler.keeps_states() {
            add(
                "entity_rows",
                "rows belong to an entity where there is one: `entity` is missing".to_owned(),
                SOURCE_CURE,
            );
        }
        if self.entity_type != EntityType::Text
            && self.entity.is_none()
            && !self.handler.keeps_states()
        {
            add(
                "entity_type",
                "there are no entities to be of a type: `entity` is missing".to_owned(),
                SOURCE_CURE,
            );
        }
        if self.handler.keeps_states() && self.gate == Gate::None && self.entity.is_none() {
            add(
                "entity",
                "a fold keeps a state for each entity, and needs `entity`".to_owned(),
                SOURCE_CURE,
            );
        }
        if self.gate_in.is_some() && self.gate == Gate::None {
            add(
                "gate_in",
                "there is no gate to keep in a row".to_owned(),
                "choose gate \"newest\" or \"next\", or remove it",
            );
        }
        if self.gate_in.is_some() && self.event_id.is_some() {
            add(
                "gate_in",
                "an event that `event_id` drops would leave no sequence in its entity's row"
                    .to_owned(),
                "remove `event_id`: a resent event is stale by its sequence already",
            );
        }
        if let Gate::Next {
            first: First::At(i64::MIN),
        } = self.gate
        {
            add(
                "first",
                "the lowest number there is has none before it, which stands for an entity that was never met".to_owned(),
                "begin with another number",
            );
        }
        for why in self.format.avro().into_iter().flat_map(|avro| &avro.wrong) {
            add(
                "schema",
                format!("not an Avro schema: {why}"),
                "types that it refers to are given by `AvroSchema::with_types`",
            );
        }
        if let Some(Types { known, .. }) = &self.types {
            if known.is_empty() {
                add(
                    "type",
                    "`type` needs `types`, those that the projection knows".to_owned(),
                    "name them: types = [\"OrderPlaced\", \"OrderShipped\"]",
                );
            }
            for (index, name) in known.iter().enumerate() {
                if known[..index].contains(name) {
                    add("types", format!("`types` has `{name}` twice"), "remove one");
                }
            }
        }
        let filters = |types: &Types| types.unknown == UnknownType::Filter;
        if matches!(self.gate, Gate::Next { .. }) && self.types.as_ref().is_some_and(filters) {
            add(
                "unknown_type",
                "with gate `next` an event that is filtered for its type would be missed for ever, and all behind it would wait".to_owned(),
                "name the type in `types`, with no statement of its own",
            );
        }
        let needed = [("entity", &self.entity), ("sequence", &self.sequence)];
        let missing = needed.iter().filter(|(_, source)| source.is_none());
        let missing: Vec<String> = missing.map(|(name, _)| format!("`{name}`")).collect();
        let gate = match self.gate {
            Gate::None => None,
            Gate::Newest => Some("newest"),
            Gate::Next { .. } => Some("next"),
        };
        if let (Some(gate), false) = (gate, missing.is_empty()) {
            add(
                "gate",
                format!("gate `{gate}` needs {}", missing.join(" and ")),
                SOURCE_CURE,
            );
        }
        // By a schema that is none everything is wrong.
        if self.format.avro().is_none_or(|avro| avro.wrong.is_empty()) {
            problems.extend(self.misfits());
        }
        problems
    }
}

/// What is wrong with a definition, with the setting that is at fault.
#[derive(Debug)]
pub(crate) struct Contradiction {
    pub(crate) setting: &'static str,
    /// The column that is at fault.
    pub(crate) column: Option<String>,
    pub(crate) what: String,
    pub(crate) cure: Cow<'static, str>,
}

impl Contradiction {
    /// For a reason that ends with its cure, after a semicolon.
    pub(super) fn of(setting: &'static str, reason: &str) -> Self {
        let (what, cure) = reason.split_once("; ").unwrap_or((reason, ""));
        Self {
            setting,
            column: None,
            what: what.to_owned(),
            cure: cure.to_owned().into(),
        }
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.cure {
            "" => f.write_str(&self.what),
            cure => write!(f, "{}; {cure}", self.what),
        }
    }
}

/// How to say where something stands.
const SOURCE_CURE: &str = "say where it stands in a record: \"key\", \"header:<name>\" or a JSON pointer such as \"/account\"";

/// How a topic may be named.
pub(crate) const TOPIC_CURE: &str = "use up to 249 letters, digits, `.`, `_` and `-`";

/// Whether Kafka has topics of that name. The client would take another, such as `^a`, for a pattern.
pub(crate) fn is_topic(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=249).contains(&name.len()) && name.bytes().all(allowed) && name != "." && name != ".."
}

/// Whether `name` can stand in SQL without quotes.
pub(crate) fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_lowercase())
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && name.len() <= 63
}

/// What is wrong with a column's name.
pub(crate) fn column_problem(name: &str) -> Option<String> {
    if name.starts_with('_') {
        return Some("names that begin with `_` are tidegate's own".to_owned());
    }
    (!is_identifier(name)).then(|| {
        "a column's name is lower-case letters, digits and _, beginning with a letter".to_owned()
    })
}

/// Whether a name looks like a slip for a known one: at most a third of its letters are wrong.
pub(crate) fn is_near(name: &str, known: &str) -> bool {
    strsim::damerau_levenshtein(known, name) <= known.len().div_ceil(3)
}

/// Schemas that are not for projections.
fn reserved_schema(name: &str) -> bool {
    name.starts_with("pg_") || matches!(name, "public" | "tidegate" | "information_schema")
}
