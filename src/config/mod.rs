//! Configuration: defaults < TOML file < environment < flags.
//!
//! Every problem is reported at once, with its place and a cure. The file is read with the place of
//! each value, which a derived deserializer would lose: a wrong column is reported at its line.

mod columns;
mod gate_in;
mod http;
mod membership;
mod memory;
mod problems;
mod projections;
mod section;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

pub(crate) use http::Http;
pub(crate) use memory::{Memory, Shares};
pub(crate) use problems::{Place, Problems};
pub(crate) use section::{File, Shown};
use section::{Section, Setting, Sources};

use crate::engine::redact::{Secrets, is_secret, passwords_of_url};
use crate::kafka::{Connection, GroupProtocol, TOKEN_ENDPOINT, refusal, reserved};
use crate::projection::{Projection, ValueLimits, is_near, is_topic};
use crate::registry::{self, Credentials};
use crate::sql_projection::SqlProjection;
use crate::store::{Database, Timeouts};
use crate::types::HeaderNames;

/// The prefix of environment variables: `TIDEGATE__KAFKA__BOOTSTRAP_SERVERS` is `kafka.bootstrap_servers`.
const ENVIRONMENT_PREFIX: &str = "TIDEGATE__";

/// All that is configured.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) kafka: Connection,
    pub(crate) group_prefix: String,
    pub(crate) group_protocol: GroupProtocol,
    pub(crate) group_instance_id: Option<String>,
    pub(crate) postgres_url: String,
    pub(crate) timeouts: Timeouts,
    /// A pooler in transaction mode is between us and Postgres.
    pub(crate) pooled: bool,
    pub(crate) apply: Apply,
    pub(crate) rebuild: Rebuild,
    pub(crate) relay: Relay,
    pub(crate) memory: Memory,
    pub(crate) schema_registry: Option<registry::Settings>,
    /// What the values of one record may cost.
    pub(crate) values: ValueLimits,
    /// Where questions about this process are answered, if anywhere.
    pub(crate) http: Option<Http>,
    /// How long the bytes of resolved dead letters are kept.
    pub(crate) keep_letters: Duration,
    /// How long sent messages are kept.
    pub(crate) keep_messages: Duration,
    pub(crate) projections: Vec<Configured>,
}

impl Config {
    /// What no text that is stored or shown may repeat.
    pub(crate) fn secrets(&self) -> Secrets {
        let options = self.kafka.options.iter();
        let options = options
            .filter(|(key, _)| is_secret(key))
            .map(|(_, value)| value.clone());
        let endpoint = self.kafka.options.get(TOKEN_ENDPOINT);
        let endpoint = endpoint.iter().flat_map(|url| passwords_of_url(url));
        let password = passwords_of_url(&self.postgres_url);
        let registry = self
            .schema_registry
            .as_ref()
            .map(|registry| &registry.credentials);
        let registry = match registry {
            Some(Credentials::Basic { password, .. }) => Some(password.clone()),
            Some(Credentials::Bearer(token)) => Some(token.clone()),
            Some(Credentials::None) | None => None,
        };
        let admin = self.http.iter().filter_map(|http| http.admin_token.clone());
        let options = options.chain(endpoint);
        Secrets::new(options.chain(password).chain(registry).chain(admin))
    }
}

/// How batches are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Apply {
    pub(crate) writers: usize,
    pub(crate) batch_records_max: usize,
    pub(crate) batch_linger: Duration,
    pub(crate) drain_max: Duration,
    /// Whether a batch's COMMIT waits for the disk.
    pub(crate) synchronous_commit: bool,
}

/// How a read model is built beside the live one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rebuild {
    /// Whether this process works on builds that were left to the service.
    pub(crate) enabled: bool,
    pub(crate) writers: usize,
    /// Bytes of what all writers may have taken in and not written.
    pub(crate) memory_max: usize,
}

/// Whether and how this process sends the outbox.
#[derive(Clone, Debug)]
pub(crate) struct Relay {
    pub(crate) enabled: bool,
    pub(crate) lease: Duration,
    /// So often a message is tried that fails for its topic.
    pub(crate) attempts_max: u32,
    pub(crate) headers: HeaderNames,
}

