//! `columns`: what statements see of an event.

use toml::Spanned;
use toml::de::DeValue;

use super::projections::source;
use super::section::{Section, Setting, Sources, article};
use crate::codec::default_problem;
use crate::projection::{Column, ColumnType, Source, TimeUnit, column_problem};

/// The columns that could be read, and the names of those that could not.
pub(super) struct Columns {
    pub(super) list: Vec<Column>,
    pub(super) wrong: Vec<String>,
    /// Whether there is a table of them at all; otherwise any name may have been meant as one.
    pub(super) readable: bool,
}

pub(super) fn read_columns(section: &Section<'_>, sources: &mut Sources<'_>) -> Columns {
    let mut columns = Columns {
        list: Vec::new(),
        wrong: Vec::new(),
        readable: true,
    };
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
        columns.readable = false;
        return columns;
    };
    for (name, value) in table {
        let path = section.path(&format!("columns.{}", name.get_ref()));
        let column = match column_problem(name.get_ref()) {
            None => read_column((name.get_ref(), &path), value, sources),
            Some(why) => {
                let place = sources.file.place(name.span().start);
                let what = format!("column `{}`: {why}", name.get_ref());
                sources.problems.add(place, what, "");
                None
            }
        };
        match column {
            Some(column) => columns.list.push(column),
            None => columns.wrong.push(name.get_ref().to_lowercase()),
        }
    }
    columns
}

fn read_column(
    (name, path): (&str, &str),
    value: &Spanned<DeValue<'_>>,
    sources: &mut Sources<'_>,
) -> Option<Column> {
    let here = sources.file.place(value.span().start);
    let (type_name, type_place, pointer, rest) = match value.get_ref() {
        DeValue::String(text) => {
            sources.show(path, text, Some(&here));
            (text.clone().into_owned(), here, None, (false, None, None))
        }
        DeValue::Table(table) => {
            let section = Section::item(path, table, value.span().start);
            let column_type = section.located("type", sources);
            let from = source("from", &section, sources);
            let nullable = section.choice("nullable", &[("true", true), ("false", false)], sources);
            let default = section.located("default", sources);
            let units = [
                ("days", TimeUnit::Days),
                ("seconds", TimeUnit::Seconds),
                ("millis", TimeUnit::Millis),
                ("micros", TimeUnit::Micros),
                ("nanos", TimeUnit::Nanos),
            ];
            let unit = section.choice("unit", &units, sources);
            let unit_place = section.place_of("unit", sources);
            section.finish(&["type", "from", "nullable", "default", "unit"], sources);
            let Some(column_type) = column_type else {
                let what = format!("column `{name}` has no type");
                sources.problems.add(here, what, "add type = \"text\"");
                return None;
            };
            (
                column_type.text,
                column_type.place,
                from,
                (
                    nullable.unwrap_or(false),
                    default,
                    unit.map(|unit| (unit, unit_place)),
                ),
            )
        }
        other => {
            let what = format!("column `{name}` is {}", article(other));
            sources.problems.add(here, what, "write a type: \"bigint\", or { type = \"bigint\", from = \"/path\", nullable = true }");
            return None;
        }
    };
    match type_name.parse::<ColumnType>() {
        Ok(column_type) => {
            let (nullable, default, unit) = rest;
            if let Some(Setting { text, place }) = &default
                && let Some(why) = default_problem(column_type, text)
            {
                let what = format!("column `{name}`: its default cannot be {column_type}: {why}");
                sources.problems.add(place.clone(), what, "");
            }
            let counts = |unit: TimeUnit| match unit {
                TimeUnit::Days => column_type == ColumnType::Date,
                _ => matches!(column_type, ColumnType::Timestamptz | ColumnType::Timestamp),
            };
            if let Some((_, place)) = unit.as_ref().filter(|(unit, _)| !counts(*unit)) {
                let what = format!("column `{name}`: a number of this unit is no {column_type}");
                let cure = "days are for a date, the others for a timestamptz or a timestamp";
                sources.problems.add(place.clone(), what, cure);
            }
            Some(Column {
                name: name.to_owned(),
                column_type,
                source: pointer.unwrap_or_else(|| Source::Pointer(format!("/{name}"))),
                nullable,
                default: default.map(|default| default.text),
                unit: unit.map(|(unit, _)| unit),
            })
        }
        Err(why) => {
            let reason = format!("column `{name}`: {why}");
            sources.problems.add_reason(type_place, &reason);
            None
        }
    }
}
