//! What values are: their format, their schemas, what one may cost; and where schemas are asked for.

use std::sync::Arc;
use std::time::Duration;

use toml::de::DeValue;

use super::problems::Place;
use super::section::{File, Section, Setting, Sources};
use crate::avro::Schema;
use crate::projection::{
    Avro, AvroSchema, Format, Frame, Framing, Outgoing, Types, UnknownType, ValueLimits,
};
use crate::registry::{self, Credentials};

/// What all projections share.
#[derive(Clone, Copy)]
pub(super) struct Values {
    pub(super) limits: ValueLimits,
    /// Whether there is a schema registry to ask.
    pub(super) has_registry: bool,
}

/// What is set for a projection's values.
pub(super) const KEYS: [&str; 8] = [
    "format",
    "schema",
    "key_schema",
    "framing",
    "written_with",
    "type",
    "types",
    "unknown_type",
];

pub(super) fn read_limits(section: Section<'_>, sources: &mut Sources<'_>) -> ValueLimits {
    let usual = ValueLimits::default();
    let limits = ValueLimits {
        bytes_max: section.count("value_bytes_max", 1..=1 << 30, usual.bytes_max, sources),
        headers_bytes_max: section.count(
            "headers_bytes_max",
            0..=1 << 30,
            usual.headers_bytes_max,
            sources,
        ),
        // A level takes some of a thread's stack.
        nesting_max: section.count("nesting_max", 1..=256, usual.nesting_max, sources),
        items_max: section.count("items_max", 1..=1_000_000_000, usual.items_max, sources),
    };
    let keys = [
        "value_bytes_max",
        "headers_bytes_max",
        "nesting_max",
        "items_max",
    ];
    section.finish(&keys, sources);
    limits
}

pub(super) fn read_registry(
    section: Section<'_>,
    sources: &mut Sources<'_>,
) -> Option<registry::Settings> {
    const CURE: &str = "write url = \"https://registry:8081\"; several are separated by commas";
    const KEYS: [&str; 10] = [
        "url",
        "name",
        "user",
        "password",
        "token",
        "ca_file",
        "identity_file",
        "timeout",
        "unknown_grace",
        "verify_every",
    ];
    let set = |key: &&str| section.has(key, sources);
    if section.table.is_none() && !KEYS.iter().any(set) {
        return None;
    }
    let place = section.place(sources);
    let url = section.required("url", CURE, sources);
    let user = section.located("user", sources);
    let password = section.located("password", sources);
    let token = section.located("token", sources);
    let credentials = match (user, password, token) {
        (None, None, None) => Credentials::None,
        (None, None, Some(token)) => Credentials::Bearer(token.text),
        (Some(user), Some(password), None) => Credentials::Basic {
            user: user.text,
            password: password.text,
        },
        (user, password, token) => {
            let at = [user, password, token].into_iter().flatten().next();
            let at = at.map_or_else(|| place.clone(), |setting| setting.place);
            let what = "`user` and `password` go together, and `token` alone".to_owned();
            let cure = "passwords and tokens are best set in the environment: TIDEGATE__SCHEMA_REGISTRY__TOKEN";
            sources.problems.add(at, what, cure);
            Credentials::None
        }
    };
    let name = section.string("name", sources);
    let settings = registry::Settings {
        name: name
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "default".to_owned()),
        urls: url.map(|url| urls(url, sources)).unwrap_or_default(),
        credentials,
        authorities: pem("ca_file", &section, sources),
        identity: pem("identity_file", &section, sources),
        timeout: section.duration(
            "timeout",
            Duration::from_millis(10),
            Duration::from_secs(5),
            sources,
        ),
        unknown_grace: section.duration(
            "unknown_grace",
            Duration::ZERO,
            Duration::from_secs(30),
            sources,
        ),
        verify_every: section.duration(
            "verify_every",
            Duration::from_millis(100),
            Duration::from_secs(60),
            sources,
        ),
        patience: registry::PATIENCE,
    };
    section.finish(&KEYS, sources);
    if let Some(why) = registry::problem(&settings) {
        let what = format!("`schema_registry` cannot be used: {why}");
        sources.problems.add(place, what, "");
    }
    Some(settings)
}