/// How to reach Kafka, and how to be a member of groups.
#[derive(Debug)]
struct Kafka {
    connection: Connection,
    group_prefix: String,
    group_protocol: GroupProtocol,
    group_instance_id: Option<String>,
}

/// A projection from the file, with the places of its statements.
#[derive(Debug)]
pub(crate) struct Configured {
    pub(crate) projection: Projection,
    pub(crate) sql: SqlProjection,
    /// Where the projection begins, and where each apply and each emit stands.
    pub(crate) place: Place,
    pub(crate) applies: Vec<SqlPlace>,
    pub(crate) emits: Vec<SqlPlace>,
    /// The files of `setup` and `seed`.
    pub(crate) setup_file: Option<String>,
    pub(crate) seed_file: Option<String>,
}

/// Where a statement stands in the file.
#[derive(Clone, Debug)]
pub(crate) struct SqlPlace {
    pub(crate) place: Place,
    /// Byte offset of the statement's first character, if the text in the file is the statement itself.
    pub(crate) text_start: Option<usize>,
    pub(crate) sql: String,
}

/// What could be read, and what is wrong with it.
///
/// As long as anything is wrong it is no [`Config`]. `check` goes on from here, so that it can report
/// what the database finds together with what was found before.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) problems: Problems,
    /// The configuration file's text.
    pub(crate) text: String,
    /// Every setting as it was read.
    pub(crate) shown: Vec<Shown>,
    kafka: Option<Kafka>,
    pub(crate) postgres: Option<(String, Timeouts, bool)>,
    apply: Option<Apply>,
    rebuild: Option<Rebuild>,
    relay: Option<Relay>,
    memory: Option<Memory>,
    pub(crate) schema_registry: Option<registry::Settings>,
    values: ValueLimits,
    http: Option<Http>,
    keep_letters: Duration,
    keep_messages: Duration,
    /// With those statements that no problem makes pointless to check.
    pub(crate) projections: Vec<Configured>,
}

impl Draft {
    /// # Errors
    /// All problems at once.
    pub(crate) fn into_config(self) -> Result<Config, Error> {
        let of_process = self
            .apply
            .zip(self.rebuild)
            .zip(self.relay)
            .zip(self.memory);
        match (self.kafka, self.postgres, of_process) {
            (Some(kafka), Some(postgres), Some((((apply, rebuild), relay), memory)))
                if self.problems.is_empty() =>
            {
                let (postgres_url, timeouts, pooled) = postgres;
                Ok(Config {
                    kafka: kafka.connection,
                    group_prefix: kafka.group_prefix,
                    group_protocol: kafka.group_protocol,
                    group_instance_id: kafka.group_instance_id,
                    postgres_url,
                    timeouts,
                    pooled,
                    apply,
                    rebuild,
                    relay,
                    memory,
                    schema_registry: self.schema_registry,
                    values: self.values,
                    http: self.http,
                    keep_letters: self.keep_letters,
                    keep_messages: self.keep_messages,
                    projections: self.projections,
                })
            }
            _ => Err(Error::Problems(self.problems)),
        }
    }
}

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error("{0}")]
    Problems(Problems),
}

/// Reads the file and the environment.
///
/// # Errors
/// All problems at once.
pub(crate) fn load(
    path: &Path,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<Config, Error> {
    draft(path, environment).into_config()
}

/// Reads what can be read of the file and the environment.
pub(crate) fn draft(path: &Path, environment: impl Iterator<Item = (String, String)>) -> Draft {
    let name = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let folder = path.parent().unwrap_or(Path::new("."));
            parse(&name, &text, folder, environment)
        }
        Err(error) => {
            let mut draft = Draft::default();
            draft.problems.add(
                Place::Name(name),
                format!("the configuration file cannot be read: {error}"),
                "name an existing file with `--config`; `examples/ledger/tidegate.toml` is one",
            );
            draft
        }
    }
}

/// Mistakes of syntax that are told: an array that is not closed makes one of every line behind it.
const SYNTAX_MAX: usize = 3;

