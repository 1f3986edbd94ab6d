//! A Postgres cluster of a test's own.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::{free_port, kill, program, succeed};
use crate::harness::{Authority, LONG, Session, show, wait_until};

const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''    # its path may not be longer than 107 bytes
max_connections = 200
shared_buffers = 64MB
";

/// Runs until dropped. `fsync` is on: tests kill it.
pub(crate) struct PostgresServer {
    folder: TempDir,
    port: u16,
    user: Option<User>,
    postmaster: Option<Child>,
    /// What its URL ends with.
    parameters: String,
}

/// Who runs it, since the server refuses to run as root.
#[derive(Clone, Copy)]
pub(super) struct User {
    pub(super) id: u32,
    pub(super) group: u32,
}

impl User {
    /// None where it may be whoever runs the tests.
    pub(super) fn who_may_run_servers() -> Option<Self> {
        let is_root = rustix::process::geteuid().is_root();
        is_root.then(|| Self::named(&program("TIDEGATE_TEST_POSTGRES_USER", "a Postgres")))
    }

    fn named(name: &str) -> Self {
        let ask = |what: &str| -> u32 {
            let output = Command::new("id").arg(what).arg(name).output().unwrap();
            let answer = String::from_utf8_lossy(&output.stdout).into_owned();
            let answer = answer.trim().parse();
            answer.unwrap_or_else(|_| panic!("no user {name}: {output:?}"))
        };
        Self {
            id: ask("-u"),
            group: ask("-g"),
        }
    }
}

