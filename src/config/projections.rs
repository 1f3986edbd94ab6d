//! `[projections.<name>]`: a projection in SQL.

use std::sync::Arc;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::columns::{Columns, read_columns};
use super::problems::Place;
use super::section::{File, Section, Setting, Sources, article};
use super::values::{self, Values};
use super::{Configured, SqlPlace};
use crate::engine::Class;
use crate::projection::{
    EntityType, First, Gate, OnFailure, Projection, Source, Start, TOPIC_CURE, Tombstones,
    is_identifier, is_topic,
};
use crate::sql_projection::{Emit, SqlProjection, SqlText, Statement, last_word, script_problem};

const KEYS: [&str; 29] = [
    "version",
    "topics",
    "entity",
    "entity_type",
    "sequence",
    "event_id",
    "gate",
    "gate_in",
    "first",
    "tombstones",
    "on_failure",
    "parked_entity_max",
    "parked_total_max",
    "failed_consecutive_max",
    "failed_share_max",
    "sqlstates",
    "dead_letter_topic",
    "history",
    "start",
    "begins_anywhere",
    "entity_rows",
    "setup",
    "seed",
    "search_path",
    "role",
    "writes_elsewhere",
    "columns",
    "apply",
    "emit",
];

pub(super) fn read(
    section: Section<'_>,
    values: Values,
    sources: &mut Sources<'_>,
) -> Vec<Configured> {
    let mut projections = Vec::new();
    for (name, value) in section.table.into_iter().flatten() {
        let name_place = sources.file.place(name.span().start);
        let path = format!("projections.{}", name.get_ref());
        match value.get_ref() {
            DeValue::Table(table) => {
                let section = Section::new(&path, Some(table), Some(name.span().start));
                projections.extend(read_one(
                    name.get_ref(),
                    name_place,
                    section,
                    values,
                    sources,
                ));
            }
            other => {
                let what = format!("`{path}` is {}, not a table", article(other));
                sources
                    .problems
                    .add(name_place, what, format!("write [{path}]"));
            }
        }
    }
    projections
}