/// Reads configuration from text; relative paths in it are relative to `folder`.
pub(crate) fn parse(
    name: &str,
    text: &str,
    folder: &Path,
    environment: impl Iterator<Item = (String, String)>,
) -> Draft {
    let file = File::new(name, text);
    let mut draft = Draft {
        text: text.to_owned(),
        ..Draft::default()
    };
    draft.problems.add_file(name, text);
    let (root, mut syntax) = DeTable::parse_recoverable(text);
    syntax.sort_by_key(|error| error.span().map(|span| span.start));
    // What is far behind the first mistake is misread by it.
    for error in syntax.into_iter().take(SYNTAX_MAX) {
        let place = error
            .span()
            .map_or_else(|| file.whole(), |span| file.place(span.start));
        draft.problems.add(
            place,
            error.message().to_owned(),
            "see https://toml.io for the syntax",
        );
    }
    if !draft.problems.is_empty() {
        return draft;
    }
    let mut variables: BTreeMap<String, String> = environment
        .filter_map(|(name, value)| {
            let path = name.strip_prefix(ENVIRONMENT_PREFIX)?;
            Some((path.to_lowercase().replace("__", "."), value))
        })
        .collect();
    let mut problems = std::mem::take(&mut draft.problems);
    read_files(&mut variables, &mut problems);
    let mut sources = Sources {
        file: &file,
        folder,
        variables,
        nameable: BTreeSet::new(),
        shown: Vec::new(),
        problems: &mut problems,
    };
    read(root.get_ref(), &mut draft, &mut sources);
    for name in sources.variables.keys() {
        let near = sources.nameable.iter().filter(|known| is_near(name, known));
        let near = near.min_by_key(|known| strsim::damerau_levenshtein(known, name));
        let cure = match near {
            Some(near) => format!("did you mean {}?", section::variable(near)),
            None => "unset it, or correct its name: TIDEGATE__<SECTION>__<KEY>".to_owned(),
        };
        sources.problems.add(
            Place::Name(format!("environment variable {}", section::variable(name))),
            format!("`{name}` is not a setting"),
            cure,
        );
    }
    draft.shown = sources.shown;
    draft.problems = problems;
    draft
}

/// Takes values from the files that variables ending in `__FILE` name: secrets are often handed over so.
fn read_files(variables: &mut BTreeMap<String, String>, problems: &mut Problems) {
    let named: Vec<String> = variables
        .keys()
        .filter(|path| path.ends_with(".file"))
        .cloned()
        .collect();
    for path in named {
        let (Some(file), Some(setting)) = (variables.remove(&path), path.strip_suffix(".file"))
        else {
            continue;
        };
        let place = Place::Name(format!("environment variable {}", section::variable(&path)));
        if variables.contains_key(setting) {
            let what = format!(
                "`{setting}` is set by a file and by {}",
                section::variable(setting)
            );
            problems.add(place, what, "unset one of them");
            continue;
        }
        match std::fs::read_to_string(&file) {
            // Editors end a file with a newline that is no part of a password.
            Ok(text) => {
                variables.insert(
                    setting.to_owned(),
                    text.trim_end_matches(['\r', '\n']).to_owned(),
                );
            }
            Err(error) => {
                let what = format!("{file} cannot be read: {error}");
                problems.add(
                    place,
                    what,
                    "name a file that holds the setting's value and nothing else",
                );
            }
        }
    }
}

fn read(root: &DeTable<'_>, draft: &mut Draft, sources: &mut Sources<'_>) {
    let mut top = Section::new("", Some(root), None);
    let kafka = top.table("kafka", sources);
    let postgres = top.table("postgres", sources);
    let apply = top.table("apply", sources);
    let rebuild = top.table("rebuild", sources);
    let relay = top.table("relay", sources);
    let memory = top.table("memory", sources);
    let outbox = top.table("outbox", sources);
    let dead_letters = top.table("dead_letters", sources);
    let schema_registry = top.table("schema_registry", sources);
    let decode = top.table("decode", sources);
    let http = top.table("http", sources);
    let projections = top.table("projections", sources);
    top.finish(&[], sources);

    let drain_max_place = apply.place_of_setting("drain_max", sources);
    let apply = read_apply(apply, sources);
    let drain = (apply.drain_max, drain_max_place);
    draft.kafka = read_kafka(kafka, drain, sources);
    draft.postgres = read_postgres(postgres, sources);
    draft.apply = Some(apply);
    draft.rebuild = Some(read_rebuild(rebuild, sources));
    draft.relay = Some(read_relay(relay, sources));
    draft.memory = Some(memory::read(memory, sources));
    draft.keep_messages = read_outbox(outbox, sources);
    draft.http = http::read(http, sources);
    draft.keep_letters = read_dead_letters(dead_letters, sources);
    draft.schema_registry = values::read_registry(schema_registry, sources);
    draft.values = values::read_limits(decode, sources);
    let values = values::Values {
        limits: draft.values,
        has_registry: draft.schema_registry.is_some(),
    };
    draft.projections = projections::read(projections, values, sources);
}

