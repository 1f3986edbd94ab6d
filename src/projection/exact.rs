//! Whether a table keeps a row as it was written.
//!
//! A fold's state stays in memory between two events, or is written and read back: which one is up to where batches are cut. So
//! nothing may depend on it. Where a column rounds, pads or cuts, or a trigger changes the row, the state is
//! read back after each event of its entity.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, PgConnection};

use super::entity_type::EntityType;
use super::fold::failed;
use super::handler::HandlerError;

/// Types that keep every value, without a length or a scale. Not `char`, `name` and `money`, which pad, cut and round; nor ranges, which are
/// written in one of several ways, and what others have made: they may do as they like.
const EXACT: &str = "'{bool,bytea,cidr,date,float4,float8,inet,int2,int4,int8,interval,json,jsonb,macaddr,numeric,oid,text,time,timestamp,timestamptz,timetz,uuid,varbit,varchar}'";

/// The question, for one table.
#[derive(Clone)]
pub(super) struct Exact {
    statement: Arc<str>,
}

impl Exact {
    /// `table` is quoted, as SQL takes it; `key` and `columns` are not.
    pub(super) fn new(table: &str, key: &str, entity_type: EntityType, columns: &[&str]) -> Self {
        let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let (table, key) = (literal(table), literal(key));
        let columns: Vec<String> = columns.iter().map(|name| literal(name)).collect();
        let columns = columns.join(", ");
        let key_types = match entity_type {
            EntityType::Text => "{text,varchar}".to_owned(),
            other => format!("{{{other}}}"),
        };
        let statement = format!(
            "SELECT coalesce(( \
                 SELECT 'the table has a trigger, a rule or row-level security' FROM pg_catalog.pg_class c \
                 WHERE (c.oid = {table}::regclass OR c.oid IN (SELECT p.relid FROM pg_catalog.pg_partition_tree({table}::regclass) p)) \
                   AND (c.relkind NOT IN ('r', 'p') OR c.relhasrules OR c.relrowsecurity OR EXISTS ( \
                       SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)) \
                 LIMIT 1), ( \
                 SELECT pg_catalog.format('column `%s` is of type `%s`, which may keep another value than it is given', a.attname, \
                                          pg_catalog.format_type(a.atttypid, a.atttypmod)) \
                 FROM pg_catalog.pg_attribute a \
                 JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
                 LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A' \
                 WHERE a.attrelid = {table}::regclass AND a.attnum > 0 AND NOT a.attisdropped \
                   AND a.attname = ANY (ARRAY[{columns}]::text[]) \
                   AND NOT (a.atttypmod = -1 AND (coalesce(e.typtype, t.typtype) = 'e' \
                            OR coalesce(e.oid, t.oid) = ANY ({EXACT}::regtype[]))) \
                 ORDER BY a.attnum LIMIT 1), ( \
                 SELECT pg_catalog.format('key `%s` is not plain {entity_type}, so two entities may be one row', a.attname) \
                 FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation \
                 WHERE a.attrelid = {table}::regclass AND a.attname = {key} AND NOT a.attisdropped \
                   AND NOT (a.atttypmod = -1 AND a.atttypid = ANY ('{key_types}'::regtype[]) AND coalesce(l.collisdeterministic, true))))"
        );
        Self {
            statement: statement.into(),
        }
    }

    /// Why a row may be another one once it is written, if it may.
    pub(super) async fn why_not(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Option<String>, HandlerError> {
        sqlx::query_scalar(AssertSqlSafe(Arc::clone(&self.statement)))
            .fetch_one(connection)
            .await
            .map_err(|error| failed("looking at the columns", error))
    }
}

#[cfg(test)]
mod tests {
    // A sum that is read as the double next to it is another one after each batch.
    #[test]
    fn numbers_of_a_document_are_read_as_they_were_written() {
        for written in [
            1_850_901.885_000_000_2,
            0.1 + 0.2,
            31.245_270_191_439_438,
            5e-324,
            f64::MAX,
        ] {
            let json = serde_json::to_vec(&[written]).unwrap();
            let read: [f64; 1] = serde_json::from_slice(&json).unwrap();
            assert_eq!(read[0].to_bits(), f64::to_bits(written));
        }
    }
}