fn read_one(
    name: &str,
    place: Place,
    mut section: Section<'_>,
    values: Values,
    sources: &mut Sources<'_>,
) -> Option<Configured> {
    let topics = section.list("topics", sources);
    if section.value("topics").is_none() && !section.misspells("topics") {
        let what = format!("`projections.{name}.topics` is missing");
        sources.problems.add(
            place.clone(),
            what,
            "name at least one topic: topics = [\"orders\"]",
        );
    }
    let mut format = values::read_format(&section, values, sources);
    values::read_key_schema(&mut format, &section, sources);
    let gate = read_gate(name, &place, &section, sources);
    let columns = read_columns(&section, sources);
    let types = values::read_types(&section, &format, sources);
    let entity_type = section.choice("entity_type", &EntityType::ALL, sources);
    let entity_type = entity_type.unwrap_or_default();
    let names = Names {
        columns: &columns,
        types: types.as_ref().map(|types| types.known.as_slice()),
        gate_in: section.value("gate_in").is_some(),
        entity_type,
    };
    let (mut applies, apply_places) = read_applies(name, &section, names, sources);
    let (mut emits, emit_places) = read_emits(name, &section, names, values, sources);
    let no_apply = section.value("apply").is_none() && !section.misspells("apply");
    if no_apply || is_empty_array(&section, "apply") {
        let what = format!("`projections.{name}` applies nothing");
        let cure = format!("add [[projections.{name}.apply]] with `sql`");
        sources.problems.add(place.clone(), what, cure);
    }
    let setup = sql_file("setup", &section, sources);
    let seed = sql_file("seed", &section, sources);
    if setup.text.is_none() || seed.text.is_none() {
        // Every table would be reported as missing.
        applies.clear();
        emits.clear();
    }
    let version = section.count("version", 1..=1_000_000, 1, sources);
    let sql = SqlProjection { applies, emits };
    let topic_names: Vec<&str> = topics.iter().map(|topic| &*topic.text).collect();
    let columns = columns.list;
    let mut projection = Projection::with_handler(
        name,
        u32::try_from(version).unwrap_or(1),
        &topic_names,
        gate.unwrap_or(Gate::None),
        Arc::new(sql.clone()),
    );
    let statements = sql.applies.iter().zip(&apply_places);
    projection.gate_in =
        super::gate_in::read(&section, statements, &sql.emits, entity_type, sources);
    projection.entity_type = entity_type;
    projection.entity = source("entity", &section, sources);
    projection.sequence = source("sequence", &section, sources);
    projection.event_id = source("event_id", &section, sources);
    projection.columns = columns;
    projection.format = format;
    projection.limits = values.limits;
    projection.types = types;
    projection.outgoing = sql
        .emits
        .iter()
        .filter_map(|emit| emit.outgoing.clone())
        .collect();
    if projection.entity.is_none() {
        let emits = sql.emits.iter().map(|emit| &emit.statement);
        let statements = sql.applies.iter().chain(emits);
        let places = apply_places.iter().chain(&emit_places);
        for (statement, place) in statements.zip(places) {
            latest_of_nothing(name, statement, place, sources);
        }
    }
    let tombstones = [
        ("refuse", Tombstones::Refuse),
        ("filter", Tombstones::Filter),
        ("event", Tombstones::Event),
    ];
    projection.tombstones = section.choice("tombstones", &tombstones, sources);
    projection.change_defaults();
    read_failure(&mut projection, &mut section, sources);
    projection.dead_letter_topic = section.string("dead_letter_topic", sources);
    projection.history = read_history(&section, sources);
    let starts = [("earliest", Start::Earliest), ("latest", Start::Latest)];
    projection.start = section
        .choice("start", &starts, sources)
        .unwrap_or_default();
    projection.setup = setup.text.unwrap_or_default();
    projection.seed = seed.text.unwrap_or_default();
    let yes_or_no = [("true", true), ("false", false)];
    projection.begins_anywhere = section
        .choice("begins_anywhere", &yes_or_no, sources)
        .unwrap_or_default();
    projection.writes_elsewhere = section
        .choice("writes_elsewhere", &yes_or_no, sources)
        .unwrap_or_default();
    for Setting { text, place } in section.list("entity_rows", sources) {
        match text.split_once('.') {
            Some((table, column)) if is_identifier(table) && is_identifier(column) => {
                let row = (table.to_owned(), column.to_owned());
                projection.entity_rows.push(row);
            }
            _ => {
                let what = format!("`{text}` does not name a table and its column");
                let cure = "write both in lower case, with a dot between: \"balance.account\"";
                sources.problems.add(place, what, cure);
            }
        }
    }
    if let Some(Setting { text, place }) = section.located("role", sources) {
        if is_identifier(&text) {
            projection.role = Some(text);
        } else {
            let what = format!("`{text}` is not a role's name");
            let cure = "write it in lower case, without quotes";
            sources.problems.add(place, what, cure);
        }
    }
    for schema in section.list("search_path", sources) {
        if is_identifier(&schema.text) {
            projection.search_path.push(schema.text);
        } else {
            let what = format!("`{}` is not a schema's name", schema.text);
            sources
                .problems
                .add(schema.place, what, "write it in lower case, without quotes");
        }
    }
    for problem in projection.problems() {
        let named = |listed: Vec<Setting>| {
            let mut listed = listed.into_iter().rev();
            let item = listed.find(|item| problem.what.contains(&format!("`{}`", item.text)));
            item.map(|item| item.place)
        };
        let item = match (problem.setting, &problem.column) {
            ("name", _) => Some(place.clone()),
            // That it is missing, or no list of strings, was reported.
            ("topics", _) if topics.is_empty() && !is_empty_array(&section, "topics") => continue,
            ("topics" | "types", _) => named(section.list(problem.setting, sources)),
            (_, Some(column)) => values::column_place(column, &section, sources),
            _ => None,
        };
        let at = item.unwrap_or_else(|| section.place_of(problem.setting, sources));
        sources.problems.add(at, problem.what, problem.cure);
    }
    let known: Vec<&str> = KEYS.iter().chain(&values::KEYS).copied().collect();
    section.finish(&known, sources);
    Some(Configured {
        projection,
        sql,
        place,
        applies: apply_places,
        emits: emit_places,
        setup_file: setup.name,
        seed_file: seed.name,
    })
}

