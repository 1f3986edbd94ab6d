//! `generation`: builds of a projection's tables, the live one and those beside it.

use chrono::{DateTime, Utc};
use sqlx::postgres::types::Oid;
use sqlx::{FromRow, PgConnection};

use super::projection::Live;
use super::{Error, Timeouts, sqlstate, transaction};

const INSERT: &str = include_str!("sql/generation_insert.sql");
const NEXT: &str = include_str!("sql/generation_next.sql");
const SET_STATE: &str = include_str!("sql/generation_set_state.sql");
const RENAME: &str = include_str!("sql/generation_rename.sql");
const BUILDING: &str = include_str!("sql/generation_building.sql");
const BESIDE: &str = include_str!("sql/generation_beside.sql");
const PROGRESS: &str = include_str!("sql/rebuild_progress.sql");
const REBUILD_LOCK: &str = include_str!("sql/rebuild_lock.sql");
const REBUILD_WAIT: &str = include_str!("sql/rebuild_wait.sql");
const REBUILD_WANTED: &str = include_str!("sql/rebuild_wanted.sql");
const DETACH: &str = include_str!("sql/generation_detach.sql");
const DECLINE: &str = include_str!("sql/generation_decline.sql");
const TROUBLE: &str = include_str!("sql/generation_trouble.sql");
const UNDER_WAY: &str = include_str!("sql/generation_under_way.sql");

/// What a generation's tables and their content are made by.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub(crate) struct Made {
    /// What its content depends on, as text.
    pub(crate) definition: String,
    /// Hash of the SQL that made the tables.
    pub(crate) setup: String,
    /// Hash of the statements.
    pub(crate) statements: String,
}

/// What a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Building,
    Live,
    Retired,
    /// Its schema is gone.
    Abandoned,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::Live => "live",
            Self::Retired => "retired",
            Self::Abandoned => "abandoned",
        }
    }
}

/// What the service is to do with a build that was left to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detached {
    Build,
    CutOverIfSame,
    /// Whatever differs.
    CutOver,
}

impl Detached {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::CutOverIfSame => "cut over if same",
            Self::CutOver => "cut over",
        }
    }

    /// What a later version may have invented is built, and no more.
    fn named(name: &str) -> Self {
        let all = [Self::CutOverIfSame, Self::CutOver];
        let known = all.into_iter().find(|this| this.name() == name);
        known.unwrap_or(Self::Build)
    }
}

/// Records a generation in an existing schema, and returns its number.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    projection: &str,
    live: bool,
    schema: &str,
    made: &Made,
) -> Result<i32, Error> {
    Ok(sqlx::query_scalar(INSERT)
        .bind(projection)
        .bind(live)
        .bind(schema)
        .bind(&made.definition)
        .bind(&made.setup)
        .bind(&made.statements)
        .fetch_one(connection)
        .await?)
}

/// The number that the next generation will have, with the projection's row locked.
pub(crate) async fn next(connection: &mut PgConnection, projection: &str) -> Result<i32, Error> {
    Ok(sqlx::query_scalar(NEXT)
        .bind(projection)
        .fetch_one(connection)
        .await?)
}

pub(crate) async fn set_state(
    connection: &mut PgConnection,
    projection: &str,
    number: i32,
    state: State,
) -> Result<(), Error> {
    sqlx::query(SET_STATE)
        .bind(projection)
        .bind(number)
        .bind(state.name())
        .execute(connection)
        .await?;
    Ok(())
}

/// Follows a schema that was renamed.
pub(crate) async fn rename(
    connection: &mut PgConnection,
    projection: &str,
    schema: Oid,
    name: &str,
) -> Result<(), Error> {
    sqlx::query(RENAME)
        .bind(projection)
        .bind(schema)
        .bind(name)
        .execute(connection)
        .await?;
    Ok(())
}

/// A generation that is being built, as a claim reads it: it stays so until the transaction ends.
pub(crate) async fn building(
    connection: &mut PgConnection,
    projection: &str,
    number: i32,
) -> Result<Option<Live>, Error> {
    Ok(sqlx::query_as(BUILDING)
        .bind(projection)
        .bind(number)
        .fetch_optional(connection)
        .await?)
}

/// Keeps other processes from building the same projection as long as the connection lasts; false if one does.
pub(crate) async fn keep_others_from_building(
    connection: &mut PgConnection,
    projection: &str,
) -> Result<bool, Error> {
    Ok(sqlx::query_scalar(REBUILD_LOCK)
        .bind(projection)
        .fetch_one(connection)
        .await?)
}