fn urls(Setting { text, place }: Setting, sources: &mut Sources<'_>) -> Vec<String> {
    let mut urls = Vec::new();
    for url in text.split(',').map(str::trim) {
        let rest = url
            .strip_prefix("http://")
            .or_else(|| url.strip_prefix("https://"));
        // The text is not shown: it may hold a password.
        let wrong = match rest {
            None | Some("") => Some("begins with neither http:// nor https://"),
            Some(rest) if rest.contains('@') => Some("names a user; there are settings for that"),
            Some(rest) if rest.contains(['?', '#', ' ']) => Some("goes on behind its path"),
            Some(_) => None,
        };
        match wrong {
            None => urls.push(url.to_owned()),
            Some(wrong) => {
                let what = format!("an address in `schema_registry.url` {wrong}");
                let cure = "write url = \"https://registry:8081\"; several are separated by commas";
                sources.problems.add(place.clone(), what, cure);
            }
        }
    }
    urls
}

fn pem(key: &str, section: &Section<'_>, sources: &mut Sources<'_>) -> Option<Vec<u8>> {
    let Setting { text, place } = section.located(key, sources)?;
    let path = sources.folder.join(text);
    match std::fs::read(&path) {
        Ok(pem) => Some(pem),
        Err(error) => {
            let what = format!("`{key}`: {} cannot be read: {error}", path.display());
            let cure = "the path is relative to the configuration file";
            sources.problems.add(place, what, cure);
            None
        }
    }
}

/// The format of a projection's values.
pub(super) fn read_format(
    section: &Section<'_>,
    values: Values,
    sources: &mut Sources<'_>,
) -> Format {
    #[derive(Clone, Copy, PartialEq)]
    enum Name {
        Json,
        Avro,
        CloudEvents,
        Debezium,
    }
    #[derive(Clone, Copy, PartialEq)]
    enum Frame {
        Confluent,
        SingleObject,
        Raw,
    }
    let names = [
        ("json", Name::Json),
        ("avro", Name::Avro),
        ("cloudevents", Name::CloudEvents),
        ("debezium", Name::Debezium),
    ];
    let name = section
        .choice("format", &names, sources)
        .unwrap_or(Name::Json);
    let place = section.place_of("format", sources);
    // Change events with a schema are in Avro.
    let in_json = name == Name::Debezium && section.value("schema").is_none();
    if matches!(name, Name::Json | Name::CloudEvents) || in_json {
        let (format, text, cure) = match name {
            Name::CloudEvents => (
                Format::CloudEvents,
                "with `format = \"cloudevents\"`",
                "remove it: the data of events is JSON",
            ),
            Name::Debezium => (
                Format::Debezium(None),
                "without `schema`",
                "name the schema of the whole change event, or remove it for JSON",
            ),
            Name::Json | Name::Avro => (
                Format::Json,
                "with `format = \"json\"`",
                "remove it, or set format = \"avro\"",
            ),
        };
        for key in ["schema", "framing", "written_with"] {
            if let Some(place) = section.place_of_setting(key, sources) {
                let what = format!("`{key}` means nothing {text}");
                sources.problems.add(place, what, cure);
            }
        }
        return format;
    }
    let frames = [
        ("confluent", Frame::Confluent),
        ("single-object", Frame::SingleObject),
        ("raw", Frame::Raw),
    ];
    let frame = section
        .choice("framing", &frames, sources)
        .unwrap_or(Frame::Confluent);
    let schema = section.list("schema", sources);
    if section.value("schema").is_none() && !section.misspells("schema") {
        let what = "`format = \"avro\"` needs `schema`, by which values are read".to_owned();
        let cure = "name its file: schema = \"schemas/entry.avsc\"";
        sources.problems.add(place.clone(), what, cure);
    }
    let written_with = section.list("written_with", sources);
    let written_place = section.place_of("written_with", sources);
    let schema = read_schema(schema, sources);
    let writers: Vec<Arc<Schema>> = written_with
        .into_iter()
        .filter_map(|file| read_schema(vec![file], sources))
        .collect();
    let framing = match frame {
        Frame::Confluent => {
            if !writers.is_empty() {
                let what = "`written_with` means nothing with the framing `confluent`".to_owned();
                let cure = "remove it: what a value was written with is asked for by its id";
                sources.problems.add(written_place, what, cure);
            }
            if !values.has_registry {
                let what = "the framing `confluent` needs [schema_registry]".to_owned();
                let cure = "say where it is, or set `framing` to \"raw\" or \"single-object\"";
                sources.problems.add(place, what, cure);
            }
            Some(Framing::Confluent)
        }
        Frame::SingleObject => Some(Framing::SingleObject(writers)),
        Frame::Raw => {
            if writers.len() > 1 {
                let what = "a value without a frame does not say which of several schemas wrote it";
                let cure = "name one in `written_with`, or set framing = \"single-object\"";
                sources.problems.add(written_place, what.to_owned(), cure);
            }
            let writer = writers.into_iter().next().or_else(|| schema.clone());
            writer.map(Framing::Raw)
        }
    };
    match (schema, framing) {
        (Some(schema), Some(framing)) if name == Name::Debezium => {
            Format::Debezium(Some(Avro::new(schema, framing)))
        }
        (Some(schema), Some(framing)) => Format::Avro(Avro::new(schema, framing)),
        // What is wrong has been said.
        _ if name == Name::Debezium => Format::Debezium(None),
        _ => Format::Json,
    }
}

