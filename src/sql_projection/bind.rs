//! Sends the columns of a step's events as arrays.

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use super::{OWN_COLUMNS, Parameter, Statement};
use crate::projection::{Batch, ColumnData, Events, GateRows, PREVIOUS, Ref};

type Bound<'q> = Query<'q, Postgres, PgArguments>;

/// A statement with the arrays of the step's events.
pub(super) fn query<'q>(
    statement: &Statement,
    batch: &Batch<'_>,
    step: &[Ref],
) -> Result<Bound<'q>, String> {
    let events = batch.events;
    let same = |a: &Ref, b: &Ref| events.entity(*a) == events.entity(*b);
    let mut query = sqlx::query(statement.sql());
    for relation in &statement.relations {
        let latest: Vec<Ref>;
        let refs = if relation.latest {
            let last = |refs: &[Ref]| refs.last().copied();
            latest = step.chunk_by(same).filter_map(last).collect();
            &latest
        } else {
            step
        };
        for parameter in &relation.parameters {
            query = match parameter {
                Parameter::Declared(column) => declared(query, &events.columns[*column], refs),
                Parameter::Own(column) if OWN_COLUMNS[*column].0 == PREVIOUS => {
                    query.bind(previous(batch, refs))
                }
                Parameter::Own(column) => own(query, OWN_COLUMNS[*column].0, events, refs)?,
            };
        }
    }
    Ok(query)
}

/// What the rows of the events' entities carried before the batch.
fn previous(batch: &Batch<'_>, refs: &[Ref]) -> Vec<Option<i64>> {
    let Some(mut walk) = batch.gate_rows.map(GateRows::walk) else {
        return vec![None; refs.len()];
    };
    // By entity: a walk never goes back.
    refs.iter()
        .map(|event| walk.sequence(batch.events.entity(*event)))
        .collect()
}

fn pick<T: Copy>(values: &[T], refs: &[Ref]) -> Vec<T> {
    refs.iter().map(|event| values[*event as usize]).collect()
}

fn declared<'q>(query: Bound<'q>, data: &ColumnData, refs: &[Ref]) -> Bound<'q> {
    match data {
        ColumnData::Bigint(values) => query.bind(pick(values, refs)),
        ColumnData::Integer(values) => query.bind(pick(values, refs)),
        ColumnData::Double(values) => query.bind(pick(values, refs)),
        ColumnData::Boolean(values) => query.bind(pick(values, refs)),
        ColumnData::Uuid(values) => query.bind(pick(values, refs)),
        ColumnData::Timestamptz(values) => query.bind(pick(values, refs)),
        ColumnData::Timestamp(values) => query.bind(pick(values, refs)),
        ColumnData::Date(values) => query.bind(pick(values, refs)),
        ColumnData::Bytea(values) => {
            let bytes = refs.iter().map(|event| values[*event as usize].clone());
            query.bind(bytes.collect::<Vec<_>>())
        }
        ColumnData::Text(values) => {
            let texts = refs.iter().map(|event| values.get(*event as usize));
            bind_texts(query, texts.collect())
        }
    }
}

fn bind_texts<'q>(query: Bound<'q>, texts: Vec<Option<&str>>) -> Bound<'q> {
    query.bind(texts)
}

fn own<'q>(
    query: Bound<'q>,
    column: &str,
    events: &Events<'_>,
    refs: &[Ref],
) -> Result<Bound<'q>, String> {
    Ok(match column {
        "_ref" => query.bind(
            refs.iter()
                .map(|event| i64::from(*event))
                .collect::<Vec<i64>>(),
        ),
        "_entity" => bind_texts(
            query,
            refs.iter()
                .map(|event| Some(events.entity(*event)))
                .collect(),
        ),
        "_sequence" => query.bind(pick(&events.sequences, refs)),
        "_topic" => bind_texts(
            query,
            refs.iter()
                .map(|event| Some(events.partition(*event).topic()))
                .collect(),
        ),
        "_partition" => query.bind(
            refs.iter()
                .map(|event| events.partition(*event).partition())
                .collect::<Vec<i32>>(),
        ),
        "_offset" => query.bind(
            refs.iter()
                .map(|event| events.records[*event as usize].offset())
                .collect::<Vec<i64>>(),
        ),
        "_timestamp" => query.bind(
            refs.iter()
                .map(|event| events.records[*event as usize].time())
                .collect::<Vec<_>>(),
        ),
        "_type" => bind_texts(
            query,
            refs.iter().map(|event| events.event_type(*event)).collect(),
        ),
        "_tombstone" => query.bind(
            refs.iter()
                .map(|event| events.records[*event as usize].value().is_none())
                .collect::<Vec<bool>>(),
        ),
        other => return Err(format!("no such column: {other}")),
    })
}
