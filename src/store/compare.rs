//! Two generations of a projection, table by table: counts, checksums, and some of the rows that differ.
//!
//! Columns are compared that both have, with the same type, by what they look like as text; in what order rows lie
//! does not matter.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::postgres::types::Oid;
use sqlx::{AssertSqlSafe, PgConnection};

use super::Error;

const COLUMNS: &str = include_str!("sql/schema_columns.sql");

/// Rows of each side that are shown, at most.
const SAMPLE_MAX: usize = 3;

/// A table in two generations.
#[derive(Clone, Debug)]
pub(crate) struct Compared {
    pub(crate) table: String,
    /// How many rows each side has; none where the table is not there.
    pub(crate) live: Option<i64>,
    pub(crate) new: Option<i64>,
    pub(crate) same: bool,
    /// Columns that only one side has, or that have another type.
    pub(crate) not_compared: Vec<String>,
    /// Rows that only one side has.
    pub(crate) only_live: Vec<String>,
    pub(crate) only_new: Vec<String>,
}

/// A schema by its name, for statements, and its oid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schema<'a> {
    pub(crate) name: &'a str,
    pub(crate) oid: Oid,
    /// The table that carries the gate, if not `_gate`.
    pub(crate) gate_in: Option<&'a str>,
}

type Columns = BTreeMap<String, BTreeSet<(String, String)>>;

/// Compares all tables, and where the gates stand, in one snapshot of the caller's.
pub(crate) async fn compare(
    connection: &mut PgConnection,
    live: Schema<'_>,
    new: Schema<'_>,
) -> Result<Vec<Compared>, Error> {
    let mut of_live = columns(connection, live.oid).await?;
    let mut of_new = columns(connection, new.oid).await?;
    for (side, columns) in [(live, &mut of_live), (new, &mut of_new)] {
        if let Some(columns) = side.gate_in.and_then(|table| columns.get_mut(table)) {
            // What was before the last batch, as below; and what the other side has in `_gate`.
            let in_both = live.gate_in.is_some() && new.gate_in.is_some();
            columns.retain(|(name, _)| name != "_previous" && (in_both || name != "_sequence"));
        }
    }
    // The sequence of each entity; what was before the last batch depends on how batches were cut.
    let gate: BTreeSet<(String, String)> = [("entity", "text"), ("sequence", "bigint")]
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .into();
    // Where rows of the user's carry the gate, their `_sequence` is compared like any other column.
    if live.gate_in.is_none() && new.gate_in.is_none() {
        of_live.insert("_gate".to_owned(), gate.clone());
        of_new.insert("_gate".to_owned(), gate);
    }

    let tables: BTreeSet<&String> = of_live.keys().chain(of_new.keys()).collect();
    let mut all = Vec::new();
    for table in tables {
        let compared = match (of_live.get(table), of_new.get(table)) {
            (Some(a), Some(b)) => {
                let common: Vec<&str> = a.intersection(b).map(|(name, _)| &**name).collect();
                let other: BTreeSet<&str> =
                    a.symmetric_difference(b).map(|(name, _)| &**name).collect();
                let (in_live, in_new) = (row(live, table, &common), row(new, table, &common));
                let (count_live, sum_live) = checksum(connection, &in_live).await?;
                let (count_new, sum_new) = checksum(connection, &in_new).await?;
                let same = (count_live, &sum_live) == (count_new, &sum_new);
                let (mut only_live, mut only_new) = (Vec::new(), Vec::new());
                if !same {
                    only_live = only(connection, &in_live, &in_new).await?;
                    only_new = only(connection, &in_new, &in_live).await?;
                }
                Compared {
                    table: table.clone(),
                    live: Some(count_live),
                    new: Some(count_new),
                    same: same && other.is_empty(),
                    not_compared: other.into_iter().map(str::to_owned).collect(),
                    only_live,
                    only_new,
                }
            }
            (a, b) => {
                let (live, new) = (
                    a.is_some().then(|| row(live, table, &[])),
                    b.is_some().then(|| row(new, table, &[])),
                );
                let mut counts = [None, None];
                for (count, side) in counts.iter_mut().zip([live, new]) {
                    if let Some(side) = side {
                        *count = Some(checksum(connection, &side).await?.0);
                    }
                }
                let [live, new] = counts;
                Compared {
                    table: table.clone(),
                    live,
                    new,
                    same: false,
                    not_compared: Vec::new(),
                    only_live: Vec::new(),
                    only_new: Vec::new(),
                }
            }
        };
        all.push(compared);
    }
    Ok(all)
}

async fn columns(connection: &mut PgConnection, schema: Oid) -> Result<Columns, Error> {
    let rows: Vec<(String, String, String)> = sqlx::query_as(COLUMNS)
        .bind(schema)
        .fetch_all(connection)
        .await?;
    let mut columns = Columns::new();
    for (table, name, kind) in rows {
        columns.entry(table).or_default().insert((name, kind));
    }
    Ok(columns)
}

/// The rows of a table as one text each.
fn row(schema: Schema<'_>, table: &str, columns: &[&str]) -> String {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let columns: Vec<String> = columns.iter().map(|column| quoted(column)).collect();
    format!(
        "SELECT ROW({})::text AS r FROM {}.{}",
        columns.join(", "),
        quoted(schema.name),
        quoted(table)
    )
}

async fn checksum(connection: &mut PgConnection, rows: &str) -> Result<(i64, String), Error> {
    let sum = format!(
        "SELECT count(*), coalesce(sum(pg_catalog.hashtextextended(t.r, 0)::numeric), 0)::text FROM ({rows}) AS t"
    );
    Ok(sqlx::query_as(AssertSqlSafe(sum))
        .fetch_one(connection)
        .await?)
}

/// Some of the rows that one side has more often than the other.
async fn only(
    connection: &mut PgConnection,
    rows: &str,
    others: &str,
) -> Result<Vec<String>, Error> {
    let only = format!("({rows}) EXCEPT ALL ({others}) ORDER BY 1 LIMIT {SAMPLE_MAX}");
    Ok(sqlx::query_scalar(AssertSqlSafe(only))
        .fetch_all(connection)
        .await?)
}