/// Reads the schema by which keys are read.
pub(super) fn read_key_schema(
    format: &mut Format,
    section: &Section<'_>,
    sources: &mut Sources<'_>,
) {
    let Some(place) = section.place_of_setting("key_schema", sources) else {
        return;
    };
    let Some(avro) = format.avro_mut() else {
        let what = "`key_schema` means nothing where values are not in Avro".to_owned();
        let cure = "remove it: keys are JSON as well, if a part of them is read";
        sources.problems.add(place, what, cure);
        return;
    };
    if let Some(schema) = read_schema(section.list("key_schema", sources), sources) {
        *avro = avro.clone().key(AvroSchema(Ok(schema)));
    }
}

/// What is set for the payloads of an emit.
pub(super) const EMIT_KEYS: [&str; 4] = ["schema", "framing", "subject", "register"];

/// How the payloads of an emit are written, if not as they are.
pub(super) fn read_outgoing(
    table: &Section<'_>,
    topic: Option<&str>,
    values: Values,
    sources: &mut Sources<'_>,
) -> Option<Outgoing> {
    let Some(file) = table.located("schema", sources) else {
        for key in ["framing", "subject", "register"] {
            if let Some(place) = table.place_of_setting(key, sources) {
                let what = format!("`{key}` of an emit means nothing without `schema`");
                sources
                    .problems
                    .add(place, what, "remove it, or name the schema of the payload");
            }
        }
        return None;
    };
    let place = file.place.clone();
    let path = sources.folder.join(&file.text);
    let schema = read_schema(vec![file], sources);
    let frames = [("confluent", 0), ("single-object", 1), ("raw", 2)];
    let frame = table.choice("framing", &frames, sources).unwrap_or(0);
    let subject = table.located("subject", sources);
    let register = table
        .located("register", sources)
        .map(|setting| setting.place);
    let register_is = table.flag("register", true, sources);
    if frame != 0 {
        for (key, at) in [
            ("subject", subject.as_ref().map(|s| &s.place)),
            ("register", register.as_ref()),
        ] {
            if let Some(at) = at {
                let what = format!("`{key}` means nothing without the framing `confluent`");
                sources
                    .problems
                    .add(at.clone(), what, "remove it: no registry is asked");
            }
        }
    } else if !values.has_registry {
        let what = "the framing `confluent` needs [schema_registry]".to_owned();
        let cure = "say where it is, or set `framing` to \"raw\" or \"single-object\"";
        sources.problems.add(place, what, cure);
    }
    let frame = match frame {
        0 => Frame::Confluent {
            subject: match subject {
                Some(subject) => subject.text,
                // As serializers name it for the values of a topic.
                None => format!("{}-value", topic.unwrap_or_default()),
            },
            register: register_is,
        },
        1 => Frame::SingleObject,
        _ => Frame::Raw,
    };
    // It was read a moment ago.
    let text = std::fs::read_to_string(path).ok()?;
    Some(Outgoing::new(schema?, text, frame))
}

