//! A PgBouncer of a test's own, in transaction mode.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::postgres::User;
use super::{free_port, kill};
use crate::harness::{LONG, Session, show, wait_until};

/// Runs until dropped.
pub(crate) struct PgBouncer {
    folder: TempDir,
    port: u16,
    process: Child,
    /// Whether it keeps prepared statements, so that nobody need know of it.
    pub(crate) keeps: bool,
}

fn program() -> String {
    std::env::var("TIDEGATE_TEST_PGBOUNCER").unwrap_or_else(|_| {
        panic!("TIDEGATE_TEST_PGBOUNCER is not set: this test starts a PgBouncer. Run deploy/local/install and deploy/local/test, or source target/local/env after deploy/local/up")
    })
}

/// Whether PgBouncer can keep prepared statements, as it does from 1.21 on; none where there is none.
pub(crate) fn pgbouncer_keeps_statements() -> Option<bool> {
    let program = program();
    if program == "none" {
        return None; // deploy/local/test has said so
    }
    let told = Command::new(program).arg("--version").output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let version = told.split_whitespace().nth(1).unwrap();
    let mut parts = version.split('.').map(|part| part.parse().unwrap());
    let (major, minor): (u32, u32) = (parts.next().unwrap(), parts.next().unwrap());
    Some((major, minor) >= (1, 21))
}

impl PgBouncer {
    /// In front of a server (`host:port`), with so many connections to each database.
    pub(crate) fn before(server: &str, pool_size: u32, keeps: bool) -> Self {
        let prepared = match (keeps, pgbouncer_keeps_statements() == Some(true)) {
            (true, _) => "max_prepared_statements = 200",
            (false, true) => "max_prepared_statements = 0\nserver_reset_query_always = 1",
            (false, false) => "server_reset_query_always = 1",
        };
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let (host, server_port) = server.split_once(':').unwrap();
        // As docs/operations.md has it.
        let settings = format!(
            "[databases]
* = host={host} port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
auth_file =
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 500
{prepared}
ignore_startup_parameters = extra_float_digits
"
        );
        let path = folder.path().join("pgbouncer.ini");
        // It takes any name for any user only if the server's is said.
        let settings = settings.replace(
            &format!("port={server_port}"),
            &format!("port={server_port} user=postgres"),
        );
        fs::write(&path, settings).unwrap();
        let log = File::create(folder.path().join("pgbouncer.log")).unwrap();
        let mut command = Command::new(program());
        command
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        // It refuses to run as root.
        if let Some(user) = User::who_may_run_servers() {
            chown(folder.path(), Some(user.id), Some(user.group)).unwrap();
            command.uid(user.id).gid(user.group);
        }
        let pooler = Self {
            process: command.spawn().unwrap(),
            folder,
            port,
            keeps,
        };
        let url = pooler.url();
        wait_until(LONG, "PgBouncer takes connections", || {
            Session::try_open(&url).is_ok()
        });
        pooler
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address())
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.path().join("pgbouncer.log"));
            let log = log.unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(30)..];
            show("end of the log of PgBouncer", &tail.join("\n"));
        }
        kill(&mut self.process);
    }
}