impl PostgresServer {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let user = User::who_may_run_servers();
        if let Some(user) = user {
            chown(folder.path(), Some(user.id), Some(user.group)).unwrap();
        }
        let mut server = Self {
            folder,
            port: free_port(),
            user,
            postmaster: None,
            parameters: String::new(),
        };
        // Who can reach 127.0.0.1 may do anything.
        let options = [
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "--no-sync",
        ];
        succeed(
            server
                .command("initdb")
                .arg("-D")
                .arg(server.data())
                .args(options),
        );
        server.append(SETTINGS);
        server.start_again();
        server
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    /// One of Postgres' programs, as the user that may run it.
    fn command(&self, name: &str) -> Command {
        let bin = program("TIDEGATE_TEST_POSTGRES_BIN", "a Postgres");
        let mut command = Command::new(Path::new(&bin).join(name));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user.id).gid(user.group);
        }
        command
    }

    fn append(&self, settings: &str) {
        let path = self.data().join("postgresql.conf");
        let mut file = File::options().append(true).open(path).unwrap();
        file.write_all(settings.as_bytes()).unwrap();
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The URL of its own database.
    pub(crate) fn url(&self) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{}/postgres{}",
            self.port, self.parameters
        )
    }

    /// Takes connections over TLS only from now on, and presents this certificate of the authority's. Who is called
    /// `client` needs one too.
    pub(crate) fn only_over_tls(&mut self, authority: &Authority, certificate: &str) {
        self.parameters = format!(
            "?sslmode=verify-full&sslrootcert={}",
            authority.file("ca.pem")
        );
        self.present(authority, certificate);
        let rules = "hostssl all client 127.0.0.1/32 cert\nhostssl all all 127.0.0.1/32 trust\n";
        fs::write(self.data().join("pg_hba.conf"), rules).unwrap();
        self.append("ssl = on\nssl_ca_file = 'ca.pem'\nssl_cert_file = 'own.pem'\nssl_key_file = 'own.key'\n");
        self.reload();
        wait_until(LONG, "Postgres speaks TLS", || {
            Session::try_open(&self.url()).is_ok()
        });
    }

    /// Presents another certificate to whoever comes from now on.
    pub(crate) fn present(&self, authority: &Authority, certificate: &str) {
        for (from, to) in [
            ("ca.pem", "ca.pem"),
            (&*format!("{certificate}.pem"), "own.pem"),
            (&*format!("{certificate}.key"), "own.key"),
        ] {
            let to = self.data().join(to);
            fs::copy(authority.file(from), &to).unwrap();
            // It refuses a key that others may read.
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
            if let Some(user) = self.user {
                chown(&to, Some(user.id), Some(user.group)).unwrap();
            }
        }
        self.reload();
    }

    fn reload(&self) {
        let pid = self.postmaster.as_ref().expect("Postgres is up").id();
        succeed(Command::new("kill").args(["-HUP", &pid.to_string()]));
    }

    /// Changes a setting, for the running server too if it is one that a reload changes. The last value
    /// counts.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.append(&format!("{name} = '{value}'\n"));
        if self.postmaster.is_none() {
            return;
        }
        let mut session = Session::open(&self.url());
        session.run("SELECT pg_reload_conf()");
        let shown = format!(
            "SELECT pending_restart OR setting = '{value}' OR current_setting(name) = '{value}'
             FROM pg_settings WHERE name = '{name}'"
        );
        wait_until(LONG, &format!("{name} is {value}"), || session.one(&shown));
    }

    /// Starts it on the same port and data, and waits until it takes connections. It recovers first if it
    /// was killed.
    pub(crate) fn start_again(&mut self) {
        assert!(self.postmaster.is_none(), "Postgres is up");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .unwrap();
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data());
        command.arg("-p").arg(self.port.to_string());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.postmaster = Some(command.spawn().unwrap());
        wait_until(LONG, "Postgres takes connections", || {
            let ended = self.postmaster.as_mut().unwrap().try_wait().unwrap();
            assert!(
                ended.is_none(),
                "Postgres did not start\n{}",
                self.log_tail()
            );
            Session::try_open(&self.url()).is_ok()
        });
    }

    /// Ends the postmaster with SIGKILL, and waits until its children have noticed: while one of them is
    /// left, the data cannot be used again.
    pub(crate) fn kill(&mut self) {
        let mut postmaster = self.postmaster.take().expect("Postgres is up");
        let pid = postmaster.id();
        // Stopped, so that it gets no child that is not in the list.
        succeed(Command::new("kill").args(["-STOP", &pid.to_string()]));
        let children = children(pid);
        kill(&mut postmaster);
        wait_until(LONG, "all processes of Postgres have ended", || {
            children.iter().all(|child| !is_alive(*child))
        });
    }

    /// Ends all of its processes at once and without a checkpoint, as `pg_ctl stop -m immediate` does.
    pub(crate) fn stop_immediately(&mut self) {
        self.stop("immediate");
    }

    /// Ends its sessions, and then itself in order.
    pub(crate) fn stop_fast(&mut self) {
        self.stop("fast");
    }

    fn stop(&mut self, mode: &str) {
        let mut postmaster = self.postmaster.take().expect("Postgres is up");
        let options = ["-m", mode, "-s", "-w", "stop"];
        // It waits until the postmaster is gone, which it is not before somebody asks how it has ended.
        let mut stop = self.command("pg_ctl");
        let mut stop = stop
            .arg("-D")
            .arg(self.data())
            .args(options)
            .spawn()
            .unwrap();
        postmaster.wait().unwrap();
        assert!(stop.wait().unwrap().success(), "pg_ctl stop");
    }

    /// A copy that follows it and can only be read. Stops it for as long as the copy takes.
    pub(crate) fn standby(&mut self) -> Self {
        self.stop_fast();
        let folder = tempfile::tempdir().unwrap();
        let mut standby = Self {
            folder,
            port: free_port(),
            user: self.user,
            postmaster: None,
            parameters: String::new(),
        };
        if let Some(user) = self.user {
            chown(standby.folder.path(), Some(user.id), Some(user.group)).unwrap();
        }
        succeed(
            Command::new("cp")
                .arg("-a")
                .args([self.data(), standby.data()]),
        );
        self.start_again();
        fs::write(standby.data().join("standby.signal"), "").unwrap();
        let primary = format!("host=127.0.0.1 port={} user=postgres", self.port);
        standby.append(&format!("primary_conninfo = '{primary}'\n"));
        standby.start_again();
        standby
    }

    /// Waits until a standby has everything that is here now.
    pub(crate) fn wait_for_standby(&self, standby: &Self) {
        let here: String = Session::open(&self.url()).one("SELECT pg_current_wal_lsn()::text");
        let has_it = format!("SELECT pg_last_wal_replay_lsn() >= '{here}'");
        let mut session = Session::open(&standby.url());
        wait_until(LONG, "the standby has followed", || session.one(&has_it));
    }

    /// A standby that gets nothing from now on: it lags behind.
    pub(crate) fn follow_no_more(&mut self) {
        self.set("primary_conninfo", "");
        let mut session = Session::open(&self.url());
        wait_until(LONG, "the standby follows no more", || {
            session.one("SELECT count(*) = 0 FROM pg_stat_wal_receiver")
        });
    }

    /// Makes a standby a server of its own.
    pub(crate) fn promote(&mut self) {
        Session::open(&self.url()).run("SELECT pg_promote()");
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(4 << 10)..];
        String::from_utf8_lossy(tail).into_owned()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show("end of the log of Postgres", &self.log_tail());
        }
        if let Some(mut postmaster) = self.postmaster.take() {
            let children = children(postmaster.id());
            // Quit: the postmaster ends its children at once.
            let _ = Command::new("kill")
                .args(["-QUIT", &postmaster.id().to_string()])
                .status();
            let _ = postmaster.wait();
            // The folder is deleted next.
            while children.iter().any(|child| is_alive(*child)) {
                std::thread::yield_now();
            }
        }
    }
}

/// The processes whose parent this is.
fn children(parent: u32) -> Vec<u32> {
    let output = Command::new("ps").args(["-A", "-o", "ppid=,pid="]).output();
    let all = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    let pair = |line: &str| -> Option<(u32, u32)> {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    let pairs = all.lines().filter_map(pair);
    pairs
        .filter(|(of, _)| *of == parent)
        .map(|(_, pid)| pid)
        .collect()
}

/// Whether a process still holds what it held: one that ended and that nobody has collected does not.
fn is_alive(pid: u32) -> bool {
    let output = Command::new("ps")
        .args(["-o", "stat=", "-p", &pid.to_string()])
        .output();
    let state = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    !matches!(state.trim().chars().next(), None | Some('Z'))
}
