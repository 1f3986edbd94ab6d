//! Reads the settings of one table: from the environment, else from the file, else a default.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::memory::{parse_size, size_text};
use super::problems::{Place, Problems};
use super::{ENVIRONMENT_PREFIX, scalar};
use crate::projection::is_near;

/// A file's name and text, to name places in it.
#[derive(Debug)]
pub(crate) struct File<'t> {
    pub(super) name: String,
    pub(super) text: &'t str,
}

impl<'t> File<'t> {
    pub(crate) fn new(name: &str, text: &'t str) -> Self {
        Self {
            name: name.to_owned(),
            text,
        }
    }

    /// The line and column of a byte.
    pub(super) fn place(&self, byte: usize) -> Place {
        let before = &self.text[..self.text.floor_char_boundary(byte)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place::Line {
            file: self.name.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    /// The line and column of a character, counted from 0.
    pub(crate) fn place_of_char(&self, position: usize) -> Place {
        let byte = self.text.char_indices().nth(position);
        self.place(byte.map_or(self.text.len(), |(byte, _)| byte))
    }

    /// The file as a whole.
    pub(super) fn whole(&self) -> Place {
        Place::Name(self.name.clone())
    }
}

/// Longer is a slip; and Postgres ends at 24 days.
const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Where settings come from, and where problems go.
pub(super) struct Sources<'s> {
    pub(super) file: &'s File<'s>,
    pub(super) folder: &'s Path,
    /// Environment variables not yet read, by the path of their setting.
    pub(super) variables: BTreeMap<String, String>,
    /// The settings that a variable could have named.
    pub(super) nameable: BTreeSet<String>,
    /// Every setting as it was read.
    pub(super) shown: Vec<Shown>,
    pub(super) problems: &'s mut Problems,
}

impl Sources<'_> {
    pub(super) fn show(&mut self, path: &str, text: &str, place: Option<&Place>) {
        self.shown.push(Shown {
            path: path.to_owned(),
            text: text.to_owned(),
            place: place.cloned(),
        });
    }
}

/// A setting as it counts.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// `kafka.group_prefix`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Where it is set; none for a default.
    pub(crate) place: Option<Place>,
}

/// A setting's text and its place.
pub(super) struct Setting {
    pub(super) text: String,
    pub(super) place: Place,
}

/// One table of the file.
pub(super) struct Section<'t> {
    /// `projections.balances`, empty for the whole file.
    path: String,
    pub(super) table: Option<&'t DeTable<'t>>,
    /// Where the table begins.
    start: Option<usize>,
    /// Whether environment variables can name its settings: not those of one table among many.
    in_environment: bool,
    tables: BTreeSet<String>,
}

impl<'t> Section<'t> {
    pub(super) fn new(path: &str, table: Option<&'t DeTable<'t>>, start: Option<usize>) -> Self {
        Self {
            path: path.to_owned(),
            table,
            start,
            in_environment: true,
            tables: BTreeSet::new(),
        }
    }

    /// One of several tables that share a path.
    pub(super) fn item(path: &str, table: &'t DeTable<'t>, start: usize) -> Self {
        Self {
            in_environment: false,
            ..Self::new(path, Some(table), Some(start))
        }
    }