/// Without entities `latest` would be the last event of the batch, wherever the batch was cut.
fn latest_of_nothing(
    projection: &str,
    statement: &Statement,
    place: &SqlPlace,
    sources: &mut Sources<'_>,
) {
    if statement.reads_latest() {
        let at = last_word(&place.sql, "latest").unwrap_or_default();
        let label = statement.label();
        let what = format!(
            "projection `{projection}`, {label}: `latest` has the last event of each entity, and there is no `entity`"
        );
        let cure = "say where the entity stands in a record, or read from `events`";
        sources.problems.add(place.at(at, sources.file), what, cure);
    }
}

/// An event is the latest of its entity or is not, depending on where the batch was cut. A table ends up
/// the same, since later batches write over it; a message is out.
fn latest_of_a_batch(
    projection: &str,
    statement: &Statement,
    place: &SqlPlace,
    sources: &mut Sources<'_>,
) {
    if statement.reads_latest() && !statement.is_per_event() {
        let at = last_word(&place.sql, "latest").unwrap_or_default();
        let label = statement.label();
        let what = format!(
            "projection `{projection}`, {label}: `latest` has the last event of each entity in the batch, so which messages leave would depend on how events are batched"
        );
        let cure = "read from `events`, or set `per_event = true` beside this statement";
        sources.problems.add(place.at(at, sources.file), what, cure);
    }
}

fn is_empty_array(section: &Section<'_>, key: &str) -> bool {
    let value = section.value(key).map(Spanned::get_ref);
    matches!(value, Some(DeValue::Array(items)) if items.is_empty())
}

fn read_gate(
    name: &str,
    place: &Place,
    section: &Section<'_>,
    sources: &mut Sources<'_>,
) -> Option<Gate> {
    const CURE: &str = "choose \"newest\" (events carry full state), \"next\" (events are deltas with dense numbers) or \"none\"";
    let first = section.located("first", sources);
    if !section.has("gate", sources) {
        if !section.misspells("gate") {
            let what = format!(
                "`projections.{name}.gate` is missing: tidegate does not guess how events are to be admitted"
            );
            sources.problems.add(place.clone(), what, CURE);
        }
        return None;
    }
    let gates = [
        ("newest", Gate::Newest),
        ("next", Gate::NEXT),
        ("none", Gate::None),
    ];
    let gate = section.choice("gate", &gates, sources)?;
    let Some(Setting { text, place }) = first else {
        return Some(gate);
    };
    let first = match text.parse() {
        _ if gate != Gate::NEXT => {
            let what = format!("`first` means nothing with gate `{gate}`");
            let cure = "remove it; only gate \"next\" expects a sequence";
            sources.problems.add(place, what, cure);
            return Some(gate);
        }
        Ok(first) => First::At(first),
        Err(_) if text == "any" => First::Any,
        Err(_) => {
            let what = format!("`first` cannot be `{text}`");
            let cure = "write a number, or \"any\" where history was cut";
            sources.problems.add(place, what, cure);
            First::At(1)
        }
    };
    Some(Gate::Next { first })
}

/// How long a history is kept: a whole number of hours or days, so that nobody has to count zeros.
fn read_history(section: &Section<'_>, sources: &mut Sources<'_>) -> Option<Duration> {
    const HOUR: u64 = 60 * 60;
    const YEARS_MAX: u64 = 10;
    let Setting { text, place } = section.located("history", sources)?;
    if text == "off" {
        return None;
    }
    let seconds = |text: &str| {
        let (number, hours) = match text.strip_suffix('d') {
            Some(days) => (days, 24),
            None => (text.strip_suffix('h')?, 1),
        };
        let seconds = number.parse::<u64>().ok()?.checked_mul(hours * HOUR)?;
        (HOUR..=YEARS_MAX * 365 * 24 * HOUR)
            .contains(&seconds)
            .then_some(seconds)
    };
    let history = seconds(&text).map(Duration::from_secs);
    if history.is_none() {
        let what = format!("`history` cannot be `{text}`");
        let cure = "write hours or days, such as \"48h\" or \"7d\", up to ten years, or \"off\"";
        sources.problems.add(place, what, cure);
    }
    history
}

pub(super) fn source(
    key: &str,
    section: &Section<'_>,
    sources: &mut Sources<'_>,
) -> Option<Source> {
    let Setting { text, place } = section.located(key, sources)?;
    match Source::parse(&text) {
        Ok(source) => Some(source),
        Err(why) => {
            let reason = format!("`{key}`: {why}");
            sources.problems.add_reason(place, &reason);
            // Something, so that its absence is not reported too.
            Some(Source::Key)
        }
    }
}