/// The types of event that a projection tells apart.
pub(super) fn read_types(
    section: &Section<'_>,
    format: &Format,
    sources: &mut Sources<'_>,
) -> Option<Types> {
    let source = super::projections::source("type", section, sources);
    let listed = section.list("types", sources);
    let choices = [
        ("halt", UnknownType::Halt),
        ("filter", UnknownType::Filter),
        ("park", UnknownType::Park),
    ];
    let unknown = section.choice("unknown_type", &choices, sources);
    let types = match (source, format) {
        (Some(source), _) => Types::new(source, &[]),
        (None, Format::Debezium(_)) => Types::of_changes(),
        (None, _) => {
            for key in ["types", "unknown_type"] {
                if let Some(place) = section.place_of_setting(key, sources) {
                    let what = format!("`{key}` means nothing without `type`");
                    let cure =
                        "say where an event's type stands: type = \"header:ce_type\", or \"/type\"";
                    sources.problems.add(place, what, cure);
                }
            }
            return None;
        }
    };
    let known = match listed.is_empty() {
        true => types.known,
        false => listed.into_iter().map(|listed| listed.text).collect(),
    };
    Some(Types {
        known,
        unknown: unknown.unwrap_or_default(),
        ..types
    })
}

/// The last of the files, which may refer by name to what is in those before.
fn read_schema(files: Vec<Setting>, sources: &mut Sources<'_>) -> Option<Arc<Schema>> {
    let mut texts: Vec<(String, String)> = Vec::new();
    for Setting { text, place } in files {
        let path = sources.folder.join(text);
        let name = path.display().to_string();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                let what = format!("{name} cannot be read: {error}");
                let cure = "the path is relative to the configuration file";
                sources.problems.add(place, what, cure);
                return None;
            }
        };
        sources.problems.add_file(&name, &text);
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&text) {
            let line = text.lines().nth(error.line().saturating_sub(1));
            let start = line.map_or(0, |line| line.as_ptr() as usize - text.as_ptr() as usize);
            let at = File::new(&name, &text).place(start + error.column().saturating_sub(1));
            let what = format!("not JSON: {error}");
            sources
                .problems
                .add(at, what, "a schema is written in JSON");
            return None;
        }
        texts.push((name, text));
    }
    let ((name, text), references) = texts.split_last()?;
    let references: Vec<&str> = references.iter().map(|(_, text)| &**text).collect();
    match AvroSchema::with_types(&references, text).0 {
        Ok(schema) => Some(schema),
        Err(why) => {
            let cure = match references.is_empty() {
                true => {
                    "types that it refers to may stand in files before it: schema = [\"common.avsc\", \"entry.avsc\"]"
                }
                false => "",
            };
            let what = format!("not an Avro schema: {why}");
            sources.problems.add(Place::Name(name.clone()), what, cure);
            None
        }
    }
}

/// Where it says where a column's values stand.
pub(super) fn column_place(
    name: &str,
    section: &Section<'_>,
    sources: &Sources<'_>,
) -> Option<Place> {
    let DeValue::Table(columns) = section.value("columns")?.get_ref() else {
        return None;
    };
    let value = columns.get(name)?;
    let from = match value.get_ref() {
        DeValue::Table(table) => table.get("from"),
        _ => None,
    };
    Some(sources.file.place(from.unwrap_or(value).span().start))
}