fn read_kafka(
    mut section: Section<'_>,
    drain: (Duration, Option<Place>),
    sources: &mut Sources<'_>,
) -> Option<Kafka> {
    let bootstrap_servers = section.required(
        "bootstrap_servers",
        "set it to `host:port` of a broker, or set TIDEGATE__KAFKA__BOOTSTRAP_SERVERS",
        sources,
    );
    let group_prefix = section.string("group_prefix", sources);
    let group_protocol = section.choice(
        "group_protocol",
        &[
            ("classic", GroupProtocol::Classic),
            ("eager", GroupProtocol::Eager),
            ("consumer", GroupProtocol::Consumer),
        ],
        sources,
    );
    let group_instance_id = section.located("group_instance_id", sources);
    if let Some(Setting { text, place }) = &group_instance_id
        // Kafka allows what it allows in topics.
        && !is_topic(text)
    {
        let what = format!("`kafka.group_instance_id` cannot be `{text}`");
        let cure = "write up to 249 letters, digits, `.`, `_` or `-`, other ones in each process";
        sources.problems.add(place.clone(), what, cure);
    }
    let group_prefix =
        group_prefix.unwrap_or_else(|| section.default("group_prefix", "tidegate", sources));
    let group_protocol = group_protocol.unwrap_or_else(|| {
        section.default("group_protocol", "classic", sources);
        GroupProtocol::default()
    });
    let mut options = Vec::new();
    for (key, value, place) in section.strings("options", sources) {
        if let Some(cure) = reserved(&key) {
            let what = format!("`{key}` is managed by tidegate");
            sources.problems.add(place, what, cure);
        } else if let Some(why) = refusal(&key, &value) {
            let what = format!("librdkafka does not take `{key}`: {why}");
            sources.problems.add(place, what, "");
        } else {
            options.push((key, value, place));
        }
    }
    membership::check(&options, group_protocol, drain, sources.problems);
    let options = options.into_iter().map(|(key, value, _)| (key, value));
    section.finish(
        &[
            "bootstrap_servers",
            "group_prefix",
            "group_protocol",
            "group_instance_id",
            "options",
        ],
        sources,
    );
    let connection = Connection {
        bootstrap_servers: bootstrap_servers?.text,
        options: options.collect(),
    };
    Some(Kafka {
        connection,
        group_prefix,
        group_protocol,
        group_instance_id: group_instance_id.map(|setting| setting.text),
    })
}

fn read_postgres(
    section: Section<'_>,
    sources: &mut Sources<'_>,
) -> Option<(String, Timeouts, bool)> {
    const CURE: &str = "set it to postgres://user@host/database, or set TIDEGATE__POSTGRES__URL";
    let url = section.required("url", CURE, sources);
    let pooler = section.choice("pooler", &[("none", false), ("transaction", true)], sources);
    let pooled = pooler.unwrap_or_else(|| {
        section.default("pooler", "none", sources);
        false
    });
    let statement = section.duration(
        "statement_timeout",
        Duration::from_millis(1),
        Duration::from_secs(30),
        sources,
    );
    let lock = section.duration(
        "lock_timeout",
        Duration::from_millis(1),
        Duration::from_secs(10),
        sources,
    );
    let idle_in_transaction = section.duration(
        "idle_in_transaction_timeout",
        Duration::from_millis(1),
        Duration::from_secs(10),
        sources,
    );
    section.finish(
        &[
            "url",
            "pooler",
            "statement_timeout",
            "lock_timeout",
            "idle_in_transaction_timeout",
        ],
        sources,
    );
    let timeouts = Timeouts {
        statement,
        lock,
        idle_in_transaction,
    };
    let Setting { text: url, place } = url?;
    if let Err(error) = Database::new(&url, timeouts) {
        // Neither the error nor the place shows the URL, which may hold a password.
        let place = match place {
            Place::Line { .. } => section.place(sources),
            place @ Place::Name(_) => place,
        };
        let what = format!("`postgres.url` cannot be read: {error}");
        sources.problems.add(place, what, CURE);
        return None;
    }
    Some((url, timeouts, pooled))
}