/// A file of SQL, if one was named; no text if there is one that cannot be run.
struct SqlFile {
    name: Option<String>,
    text: Option<String>,
}

fn sql_file(key: &str, section: &Section<'_>, sources: &mut Sources<'_>) -> SqlFile {
    let Some(Setting { text, place }) = section.located(key, sources) else {
        return SqlFile {
            name: None,
            text: Some(String::new()),
        };
    };
    let path = sources.folder.join(&text);
    let name = path.display().to_string();
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let what = format!("`{key}`: {name} cannot be read: {error}");
        let cure = "the path is relative to the configuration file";
        sources.problems.add(place, what, cure);
    });
    if let Ok(text) = &text {
        sources.problems.add_file(&name, text);
        if let Some((why, position)) = script_problem(text) {
            let at = File::new(&name, text).place_of_char(position);
            sources.problems.add_reason(at, &format!("`{key}` {why}"));
            return SqlFile {
                name: Some(name),
                text: None,
            };
        }
    }
    SqlFile {
        name: Some(name),
        text: text.ok(),
    }
}

/// What a statement can name.
#[derive(Clone, Copy)]
struct Names<'n> {
    columns: &'n Columns,
    /// Types of event, if they are told apart.
    types: Option<&'n [String]>,
    /// Whether rows carry the gate, so that statements name what they carried before.
    gate_in: bool,
    /// Which type `_entity` is of.
    entity_type: EntityType,
}

