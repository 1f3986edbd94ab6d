//! Reads `gate_in`: which table carries the gate.

use super::SqlPlace;
use super::section::{Section, Setting, Sources};
use crate::projection::{EntityType, GateIn, is_identifier};
use crate::sql_projection::{Emit, Statement, last_word};

/// The one statement that writes the table writes the gate, so there can be one only, and it sees every event of an entity
/// at once.
pub(super) fn read<'s>(
    section: &Section<'_>,
    applies: impl ExactSizeIterator<Item = (&'s Statement, &'s SqlPlace)>,
    emits: &[Emit],
    entity_type: EntityType,
    sources: &mut Sources<'_>,
) -> Option<GateIn> {
    let Setting { text, place } = section.located("gate_in", sources)?;
    let named = text.split_once('.');
    let named = named.filter(|(table, key)| is_identifier(table) && is_identifier(key));
    let Some((table, key)) = named else {
        let what = format!("`gate_in` cannot be `{text}`");
        let cure = "name a table of `setup` and the column that is its key: the entity, such as \"balance.account\"";
        sources.problems.add(place, what, cure);
        return None;
    };
    if applies.len() > 1 {
        let what = format!("with `gate_in` there is one `apply`: the one that writes `{table}`");
        let cure = "write what else there is in a CTE of the same statement, or remove `gate_in`";
        sources.problems.add(place.clone(), what, cure);
    }
    let statements: Vec<_> = applies.collect();
    for (statement, at) in &statements {
        let sql = statement.user_text();
        let last = |name: &str| last_word(sql, name);
        let mut problem = |what: &str| {
            let what = format!("{}: {what}", statement.label());
            let cure = format!(
                "write max(_sequence) and max(_previous), and end with: ON CONFLICT ({key}) DO UPDATE SET .., _sequence = excluded._sequence, _previous = excluded._previous WHERE {table}._sequence = excluded._previous"
            );
            sources.problems.add(at.at(0, sources.file), what, cure);
        };
        if let Some(missing) = ["_sequence", "_previous"]
            .iter()
            .find(|name| last(name).is_none())
        {
            problem(&format!(
                "with `gate_in` it has to write `_sequence` and `_previous` of its events, and `{missing}` is not named"
            ));
        } else if let Some(conflict) = last("conflict")
            && last("where").is_none_or(|at| at < conflict || last("_previous") < Some(at))
        {
            // I4: two writers have read one row, and the second must not write it.
            problem(
                "with `gate_in` ON CONFLICT has to compare the row's `_sequence` with `_previous`",
            );
        }
        if let Some(delete) = last("delete") {
            let what = format!(
                "{}: with `gate_in` rows stay: one that is deleted takes its entity's gate along",
                statement.label()
            );
            let cure = "mark the row as gone, or remove `gate_in`";
            sources
                .problems
                .add(at.at(delete, sources.file), what, cure);
        }
    }
    let emits = emits.iter().map(|emit| &emit.statement);
    let mut all = statements
        .iter()
        .map(|(statement, _)| *statement)
        .chain(emits);
    if let Some(cut) = all.find(|statement| statement.is_per_event() || statement.has_types()) {
        let what = format!(
            "{}: with `gate_in` a batch is applied in one piece, so there is neither `per_event` nor `types`",
            cut.label()
        );
        sources.problems.add(place, what, "remove one of the two");
    }
    Some(GateIn::new(table, key, entity_type, ""))
}
