//! Whether a format and its schema have what a projection wants, told before any record comes.

use super::column::{Column, ColumnType};
use super::definition::Projection;
use super::format::{Avro, Format};
use super::problems::{Contradiction, is_near};
use super::source::Source;
use crate::avro::{Kind, Schema, tokens};

/// What a path is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoleOf {
    /// An entity or an event id.
    Identity,
    Sequence,
    Column(ColumnType),
    /// A number that counts time.
    Counted,
}

impl Projection {
    /// Sources that the format does not have, or whose values cannot be what is wanted of them.
    pub(super) fn misfits(&self) -> Vec<Contradiction> {
        let types = self.types.as_ref().map(|types| types.source.clone());
        let own = [
            ("entity", &self.entity, Some(RoleOf::Identity)),
            ("sequence", &self.sequence, Some(RoleOf::Sequence)),
            ("event_id", &self.event_id, Some(RoleOf::Identity)),
            ("type", &types, None),
        ];
        let own = own.into_iter().filter_map(|(setting, source, role)| {
            let why = self.why_not(source.as_ref()?, role)?;
            Some(Contradiction::of(setting, &format!("`{setting}`: {why}")))
        });
        let columns = self.columns.iter().filter_map(|column| {
            let why = self.why_not(&column.source, Some(role_of(column)))?;
            let what = format!("column `{}`: {why}", column.name);
            Some(Contradiction {
                column: Some(column.name.clone()),
                ..Contradiction::of("columns", &what)
            })
        });
        own.chain(columns).collect()
    }

    /// What keeps what stands at a source from being what is wanted.
    fn why_not(&self, source: &Source, role: Option<RoleOf>) -> Option<String> {
        let avro = self.format.avro();
        let (schema, pointer) = match (source, &self.format, avro) {
            (Source::Attribute(_), Format::CloudEvents, _) => return None,
            (Source::Attribute(_), ..) => {
                return Some(format!(
                    "`{source}` is an attribute of CloudEvents, and needs `format = \"cloudevents\"`"
                ));
            }
            (Source::Envelope(pointer), Format::Debezium(avro), _) => {
                (&avro.as_ref()?.schema, pointer.clone())
            }
            (Source::Envelope(_), ..) => {
                return Some(format!(
                    "`{source}` is a part of change events, and needs `format = \"debezium\"`"
                ));
            }
            (Source::KeyPath(pointer), _, Some(Avro { key: Some(key), .. })) => {
                (&key.schema, pointer.clone())
            }
            (Source::KeyPath(_), _, Some(_)) => {
                return Some(format!(
                    "`{source}` is a part of the key, and needs `key_schema`, by which keys in Avro are read"
                ));
            }
            // The row as it is: as it was it is of the same type.
            (Source::Pointer(pointer), Format::Debezium(Some(avro)), _) => {
                (&avro.schema, format!("/after{pointer}"))
            }
            (Source::Pointer(pointer), _, Some(avro)) => (&avro.schema, pointer.clone()),
            _ => return None,
        };
        misfit(schema, &pointer, role?)
    }
}

fn role_of(column: &Column) -> RoleOf {
    match column.unit {
        Some(_) => RoleOf::Counted,
        None => RoleOf::Column(column.column_type),
    }
}

/// What keeps a schema's value at a path from being what is wanted; none if nothing does. With a cure after a
/// semicolon.
fn misfit(schema: &Schema, pointer: &str, role: RoleOf) -> Option<String> {
    let path: Vec<String> = tokens(pointer).collect();
    let kinds = match schema.at(&path) {
        Ok(kinds) => kinds,
        Err((step, names)) => {
            let near = names.iter().find(|name| is_near(&step, name));
            let cure = match (near, names.is_empty()) {
                (Some(near), _) => format!("; did you mean `{near}`?"),
                (None, false) => format!("; known are {}", names.join(", ")),
                (None, true) => String::new(),
            };
            return Some(format!("the schema has no `{step}` at `{pointer}`{cure}"));
        }
    };
    let other = kinds
        .iter()
        .find(|kind| **kind != Kind::Null && !takes(role, **kind));
    let wanted = match role {
        RoleOf::Identity => "a string, a UUID or an integer".to_owned(),
        RoleOf::Sequence => "an integer".to_owned(),
        RoleOf::Column(of) => of.to_string(),
        RoleOf::Counted => "a number that counts time".to_owned(),
    };
    match other {
        Some(kind) => Some(format!(
            "the schema has {} at `{pointer}`, which cannot be {wanted}{}",
            kind.name(),
            cure(*kind)
        )),
        None if kinds == [Kind::Null] => {
            Some(format!("the schema has nothing but null at `{pointer}`"))
        }
        None => None,
    }
}

/// The column type that takes a kind of value best.
fn cure(kind: Kind) -> &'static str {
    match kind {
        Kind::Null => "",
        Kind::Boolean => "; boolean can",
        Kind::Integer => "; bigint can",
        Kind::Float => "; double precision can",
        Kind::Bytes => "; bytea can",
        Kind::Text | Kind::Time | Kind::Duration => "; text can",
        Kind::Date => "; date can",
        Kind::Timestamp => "; timestamptz can",
        Kind::LocalTimestamp => "; timestamp can",
        Kind::Decimal => "; numeric can",
        Kind::Uuid => "; uuid can",
        Kind::Tree => "; jsonb can",
    }
}

/// Whether a value of this kind can be what is wanted, as [`value`](super::value) converts it.
fn takes(role: RoleOf, kind: Kind) -> bool {
    let of = match role {
        RoleOf::Identity => return matches!(kind, Kind::Text | Kind::Uuid | Kind::Integer),
        RoleOf::Sequence => return matches!(kind, Kind::Integer | Kind::Text),
        RoleOf::Counted => return kind == Kind::Integer,
        RoleOf::Column(of) => of,
    };
    match of {
        ColumnType::Bigint | ColumnType::Integer => kind == Kind::Integer,
        ColumnType::Double => matches!(kind, Kind::Float | Kind::Integer),
        ColumnType::Numeric => matches!(kind, Kind::Decimal | Kind::Integer | Kind::Text),
        ColumnType::Boolean => kind == Kind::Boolean,
        ColumnType::Text => {
            matches!(kind, Kind::Text | Kind::Uuid | Kind::Time | Kind::Duration)
        }
        ColumnType::Uuid => matches!(kind, Kind::Uuid | Kind::Text),
        ColumnType::Timestamptz => matches!(kind, Kind::Timestamp | Kind::Text),
        ColumnType::Timestamp => matches!(kind, Kind::LocalTimestamp | Kind::Text),
        ColumnType::Date => matches!(kind, Kind::Date | Kind::Text),
        ColumnType::Bytea => kind == Kind::Bytes,
        ColumnType::Jsonb => true,
    }
}
