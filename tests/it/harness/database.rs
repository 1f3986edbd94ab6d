//! A database of a test's own.

use std::str::FromStr as _;
use std::sync::Mutex;

use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, FromRow, PgConnection};

use super::{block_on, unique};

/// One connection, for statements and for locks that are held across them.
pub(crate) struct Session {
    connection: PgConnection,
}

impl Session {
    #[track_caller]
    pub(crate) fn open(url: &str) -> Self {
        Self::try_open(url).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same where nobody may be listening; the error's text then.
    pub(crate) fn try_open(url: &str) -> Result<Self, String> {
        let options = PgConnectOptions::from_str(url)
            .unwrap()
            .application_name("test")
            .disable_statement_logging();
        let connection = block_on(options.connect()).map_err(|error| error.to_string())?;
        Ok(Self { connection })
    }

    /// Runs statements, several at once too.
    #[track_caller]
    pub(crate) fn run(&mut self, sql: &str) {
        let done = block_on(sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.connection));
        done.unwrap_or_else(|error| panic!("{error}\n{sql}"));
    }

    /// Runs statements that may fail; the error's text then.
    pub(crate) fn try_run(&mut self, sql: &str) -> Result<(), String> {
        block_on(sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.connection))
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    /// The rows of a query, as tuples or anything else that reads rows.
    #[track_caller]
    pub(crate) fn rows<T>(&mut self, sql: &str) -> Vec<T>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        self.try_rows(sql)
            .unwrap_or_else(|error| panic!("{error}\n{sql}"))
    }

    /// The same where the server may go away; the error's text then.
    pub(crate) fn try_rows<T>(&mut self, sql: &str) -> Result<Vec<T>, String>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        block_on(sqlx::query_as(AssertSqlSafe(sql)).fetch_all(&mut self.connection))
            .map_err(|error| error.to_string())
    }

    /// The single value of a query.
    #[track_caller]
    pub(crate) fn one<T>(&mut self, sql: &str) -> T
    where
        (T,): for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let mut rows: Vec<(T,)> = self.rows(sql);
        assert_eq!(rows.len(), 1, "{sql}");
        rows.remove(0).0
    }
}

/// A database that is dropped with the test.
pub(crate) struct TestDb {
    server: String,
    name: String,
    session: Mutex<Option<Session>>,
}

impl TestDb {
    pub(crate) fn create_at(server: &str) -> Self {
        let name = format!("it_{}", unique());
        // Copying the smaller template is the fastest, and nobody is connected to it.
        Session::open(server).run(&format!("CREATE DATABASE {name} TEMPLATE template0"));
        Self {
            server: server.to_owned(),
            name,
            session: Mutex::new(None),
        }
    }

    /// The address of the server's own database.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn url(&self) -> String {
        let url = &self.server;
        let (address, options) = url.split_once('?').unwrap_or((url, ""));
        let (server, _) = address.rsplit_once('/').unwrap();
        format!("{server}/{}?{options}", self.name)
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> String {
        let options = PgConnectOptions::from_str(&self.url()).unwrap();
        format!("{}:{}", options.get_host(), options.get_port())
    }

    /// The URL with another host and port in it.
    pub(crate) fn url_by(&self, address: &str) -> String {
        self.url().replace(&self.address(), address)
    }

    pub(crate) fn session(&self) -> Session {
        Session::open(&self.url())
    }

    /// After the server was away: what is asked from now on is asked through a new connection.
    pub(crate) fn reconnect(&self) {
        *self.session.lock().unwrap() = None;
    }

    #[track_caller]
    fn with<T>(&self, work: impl FnOnce(&mut Session) -> T) -> T {
        let mut session = self.session.lock().unwrap();
        work(session.get_or_insert_with(|| self.session()))
    }

    #[track_caller]
    pub(crate) fn run(&self, sql: &str) {
        self.with(|session| session.run(sql));
    }

    #[track_caller]
    pub(crate) fn rows<T>(&self, sql: &str) -> Vec<T>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        self.with(|session| session.rows(sql))
    }

    #[track_caller]
    pub(crate) fn one<T>(&self, sql: &str) -> T
    where
        (T,): for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        self.with(|session| session.one(sql))
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // A failing test must not be hidden by a second panic, and a server of the test's own may be gone.
        if let Ok(mut session) = Session::try_open(&self.server) {
            let _ = session.try_run(&drop);
        }
    }
}
