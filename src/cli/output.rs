//! Tables for people.

use std::fmt;
use std::io::Write as _;

use chrono::{DateTime, Utc};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, TableComponent, presets};

use crate::store::hex;

/// What a shell says of a command that a closed pipe has ended.
const CODE_PIPE_CLOSED: i32 = 141;

/// Writes a line to the standard output.
pub(super) fn line(text: fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{text}").is_err() {
        std::process::exit(CODE_PIPE_CLOSED);
    }
}

/// `1 record`, `2,000 records`.
pub(super) fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    format!("{} {what}{plural}", number(count))
}

/// An empty table with a header; columns named in `right` are aligned to the right.
pub(super) fn table(header: &[&str], right: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, '─')
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header.iter().map(Cell::new));
    // A line between rows would double the height.
    for line in [
        TableComponent::HorizontalLines,
        TableComponent::MiddleIntersections,
        TableComponent::LeftBorderIntersections,
        TableComponent::RightBorderIntersections,
    ] {
        table.remove_style(line);
    }
    for (index, name) in header.iter().enumerate() {
        if right.contains(name)
            && let Some(column) = table.column_mut(index)
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A number with thin groups: 1 234 567 is easier to read than 1234567.
pub(super) fn number(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if number < 0 {
        format!("-{grouped}")
    } else {
        grouped
    }
}

/// A size, in the unit that fits.
pub(super) fn bytes(bytes: i64) -> String {
    let units = ["bytes", "kB", "MB", "GB", "TB"];
    let mut size = bytes as f64;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < units.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.0} {}", units[unit])
}

/// A moment, to the second.
pub(super) fn time(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// A text's beginning.
pub(super) fn excerpt(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((at, _)) => format!("{}..", &text[..at]),
        None => text.to_owned(),
    }
}

/// Bytes as text where they are text, otherwise in hexadecimal.
pub(super) fn shown(bytes: Option<&[u8]>) -> String {
    match bytes {
        None => "none".to_owned(),
        Some(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains(|c: char| c.is_control() && c != '\n' && c != '\t') => {
                text.to_owned()
            }
            _ => format!("0x{}", hex(bytes)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!(counted(1, "record"), "1 record");
        assert_eq!(counted(2_000, "record"), "2,000 records");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (-1234567, "-1,234,567"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
