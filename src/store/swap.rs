//! Schemas of generations as the catalog has them: what depends on one, what it takes to rename it, and to drop it.
//!
//! No statement here says CASCADE: what lies outside the schema is not ours to drop.

use sqlx::postgres::types::Oid;
use sqlx::{AssertSqlSafe, PgConnection};

use super::{Error, sqlstate};

const DEPENDENTS: &str = include_str!("sql/schema_dependents.sql");
const RIGHTS: &str = include_str!("sql/schema_rights.sql");
const SIZE: &str = include_str!("sql/schema_size.sql");
const GRANTS: &str = include_str!("sql/schema_grants.sql");
const UNPROTECTED: &str = include_str!("sql/schema_unprotected.sql");
const TOUCHED: &str = include_str!("sql/schema_touched.sql");
const CATALOG: &str = include_str!("sql/schema_catalog.sql");
const OBJECTS: &str = include_str!("sql/schema_objects.sql");

/// Something depends on what is to be dropped.
const DEPENDENT_OBJECTS: &str = "2BP01";
/// Each pass over what is left must drop something; so many are enough for anything that people write.
const PASSES_MAX: usize = 8;

/// What outside of a schema depends on something in it.
pub(crate) async fn dependents(
    connection: &mut PgConnection,
    schema: Oid,
) -> Result<Vec<String>, Error> {
    texts(connection, DEPENDENTS, schema).await
}

/// What the role that is connected may not do, and a cut-over needs.
pub(crate) async fn missing_rights(
    connection: &mut PgConnection,
    schema: Oid,
) -> Result<Vec<String>, Error> {
    texts(connection, RIGHTS, schema).await
}

async fn texts(
    connection: &mut PgConnection,
    statement: &'static str,
    schema: Oid,
) -> Result<Vec<String>, Error> {
    Ok(sqlx::query_scalar(statement)
        .bind(schema)
        .fetch_all(connection)
        .await?)
}

/// How many bytes the relations of a schema take.
pub(crate) async fn size(connection: &mut PgConnection, schema: Oid) -> Result<i64, Error> {
    Ok(sqlx::query_scalar(SIZE)
        .bind(schema)
        .fetch_one(connection)
        .await?)
}

/// Tables that are protected row by row, and would not be any more.
pub(crate) async fn unprotected(
    connection: &mut PgConnection,
    old: Oid,
    new: Oid,
) -> Result<Vec<String>, Error> {
    Ok(sqlx::query_scalar(UNPROTECTED)
        .bind(old)
        .bind(new)
        .fetch_all(connection)
        .await?)
}

/// A relation of a schema that this transaction has done more with than read it.
pub(crate) async fn touched(
    connection: &mut PgConnection,
    schema: Oid,
) -> Result<Option<String>, Error> {
    Ok(sqlx::query_scalar(TOUCHED)
        .bind(schema)
        .fetch_optional(connection)
        .await?)
}

/// What the catalog says of a schema, to be compared with what it says later.
pub(crate) async fn catalog(connection: &mut PgConnection, schema: Oid) -> Result<String, Error> {
    Ok(sqlx::query_scalar(CATALOG)
        .bind(schema)
        .fetch_one(connection)
        .await?)
}

/// Renames a schema. Whoever has its name in a statement that runs goes on with the tables that it has found.
pub(crate) async fn rename(
    connection: &mut PgConnection,
    from: &str,
    to: &str,
) -> Result<(), Error> {
    let rename = format!("ALTER SCHEMA \"{from}\" RENAME TO \"{to}\"");
    run(connection, rename).await
}

/// Gives what is in one schema the owners and grants of what has the same name in another.
pub(crate) async fn carry_grants(
    connection: &mut PgConnection,
    old: Oid,
    new: Oid,
) -> Result<(), Error> {
    let statements: Vec<String> = sqlx::query_scalar(GRANTS)
        .bind(old)
        .bind(new)
        .fetch_all(&mut *connection)
        .await?;
    for statement in statements {
        run(connection, statement).await?;
    }
    Ok(())
}

/// Drops a schema and what is in it, object by object, so that nothing outside goes along: that is an error.
pub(crate) async fn drop(
    connection: &mut PgConnection,
    schema: Oid,
    name: &str,
) -> Result<(), Error> {
    for _ in 0..PASSES_MAX {
        let objects: Vec<(String, String)> = sqlx::query_as(OBJECTS)
            .bind(schema)
            .fetch_all(&mut *connection)
            .await?;
        if objects.is_empty() {
            break;
        }
        let mut dropped = false;
        // All tables at once: they may refer to each other in a circle.
        let of_kind = |wanted: &str| {
            let names = objects.iter().filter(|(kind, _)| kind == wanted);
            names.map(|(_, name)| &**name).collect::<Vec<_>>()
        };
        for kind in ["VIEW", "MATERIALIZED VIEW", "TABLE"] {
            let names = of_kind(kind);
            if !names.is_empty() {
                dropped |= tried(connection, &format!("DROP {kind} {}", names.join(", "))).await?;
            }
        }
        for (kind, name) in &objects {
            if !matches!(&**kind, "VIEW" | "MATERIALIZED VIEW" | "TABLE") {
                dropped |= tried(connection, &format!("DROP {kind} {name}")).await?;
            }
        }
        if !dropped {
            break; // what is left tells why the schema stays
        }
    }
    run(connection, format!("DROP SCHEMA \"{name}\"")).await
}

/// Drops something, unless something else depends on it yet.
async fn tried(connection: &mut PgConnection, statement: &str) -> Result<bool, Error> {
    run(connection, "SAVEPOINT tidegate_drop".to_owned()).await?;
    let done = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
        .execute(&mut *connection)
        .await;
    match done {
        Ok(_) => {
            run(connection, "RELEASE tidegate_drop".to_owned()).await?;
            Ok(true)
        }
        Err(error) if sqlstate(&error).as_deref() == Some(DEPENDENT_OBJECTS) => {
            run(connection, "ROLLBACK TO tidegate_drop".to_owned()).await?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

async fn run(connection: &mut PgConnection, statement: String) -> Result<(), Error> {
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(connection)
        .await?;
    Ok(())
}