/// What becomes of records that cannot be applied.
fn read_failure(projection: &mut Projection, section: &mut Section<'_>, sources: &mut Sources<'_>) {
    let choices = [("park", OnFailure::Park), ("halt", OnFailure::Halt)];
    projection.on_failure = section
        .choice("on_failure", &choices, sources)
        .unwrap_or_default();
    let parking = &mut projection.parking;
    let mut count = |key: &str, max: usize, limit: &mut u32| {
        let found = section.count(key, 0..=max, *limit as usize, sources);
        *limit = u32::try_from(found).unwrap_or(*limit);
    };
    count("parked_entity_max", 1_000_000, &mut parking.entity_max);
    count("parked_total_max", 10_000_000, &mut parking.total_max);
    count(
        "failed_consecutive_max",
        1_000_000,
        &mut parking.consecutive_max,
    );
    count("failed_share_max", 100, &mut parking.share_max);
    for (code, class, place) in section.strings("sqlstates", sources) {
        let class = match &*class {
            "transient" => Class::Transient,
            "terminal" => Class::Terminal,
            "halt" => Class::Halt,
            other => {
                let what = format!("SQLSTATE `{code}` cannot be `{other}`");
                let cure = "write \"transient\" (try again), \"terminal\" (the record is at fault) or \"halt\"";
                sources.problems.add(place, what, cure);
                continue;
            }
        };
        let is_code = code.len() == 5
            && code
                .bytes()
                .all(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
        if is_code {
            projection.sqlstates.insert(code, class);
        } else {
            let what = format!("`{code}` is not an SQLSTATE");
            sources
                .problems
                .add(place, what, "write its five characters, such as \"23514\"");
        }
    }
}

fn read_applies(
    projection: &str,
    section: &Section<'_>,
    names: Names<'_>,
    sources: &mut Sources<'_>,
) -> (Vec<Statement>, Vec<SqlPlace>) {
    let mut read = (Vec::new(), Vec::new());
    for (index, table) in section.tables("apply", sources).into_iter().enumerate() {
        let label = format!("apply {}", index + 1);
        if let Some((statement, place)) = read_statement(projection, label, &table, names, sources)
        {
            read.0.push(statement);
            read.1.push(place);
        }
        table.finish(&["sql", "per_event", "types"], sources);
    }
    read
}

fn read_emits(
    projection: &str,
    section: &Section<'_>,
    names: Names<'_>,
    values: Values,
    sources: &mut Sources<'_>,
) -> (Vec<Emit>, Vec<SqlPlace>) {
    let mut emits: Vec<Emit> = Vec::new();
    let mut places = Vec::new();
    for table in section.tables("emit", sources) {
        let cure = "name the topic that the messages go to";
        let topic = table.required("topic", cure, sources);
        let name = table.located("name", sources);
        let topic_name = topic.as_ref().map(|topic| topic.text.clone());
        let outgoing = values::read_outgoing(&table, topic_name.as_deref(), values, sources);
        let known = ["name", "topic", "sql", "per_event", "types"];
        let known: Vec<&str> = known.iter().chain(&values::EMIT_KEYS).copied().collect();
        table.finish(&known, sources);
        if let Some(Setting { text, place }) = &topic
            && !is_topic(text)
        {
            let what = format!("`{text}` cannot name a topic");
            sources.problems.add(place.clone(), what, TOPIC_CURE);
        }
        // Without a topic its statement is read all the same.
        let topic = topic.map_or(String::new(), |topic| topic.text);
        let (name, place) = match name {
            Some(Setting { text, place }) => (text, place),
            None => (topic.clone(), table.place(sources)),
        };
        if !name.is_empty() && emits.iter().any(|emit| emit.name == name) {
            let what = format!("two emits are named `{name}`");
            let cure = "give one another `name`: message ids are made from it";
            sources.problems.add(place, what, cure);
        }
        let label = format!("emit {name}");
        if let Some((statement, place)) = read_statement(projection, label, &table, names, sources)
        {
            latest_of_a_batch(projection, &statement, &place, sources);
            emits.push(Emit {
                name,
                topic,
                statement,
                outgoing: outgoing.map(Arc::new),
            });
            places.push(place);
        }
    }
    (emits, places)
}

fn read_statement(
    projection: &str,
    label: String,
    table: &Section<'_>,
    Names {
        columns,
        types,
        gate_in,
        entity_type,
    }: Names<'_>,
    sources: &mut Sources<'_>,
) -> Option<(Statement, SqlPlace)> {
    let cure = "add `sql`, one statement that reads `events`";
    let sql = table.required("sql", cure, sources)?.text;
    let value = table.value("sql")?;
    let per_event = table.choice("per_event", &[("true", true), ("false", false)], sources);
    let place = SqlPlace {
        text_start: text_start(sources.file.text, value.span(), &sql),
        place: sources.file.place(value.span().start),
        sql: sql.clone(),
    };
    let text = SqlText {
        sql,
        label: label.clone(),
        per_event: per_event.unwrap_or(false),
        types: seen_types(table, types, sources),
    };
    match Statement::new(text, &columns.list, gate_in, entity_type) {
        Ok(statement) => {
            let named = |name: &String| last_word(&place.sql, name).is_some();
            let wrong = !columns.readable || columns.wrong.iter().any(named);
            (!wrong).then_some((statement, place))
        }
        Err((why, position)) => {
            let at = place.at(position, sources.file);
            let reason = format!("projection `{projection}`, {label}: {why}");
            sources.problems.add_reason(at, &reason);
            None
        }
    }
}

/// The types of event that a statement sees; none for all.
fn seen_types(
    table: &Section<'_>,
    known: Option<&[String]>,
    sources: &mut Sources<'_>,
) -> Option<Vec<u16>> {
    table.value("types")?;
    let mut seen = Vec::new();
    for Setting { text, place } in table.list("types", sources) {
        let at = known.and_then(|known| known.iter().position(|known| *known == text));
        match at.and_then(|at| u16::try_from(at).ok()) {
            Some(at) => seen.push(at),
            None => {
                let what = format!("`{text}` is none of the types that the projection knows");
                let cure = match known {
                    Some(known) => format!("known are {}", known.join(", ")),
                    None => {
                        "say where an event's type stands, and which there are: `type`, `types`"
                            .to_owned()
                    }
                };
                sources.problems.add(place, what, cure);
            }
        }
    }
    Some(seen)
}

/// Where a string's first character stands in the file, if the file has it without escapes.
fn text_start(file: &str, span: std::ops::Range<usize>, value: &str) -> Option<usize> {
    let literal = file.get(span.clone())?;
    let inside = literal.find(value)?;
    Some(span.start + inside)
}

impl SqlPlace {
    /// The place of a character of the statement.
    pub(crate) fn at(&self, position: usize, file: &File<'_>) -> Place {
        let byte = self
            .sql
            .char_indices()
            .nth(position)
            .map_or(self.sql.len(), |(byte, _)| byte);
        match self.text_start {
            Some(start) => file.place(start + byte),
            None => self.place.clone(),
        }
    }
}