/// The same, waiting for whoever builds to let go, for as long as `timeouts` allow.
pub(crate) async fn wait_to_build(
    connection: &mut PgConnection,
    projection: &str,
    timeouts: &Timeouts,
) -> Result<bool, Error> {
    let (path, name) = (transaction::OWN_SEARCH_PATH, "tidegate rebuild");
    transaction::begin(connection, path, name, timeouts).await?;
    let waited = sqlx::query(REBUILD_WAIT).bind(projection);
    let waited = waited.execute(&mut *connection).await;
    transaction::rollback(connection).await?;
    match waited {
        Ok(_) => Ok(true),
        // lock_not_available
        Err(error) if sqlstate(&error).as_deref() == Some("55P03") => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether somebody waits for what the connection keeps.
pub(crate) async fn somebody_waits_to_build(connection: &mut PgConnection) -> Result<bool, Error> {
    Ok(sqlx::query_scalar(REBUILD_WANTED)
        .fetch_one(connection)
        .await?)
}

/// Leaves a build to the service, or with none takes it back.
pub(crate) async fn detach(
    connection: &mut PgConnection,
    projection: &str,
    number: i32,
    detached: Option<Detached>,
) -> Result<(), Error> {
    sqlx::query(DETACH)
        .bind(projection)
        .bind(number)
        .bind(detached.map(Detached::name))
        .execute(connection)
        .await?;
    Ok(())
}

/// Says why a build that was left to the service does not go on, if it does not.
pub(crate) async fn set_trouble(
    connection: &mut PgConnection,
    projection: &str,
    number: i32,
    trouble: &str,
) -> Result<(), Error> {
    sqlx::query(TROUBLE)
        .bind(projection)
        .bind(number)
        .bind(trouble)
        .execute(connection)
        .await?;
    Ok(())
}

/// Says why a process does not take a build that was left to the service, and that it could have.
pub(crate) async fn decline(
    connection: &mut PgConnection,
    (projection, number): (&str, i32),
    why: &str,
) -> Result<(), Error> {
    transaction::begin_alone(connection).await?;
    let done = sqlx::query(DECLINE).bind(projection).bind(number).bind(why);
    let done = done.execute(&mut *connection).await;
    transaction::end_alone(connection, done).await?;
    Ok(())
}

/// Since when a build waits for the service, and for what.
#[derive(Clone, Debug, Default, FromRow)]
pub(crate) struct Waiting {
    /// When it was left to the service.
    pub(crate) left_at: Option<DateTime<Utc>>,
    /// Why a process that is there and could take it does not; empty if there is none.
    pub(crate) declined: String,
}

/// A build under way.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct UnderWay {
    pub(crate) projection: String,
    pub(crate) number: i32,
    #[sqlx(flatten)]
    pub(crate) made: Made,
    detached: Option<String>,
    pub(crate) trouble: String,
    #[sqlx(flatten)]
    pub(crate) waiting: Waiting,
    /// Whether somebody is building it.
    pub(crate) taken: bool,
}

impl UnderWay {
    /// Whether it was left to the service.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.is_some()
    }

    /// Whether it was left to the service, and nobody has taken it.
    pub(crate) fn waits(&self) -> bool {
        self.is_detached() && !self.taken && self.trouble.is_empty()
    }
}

/// All builds under way.
pub(crate) async fn under_way(connection: &mut PgConnection) -> Result<Vec<UnderWay>, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(UNDER_WAY).fetch_all(&mut *connection).await;
    transaction::end_alone(connection, answer).await
}

/// A generation with a schema beside the live one's.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Beside {
    pub(crate) number: i32,
    state: String,
    pub(crate) schema_name: String,
    pub(crate) schema_oid: Oid,
    pub(crate) definition: String,
    pub(crate) setup: String,
    pub(crate) statements: String,
    pub(crate) started_at: DateTime<Utc>,
    /// When it was live for the last time; none if it never was.
    pub(crate) live_at: Option<DateTime<Utc>>,
    detached: Option<String>,
    /// Why the service does not get on with it; empty if it does.
    pub(crate) trouble: String,
    #[sqlx(flatten)]
    pub(crate) waiting: Waiting,
}

impl Beside {
    pub(crate) fn is_building(&self) -> bool {
        self.state == State::Building.name()
    }

    /// What the service is to do with it, if it was left to it.
    pub(crate) fn detached(&self) -> Option<Detached> {
        self.detached.as_deref().map(Detached::named)
    }
}

/// Reads the generations that have a schema beside the live one's, the one that is being built first.
pub(crate) async fn beside(
    connection: &mut PgConnection,
    projection: &str,
) -> Result<Vec<Beside>, Error> {
    Ok(sqlx::query_as(BESIDE)
        .bind(projection)
        .fetch_all(connection)
        .await?)
}

/// How far a build is in one partition.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Progress {
    pub(crate) projection: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) done: i64,
    pub(crate) remaining: i64,
}

/// How far all builds are.
pub(crate) async fn progress(connection: &mut PgConnection) -> Result<Vec<Progress>, Error> {
    transaction::begin_alone(connection).await?;
    let answer = sqlx::query_as(PROGRESS).fetch_all(&mut *connection).await;
    transaction::end_alone(connection, answer).await
}