    pub(super) fn path(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// Where the section begins, or the file if it does not.
    pub(super) fn place(&self, sources: &Sources<'_>) -> Place {
        match self.start {
            Some(start) => sources.file.place(start),
            None => sources.file.whole(),
        }
    }

    /// Where a setting's value is, or where the section begins.
    pub(super) fn place_of(&self, key: &str, sources: &Sources<'_>) -> Place {
        match self.value(key) {
            Some(value) => sources.file.place(value.span().start),
            None => self.place(sources),
        }
    }

    /// Where a setting is set, if it is. To be asked before it is read.
    pub(super) fn place_of_setting(&self, key: &str, sources: &Sources<'_>) -> Option<Place> {
        let path = self.path(key);
        match self.in_environment && sources.variables.contains_key(&path) {
            true => Some(variable_place(&path)),
            false => self.value(key).map(|_| self.place_of(key, sources)),
        }
    }

    /// Whether a key looks like a slip for this one. It is reported as unknown, which is enough.
    pub(super) fn misspells(&self, wanted: &str) -> bool {
        let mut keys = self.table.into_iter().flat_map(|table| table.keys());
        keys.any(|key| is_near(key.get_ref(), wanted))
    }

    /// Whether the file or the environment has a setting.
    pub(super) fn has(&self, key: &str, sources: &Sources<'_>) -> bool {
        let variable = || self.in_environment && sources.variables.contains_key(&self.path(key));
        self.value(key).is_some() || variable()
    }

    pub(super) fn value(&self, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.table?.get(key)
    }

    /// A table inside this one; an absent one has defaults only.
    pub(super) fn table(&mut self, key: &str, sources: &mut Sources<'_>) -> Section<'t> {
        self.tables.insert(key.to_owned());
        let path = self.path(key);
        match self.value(key) {
            None => Section::new(&path, None, None),
            Some(value) => match value.get_ref() {
                DeValue::Table(table) => Section::new(&path, Some(table), Some(value.span().start)),
                other => {
                    let place = sources.file.place(value.span().start);
                    let what = format!("`{path}` is {}, not a table", article(other));
                    sources.problems.add(place, what, format!("write [{path}]"));
                    Section::new(&path, None, Some(value.span().start))
                }
            },
        }
    }

    fn setting(&self, key: &str, sources: &mut Sources<'_>) -> Option<Setting> {
        let path = self.path(key);
        if self.in_environment {
            sources.nameable.insert(path.clone());
        }
        let variable = self.in_environment.then(|| sources.variables.remove(&path));
        if let Some(text) = variable.flatten() {
            let place = variable_place(&path);
            sources.show(&path, &text, Some(&place));
            return Some(Setting { text, place });
        }
        let value = self.value(key)?;
        let place = sources.file.place(value.span().start);
        match scalar(value.get_ref()) {
            Some(text) => {
                sources.show(&path, &text, Some(&place));
                Some(Setting { text, place })
            }
            None => {
                let what = format!(
                    "`{path}` is {}, not a single value",
                    article(value.get_ref())
                );
                sources.problems.add(place, what, "");
                None
            }
        }
    }

    /// What counts where nothing is set.
    pub(super) fn default(&self, key: &str, text: &str, sources: &mut Sources<'_>) -> String {
        sources.show(&self.path(key), text, None);
        text.to_owned()
    }

    pub(super) fn located(&self, key: &str, sources: &mut Sources<'_>) -> Option<Setting> {
        self.setting(key, sources)
    }

    pub(super) fn string(&self, key: &str, sources: &mut Sources<'_>) -> Option<String> {
        self.setting(key, sources).map(|setting| setting.text)
    }

    pub(super) fn required(
        &self,
        key: &str,
        cure: &str,
        sources: &mut Sources<'_>,
    ) -> Option<Setting> {
        let found = self.setting(key, sources);
        match found {
            Some(setting) if !setting.text.trim().is_empty() => Some(setting),
            Some(setting) => {
                let what = format!("`{}` is empty", self.path(key));
                sources.problems.add(setting.place, what, cure);
                None
            }
            None => {
                if self.value(key).is_none() && !self.misspells(key) {
                    let what = format!("`{}` is missing", self.path(key));
                    sources.problems.add(self.place(sources), what, cure);
                }
                None
            }
        }
    }

    pub(super) fn choice<T: Copy>(
        &self,
        key: &str,
        choices: &[(&str, T)],
        sources: &mut Sources<'_>,
    ) -> Option<T> {
        let setting = self.setting(key, sources)?;
        let found = choices.iter().find(|(name, _)| *name == setting.text);
        if found.is_none() {
            let what = format!("`{}` cannot be `{}`", self.path(key), setting.text);
            let names: Vec<String> = choices
                .iter()
                .map(|(name, _)| format!("`{name}`"))
                .collect();
            let cure = format!("write one of {}", names.join(", "));
            sources.problems.add(setting.place, what, cure);
        }
        found.map(|(_, choice)| *choice)
    }

    pub(super) fn flag(&self, key: &str, default: bool, sources: &mut Sources<'_>) -> bool {
        let choices = [("true", true), ("false", false)];
        if !self.has(key, sources) {
            self.default(key, &default.to_string(), sources);
        }
        self.choice(key, &choices, sources).unwrap_or(default)
    }

    /// A duration of at most a day; none is shorter than `min`.
    pub(super) fn duration(
        &self,
        key: &str,
        min: Duration,
        default: Duration,
        sources: &mut Sources<'_>,
    ) -> Duration {
        let cure = "\"50ms\", \"10s\" or \"5m\"";
        self.duration_within(key, min..=DURATION_MAX, default, (cure, "a day"), sources)
    }

    /// How long something is kept: up to ten years.
    pub(super) fn long_duration(
        &self,
        key: &str,
        min: Duration,
        default: Duration,
        sources: &mut Sources<'_>,
    ) -> Duration {
        let cure = "\"30m\", \"48h\" or \"7d\"";
        let range = min..=DURATION_MAX * 3_650;
        self.duration_within(key, range, default, (cure, "ten years"), sources)
    }

    fn duration_within(
        &self,
        key: &str,
        range: RangeInclusive<Duration>,
        default: Duration,
        (examples, most): (&str, &str),
        sources: &mut Sources<'_>,
    ) -> Duration {
        let Some(setting) = self.setting(key, sources) else {
            self.default(key, &duration_text(default), sources);
            return default;
        };
        let duration = parse_duration(&setting.text);
        let duration = duration.filter(|duration| range.contains(duration));
        duration.unwrap_or_else(|| {
            let what = format!("`{}` cannot be `{}`", self.path(key), setting.text);
            let from = match range.start().is_zero() {
                true => String::new(),
                false => format!("from {:?} ", range.start()),
            };
            let cure = format!("write a duration such as {examples}, {from}up to {most}");
            sources.problems.add(setting.place, what, cure);
            default
        })
    }

    pub(super) fn count(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
        default: usize,
        sources: &mut Sources<'_>,
    ) -> usize {
        let Some(setting) = self.setting(key, sources) else {
            self.default(key, &default.to_string(), sources);
            return default;
        };
        let parsed = setting
            .text
            .parse()
            .ok()
            .filter(|count| range.contains(count));
        parsed.unwrap_or_else(|| {
            let what = format!("`{}` cannot be `{}`", self.path(key), setting.text);
            let cure = format!("write a number from {} to {}", range.start(), range.end());
            sources.problems.add(setting.place, what, cure);
            default
        })
    }

    /// Bytes: `64MB`.
    pub(super) fn size(
        &self,
        key: &str,
        min: usize,
        default: usize,
        sources: &mut Sources<'_>,
    ) -> usize {
        let Some(setting) = self.setting(key, sources) else {
            self.default(key, &size_text(default), sources);
            return default;
        };
        let parsed = parse_size(&setting.text).filter(|size| *size >= min);
        parsed.unwrap_or_else(|| {
            let what = format!("`{}` cannot be `{}`", self.path(key), setting.text);
            let cure = format!(
                "write a size such as \"512MB\" or \"2GB\", from {} up",
                size_text(min)
            );
            sources.problems.add(setting.place, what, cure);
            default
        })
    }

    /// A table of strings, with the place of each.
    pub(super) fn strings(
        &mut self,
        key: &str,
        sources: &mut Sources<'_>,
    ) -> Vec<(String, String, Place)> {
        let table = self.table(key, sources);
        let mut strings = Vec::new();
        for (name, value) in table.table.into_iter().flatten() {
            let place = sources.file.place(name.span().start);
            match scalar(value.get_ref()) {
                Some(text) => {
                    let path = format!("{}.{}", self.path(key), name.get_ref());
                    sources.show(&path, &text, Some(&place));
                    strings.push((name.get_ref().clone().into_owned(), text, place));
                }
                None => {
                    let what = format!("`{}.{}` is not a string", self.path(key), name.get_ref());
                    let cure = match value.get_ref() {
                        DeValue::Table(_) => "put a name that has dots in quotes",
                        _ => "",
                    };
                    sources.problems.add(place, what, cure);
                }
            }
        }
        if self.in_environment {
            self.strings_of_environment(key, &mut strings, sources);
        }
        strings
    }

    /// Variables that name entries of a table of strings, which win over those of the file.
    fn strings_of_environment(
        &self,
        key: &str,
        strings: &mut Vec<(String, String, Place)>,
        sources: &mut Sources<'_>,
    ) {
        let prefix = format!("{}.", self.path(key));
        let named = sources
            .variables
            .keys()
            .filter(|path| path.starts_with(&prefix));
        for path in named.cloned().collect::<Vec<_>>() {
            let Some(text) = sources.variables.remove(&path) else {
                continue;
            };
            let name = path[prefix.len()..].to_owned();
            strings.retain(|(known, ..)| *known != name);
            sources.shown.retain(|shown| shown.path != path);
            let place = variable_place(&path);
            sources.show(&path, &text, Some(&place));
            strings.push((name, text, place));
        }
    }

    /// An array of strings; a single string counts as one.
    pub(super) fn list(&self, key: &str, sources: &mut Sources<'_>) -> Vec<Setting> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let items: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![value],
        };
        let mut list = Vec::new();
        for item in items {
            let place = sources.file.place(item.span().start);
            if let DeValue::String(text) = item.get_ref() {
                sources.show(&self.path(key), text, Some(&place));
            }
            match item.get_ref() {
                DeValue::String(text) => list.push(Setting {
                    text: text.clone().into_owned(),
                    place,
                }),
                other => {
                    let what = format!(
                        "`{}` holds {}, not a string",
                        self.path(key),
                        article(other)
                    );
                    sources.problems.add(place, what, "");
                }
            }
        }
        list
    }

    /// The tables of `[[path.key]]`.
    pub(super) fn tables(&self, key: &str, sources: &mut Sources<'_>) -> Vec<Section<'t>> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let path = self.path(key);
        let mut sections = Vec::new();
        match value.get_ref() {
            DeValue::Array(items) => {
                for item in items.iter() {
                    if let DeValue::Table(table) = item.get_ref() {
                        sections.push(Section::item(&path, table, item.span().start));
                    }
                }
                if sections.len() == items.len() {
                    return sections;
                }
            }
            DeValue::Table(table) => {
                sections.push(Section::item(&path, table, value.span().start));
                return sections;
            }
            _ => {}
        }
        let place = sources.file.place(value.span().start);
        let what = format!("`{path}` is {}, not tables", article(value.get_ref()));
        sources
            .problems
            .add(place, what, format!("write [[{path}]]"));
        sections
    }

    /// Reports keys that mean nothing, with the nearest one that does.
    pub(super) fn finish(&self, known: &[&str], sources: &mut Sources<'_>) {
        let known: Vec<&str> = known
            .iter()
            .copied()
            .chain(self.tables.iter().map(|t| &**t))
            .collect();
        for key in self.table.into_iter().flat_map(|table| table.keys()) {
            let name = &**key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let near = known
                .iter()
                .filter(|known| is_near(name, known))
                .min_by_key(|known| strsim::damerau_levenshtein(known, name));
            let cure = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known are {}", known.join(", ")),
            };
            let what = format!("`{}` is not a setting", self.path(name));
            sources
                .problems
                .add(sources.file.place(key.span().start), what, cure);
        }
    }
}

fn variable_place(path: &str) -> Place {
    Place::Name(format!("environment variable {}", variable(path)))
}

/// The name of the variable for a setting.
pub(super) fn variable(path: &str) -> String {
    let name = path.to_uppercase().replace('.', "__");
    format!("{ENVIRONMENT_PREFIX}{name}")
}

/// A value's kind, as a person says it.
pub(super) fn article(value: &DeValue<'_>) -> String {
    let kind = value.type_str();
    let vowel = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if vowel { "an" } else { "a" })
}

/// A duration as it is written.
fn duration_text(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    match (seconds, millis) {
        (seconds, 0) if seconds > 0 && seconds.is_multiple_of(3600) => {
            format!("{}h", seconds / 3600)
        }
        (seconds, 0) if seconds > 0 && seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        (seconds, 0) => format!("{seconds}s"),
        (seconds, millis) => format!("{}ms", seconds * 1000 + u64::from(millis)),
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    match text[digits..].trim() {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" | "min" => Some(Duration::from_secs(number.checked_mul(60)?)),
        "h" => Some(Duration::from_secs(number.checked_mul(60 * 60)?)),
        "d" => Some(Duration::from_secs(number.checked_mul(24 * 60 * 60)?)),
        _ => None,
    }
}
