//! `[projections.<name>]`: a projection in SQL.

use std::sync::Arc;

use toml::Spanned;
use toml::de::DeValue;

use super::problems::Place;
use super::section::{Section, Setting, Sources, article};
use super::{Configured, SqlPlace};
use crate::projection::{
    Column, ColumnType, First, Gate, Projection, Source, Start, Tombstones, is_identifier,
};
use crate::sql_projection::{Emit, SqlProjection, SqlText, Statement, column_problem};

const KEYS: [&str; 17] = [
    "version",
    "topics",
    "format",
    "entity",
    "sequence",
    "event_id",
    "gate",
    "first",
    "tombstones",
    "start",
    "setup",
    "seed",
    "search_path",
    "columns",
    "apply",
    "emit",
    "per_event",
];

pub(super) fn read(section: Section<'_>, sources: &mut Sources<'_>) -> Vec<Configured> {
    let mut projections = Vec::new();
    for (name, value) in section.table.into_iter().flatten() {
        let name_place = sources.file.place(name.span().start);
        let path = format!("projections.{}", name.get_ref());
        match value.get_ref() {
            DeValue::Table(table) => {
                let section = Section::new(&path, Some(table), Some(name.span().start));
                projections.extend(read_one(name.get_ref(), name_place, section, sources));
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
    section: Section<'_>,
    sources: &mut Sources<'_>,
) -> Option<Configured> {
    let topics = section.list("topics", sources);
    if section.value("topics").is_none() {
        let what = format!("`projections.{name}.topics` is missing");
        sources.problems.add(
            place.clone(),
            what,
            "name at least one topic: topics = [\"orders\"]",
        );
    }
    section.choice("format", &[("json", ())], sources);
    let gate = read_gate(name, &place, &section, sources);
    let columns = read_columns(&section, sources);
    let (applies, apply_places) = read_applies(&section, &columns, sources);
    let (emits, emit_places) = read_emits(&section, &columns, sources);
    if applies.is_empty() && section.value("apply").is_none() {
        let what = format!("`projections.{name}` applies nothing");
        let cure = format!("add [[projections.{name}.apply]] with `sql`");
        sources.problems.add(place.clone(), what, cure);
    }
    let version = section.count("version", 1..=1_000_000, 1, sources);
    let sql = SqlProjection { applies, emits };
    let topics: Vec<&str> = topics.iter().map(|topic| &*topic.text).collect();
    let mut projection = Projection::with_handler(
        name,
        u32::try_from(version).unwrap_or(1),
        &topics,
        gate.unwrap_or(Gate::None),
        Arc::new(sql.clone()),
    );
    projection.entity = source("entity", &section, sources);
    projection.sequence = source("sequence", &section, sources);
    projection.event_id = source("event_id", &section, sources);
    projection.columns = columns;
    let tombstones = [
        ("refuse", Tombstones::Refuse),
        ("filter", Tombstones::Filter),
    ];
    projection.tombstones = section
        .choice("tombstones", &tombstones, sources)
        .unwrap_or_default();
    let starts = [("earliest", Start::Earliest), ("latest", Start::Latest)];
    projection.start = section
        .choice("start", &starts, sources)
        .unwrap_or_default();
    projection.setup = sql_file("setup", &section, sources);
    projection.seed = sql_file("seed", &section, sources);
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
    if gate.is_some() && !topics.is_empty() {
        for problem in projection.problems() {
            sources.problems.add(place.clone(), problem, "");
        }
    }
    section.finish(&KEYS, sources);
    Some(Configured {
        projection,
        sql,
        place,
        applies: apply_places,
        emits: emit_places,
    })
}

fn read_gate(
    name: &str,
    place: &Place,
    section: &Section<'_>,
    sources: &mut Sources<'_>,
) -> Option<Gate> {
    const CURE: &str = "choose \"newest\" (events carry full state), \"next\" (events are deltas with dense numbers) or \"none\"";
    let first = match section.located("first", sources) {
        None => First::At(1),
        Some(Setting { text, .. }) if text == "any" => First::Any,
        Some(Setting { text, place }) => match text.parse() {
            Ok(first) => First::At(first),
            Err(_) => {
                let what = format!("`first` cannot be `{text}`");
                sources.problems.add(
                    place,
                    what,
                    "write a number, or \"any\" where history was cut",
                );
                First::At(1)
            }
        },
    };
    if section.value("gate").is_none() {
        let what = format!(
            "`projections.{name}.gate` is missing: tidegate does not guess how events are to be admitted"
        );
        sources.problems.add(place.clone(), what, CURE);
        return None;
    }
    let gates = [
        ("newest", Gate::Newest),
        ("next", Gate::Next { first }),
        ("none", Gate::None),
    ];
    section.choice("gate", &gates, sources)
}

fn source(key: &str, section: &Section<'_>, sources: &mut Sources<'_>) -> Option<Source> {
    let Setting { text, place } = section.located(key, sources)?;
    match Source::parse(&text) {
        Ok(source) => Some(source),
        Err(why) => {
            sources.problems.add(place, format!("`{key}`: {why}"), "");
            // Something, so that its absence is not reported too.
            Some(Source::Key)
        }
    }
}

fn sql_file(key: &str, section: &Section<'_>, sources: &mut Sources<'_>) -> String {
    let Some(Setting { text, place }) = section.located(key, sources) else {
        return String::new();
    };
    let path = sources.folder.join(&text);
    std::fs::read_to_string(&path).unwrap_or_else(|error| {
        let what = format!("`{key}`: {} cannot be read: {error}", path.display());
        sources.problems.add(
            place,
            what,
            "the path is relative to the configuration file",
        );
        String::new()
    })
}

fn read_columns(section: &Section<'_>, sources: &mut Sources<'_>) -> Vec<Column> {
    let mut columns = Vec::new();
    let Some(value) = section.value("columns") else {
        return columns;
    };
    let DeValue::Table(table) = value.get_ref() else {
        let place = sources.file.place(value.span().start);
        let what = format!("`columns` is {}, not a table", article(value.get_ref()));
        sources.problems.add(
            place,
            what,
            "write columns = { account = \"text\", amount = \"bigint\" }",
        );
        return columns;
    };
    for (name, value) in table {
        let place = sources.file.place(name.span().start);
        if let Some(why) = column_problem(name.get_ref()) {
            sources
                .problems
                .add(place, format!("column `{}`: {why}", name.get_ref()), "");
            continue;
        }
        columns.extend(read_column(name.get_ref(), value, sources));
    }
    columns
}

fn read_column(
    name: &str,
    value: &Spanned<DeValue<'_>>,
    sources: &mut Sources<'_>,
) -> Option<Column> {
    let here = sources.file.place(value.span().start);
    let (type_name, type_place, pointer, nullable) = match value.get_ref() {
        DeValue::String(text) => (text.clone().into_owned(), here, None, false),
        DeValue::Table(table) => {
            let section = Section::new(
                &format!("columns.{name}"),
                Some(table),
                Some(value.span().start),
            );
            let column_type = section.located("type", sources);
            let from = source("from", &section, sources);
            let nullable = section.choice("nullable", &[("true", true), ("false", false)], sources);
            section.finish(&["type", "from", "nullable"], sources);
            let Some(column_type) = column_type else {
                let what = format!("column `{name}` has no type");
                sources.problems.add(here, what, "add type = \"text\"");
                return None;
            };
            (
                column_type.text,
                column_type.place,
                from,
                nullable.unwrap_or(false),
            )
        }
        other => {
            let what = format!("column `{name}` is {}", article(other));
            sources.problems.add(here, what, "write a type: \"bigint\", or { type = \"bigint\", from = \"/path\", nullable = true }");
            return None;
        }
    };
    match type_name.parse::<ColumnType>() {
        Ok(column_type) => Some(Column {
            name: name.to_owned(),
            column_type,
            source: pointer.unwrap_or_else(|| Source::Pointer(format!("/{name}"))),
            nullable,
        }),
        Err(why) => {
            sources
                .problems
                .add(type_place, format!("column `{name}`: {why}"), "");
            None
        }
    }
}

fn read_applies(
    section: &Section<'_>,
    columns: &[Column],
    sources: &mut Sources<'_>,
) -> (Vec<Statement>, Vec<SqlPlace>) {
    let mut read = (Vec::new(), Vec::new());
    for (index, table) in section.tables("apply", sources).into_iter().enumerate() {
        let label = format!("apply {}", index + 1);
        if let Some((statement, place)) = read_statement(label, &table, columns, sources) {
            read.0.push(statement);
            read.1.push(place);
        }
        table.finish(&["sql", "per_event"], sources);
    }
    read
}

fn read_emits(
    section: &Section<'_>,
    columns: &[Column],
    sources: &mut Sources<'_>,
) -> (Vec<Emit>, Vec<SqlPlace>) {
    let mut emits: Vec<Emit> = Vec::new();
    let mut places = Vec::new();
    for table in section.tables("emit", sources) {
        let cure = "name the topic that the messages go to";
        let topic = table.required("topic", cure, sources);
        let name = table.located("name", sources);
        table.finish(&["name", "topic", "sql", "per_event"], sources);
        let Some(topic) = topic else { continue };
        let (name, place) = match name {
            Some(Setting { text, place }) => (text, place),
            None => (topic.clone(), table.place(sources)),
        };
        if emits.iter().any(|emit| emit.name == name) {
            let what = format!("two emits are named `{name}`");
            sources.problems.add(
                place,
                what,
                "give one another `name`: message ids are made from it",
            );
            continue;
        }
        let label = format!("emit {name}");
        if let Some((statement, place)) = read_statement(label, &table, columns, sources) {
            emits.push(Emit {
                name,
                topic,
                statement,
            });
            places.push(place);
        }
    }
    (emits, places)
}

fn read_statement(
    label: String,
    table: &Section<'_>,
    columns: &[Column],
    sources: &mut Sources<'_>,
) -> Option<(Statement, SqlPlace)> {
    let sql = table.required(
        "sql",
        "add `sql`, one statement that reads `events`",
        sources,
    )?;
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
    };
    match Statement::new(text, columns) {
        Ok(statement) => Some((statement, place)),
        Err((why, position)) => {
            let at = place.at(position, sources.file);
            sources.problems.add(at, format!("{label}: {why}"), "");
            None
        }
    }
}

/// Where a string's first character stands in the file, if the file has it without escapes.
fn text_start(file: &str, span: std::ops::Range<usize>, value: &str) -> Option<usize> {
    let literal = file.get(span.clone())?;
    let inside = literal.find(value)?;
    Some(span.start + inside)
}

impl SqlPlace {
    /// The place of a character of the statement.
    pub(super) fn at(&self, position: usize, file: &super::File<'_>) -> Place {
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

    /// The place of a character of the statement, in a file that is read again.
    pub(crate) fn in_text(&self, position: usize, name: &str, text: &str) -> Place {
        self.at(position, &super::File::new(name, text))
    }
}