fn read_apply(section: Section<'_>, sources: &mut Sources<'_>) -> Apply {
    let apply = Apply {
        writers: section.count("writers", 1..=64, 1, sources),
        batch_records_max: section.count("batch_records_max", 1..=100_000, 10_000, sources),
        batch_linger: section.duration(
            "batch_linger",
            Duration::ZERO,
            Duration::from_millis(10),
            sources,
        ),
        drain_max: section.duration(
            "drain_max",
            Duration::ZERO,
            Duration::from_secs(10),
            sources,
        ),
        synchronous_commit: section.flag("synchronous_commit", true, sources),
    };
    section.finish(
        &[
            "writers",
            "batch_records_max",
            "batch_linger",
            "drain_max",
            "synchronous_commit",
        ],
        sources,
    );
    apply
}

fn read_rebuild(section: Section<'_>, sources: &mut Sources<'_>) -> Rebuild {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let megabytes = section.count("memory_mb_max", 1..=1_000_000, 512, sources);
    let rebuild = Rebuild {
        enabled: section.flag("enabled", true, sources),
        writers: section.count("writers", 1..=64, cores.min(4), sources),
        memory_max: megabytes.saturating_mul(1 << 20),
    };
    section.finish(&["enabled", "writers", "memory_mb_max"], sources);
    rebuild
}

fn read_relay(mut section: Section<'_>, sources: &mut Sources<'_>) -> Relay {
    let relay = Relay {
        enabled: section.flag("enabled", true, sources),
        lease: section.duration(
            "lease",
            Duration::from_millis(100),
            Duration::from_secs(10),
            sources,
        ),
        attempts_max: {
            let attempts = section.count("attempts_max", 1..=1_000, 20, sources);
            u32::try_from(attempts).unwrap_or(u32::MAX)
        },
        headers: read_headers(section.table("headers", sources), sources),
    };
    section.finish(&["enabled", "lease", "attempts_max"], sources);
    relay
}

/// The names of the relay's headers; an empty one leaves its header out.
fn read_headers(section: Section<'_>, sources: &mut Sources<'_>) -> HeaderNames {
    let mut names = HeaderNames::default();
    let mut taken: Vec<String> = Vec::new();
    for (key, name) in [
        ("specversion", &mut names.specversion),
        ("id", &mut names.id),
        ("source", &mut names.source),
        ("type", &mut names.kind),
        ("time", &mut names.time),
        ("sequence", &mut names.sequence),
    ] {
        let place = section.place_of(key, sources);
        if let Some(text) = section.string(key, sources) {
            *name = (!text.is_empty()).then_some(text);
        } else {
            section.default(key, name.as_deref().unwrap_or_default(), sources);
        }
        if let Some(name) = name {
            if taken.contains(name) {
                let what = format!("`relay.headers` has the name `{name}` twice");
                let cure = "give each header a name of its own, or \"\" to leave it out";
                sources.problems.add(place, what, cure);
            }
            taken.push(name.clone());
        }
    }
    let known = ["specversion", "id", "source", "type", "time", "sequence"];
    section.finish(&known, sources);
    names
}

fn read_outbox(section: Section<'_>, sources: &mut Sources<'_>) -> Duration {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let keep = section.long_duration("keep", Duration::from_secs(1), DAY, sources);
    section.finish(&["keep"], sources);
    keep
}

fn read_dead_letters(section: Section<'_>, sources: &mut Sources<'_>) -> Duration {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let days = section.count("keep_days", 1..=36_500, 30, sources);
    section.finish(&["keep_days"], sources);
    DAY * u32::try_from(days).unwrap_or(u32::MAX)
}

/// A value as text, for settings that take strings.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(value) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
