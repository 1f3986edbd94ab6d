//! The central schema's version.

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{PgConnection, SqlSafeStr};

use super::{Error, transaction};

const MIGRATIONS: [(i64, &str, &str); 13] = [
    (1, "core", include_str!("../../migrations/0001_core.sql")),
    (
        2,
        "identity",
        include_str!("../../migrations/0002_identity.sql"),
    ),
    (
        3,
        "dead letters",
        include_str!("../../migrations/0003_dead_letters.sql"),
    ),
    (
        4,
        "history",
        include_str!("../../migrations/0004_history.sql"),
    ),
    (
        5,
        "dead letter retention",
        include_str!("../../migrations/0005_dead_letter_retention.sql"),
    ),
    (
        6,
        "outbox",
        include_str!("../../migrations/0006_outbox.sql"),
    ),
    (
        7,
        "application",
        include_str!("../../migrations/0007_application.sql"),
    ),
    (
        8,
        "rebuild",
        include_str!("../../migrations/0008_rebuild.sql"),
    ),
    (
        9,
        "registry schema",
        include_str!("../../migrations/0009_registry_schema.sql"),
    ),
    (
        10,
        "first incarnation",
        include_str!("../../migrations/0010_first_incarnation.sql"),
    ),
    (
        11,
        "resets in between",
        include_str!("../../migrations/0011_resets_in_between.sql"),
    ),
    (
        12,
        "detached builds",
        include_str!("../../migrations/0012_detached_builds.sql"),
    ),
    (
        13,
        "declined builds",
        include_str!("../../migrations/0013_declined_builds.sql"),
    ),
];

/// What `run` needs to know before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// All of this binary's migrations are applied.
    Current,
    /// Some are not: `tidegate migrate` first.
    Behind { applied: i64, known: i64 },
    /// The database was migrated by a newer binary.
    Ahead { applied: i64, known: i64 },
}

fn migrator() -> Migrator {
    let migrations = MIGRATIONS.iter().map(|(version, name, sql)| {
        Migration::new(
            *version,
            (*name).into(),
            MigrationType::Simple,
            (*sql).into_sql_str(),
            false,
        )
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    migrator.create_schema("tidegate");
    migrator.dangerous_set_table_name("tidegate.migration");
    migrator
}

/// Applies what is missing. The connection is closed afterwards: a failed migration leaves a session
/// lock behind on it.
pub(crate) async fn migrate(mut connection: PgConnection) -> Result<(), Error> {
    let result = migrator().run_direct(None, &mut connection, false).await;
    result.map_err(|error| Error::Migrate(error.to_string()))
}

/// Compares the database with this binary, without changing anything.
pub(crate) async fn state(connection: &mut PgConnection) -> Result<State, Error> {
    transaction::begin_alone(connection).await?;
    let read = read(connection).await;
    transaction::end_alone(connection, read).await
}

async fn read(connection: &mut PgConnection) -> Result<State, Error> {
    let known = MIGRATIONS.last().map_or(0, |(version, ..)| *version);
    let exists: bool =
        sqlx::query_scalar("SELECT pg_catalog.to_regclass('tidegate.migration') IS NOT NULL")
            .fetch_one(&mut *connection)
            .await?;
    let applied: i64 = if exists {
        sqlx::query_scalar(include_str!("sql/schema_version.sql"))
            .fetch_one(connection)
            .await?
    } else {
        0
    };
    Ok(match applied.cmp(&known) {
        std::cmp::Ordering::Less => State::Behind { applied, known },
        std::cmp::Ordering::Equal => State::Current,
        std::cmp::Ordering::Greater => State::Ahead { applied, known },
    })
}
