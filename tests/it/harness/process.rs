//! The real binary as a child process, and its commands.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use super::{LONG, World, show, wait_until};

const TAIL_LINES: usize = 60;

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "stdout:\n{}\nstderr:\n{}",
            self.stdout, self.stderr
        );
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A run of the binary that is being prepared.
pub(crate) struct Launch<'w> {
    world: &'w World,
    name: String,
    program: PathBuf,
    environment: Vec<(String, String)>,
    options: Vec<(String, String)>,
    arguments: Vec<String>,
    /// What [`Launch::start`] starts.
    service: &'static str,
}

impl<'w> Launch<'w> {
    pub(super) fn new(world: &'w World, name: &str) -> Self {
        // What makes a rebalance quick: the shortest session that brokers allow by default.
        let options = [
            ("session.timeout.ms", "6000"),
            ("heartbeat.interval.ms", "500"),
        ];
        Self {
            world,
            name: name.to_owned(),
            program: PathBuf::from(env!("CARGO_BIN_EXE_tidegate")),
            environment: Vec::new(),
            options: options
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .to_vec(),
            arguments: Vec::new(),
            service: "run",
        }
    }

    /// To start the relay alone.
    pub(crate) fn relay(mut self) -> Self {
        self.service = "relay";
        self
    }

    /// To start another command, one that does not end by itself or is to be killed.
    pub(crate) fn instead(mut self, command: &'static str) -> Self {
        self.service = command;
        self
    }

    /// To build a projection beside the live one and cut over.
    pub(crate) fn rebuild(mut self, projection: &str) -> Self {
        self.service = "rebuild";
        let arguments = [
            "start",
            projection,
            "--cut-over",
            "--yes",
            "--accept-differences",
        ];
        self.arguments.extend(arguments.map(str::to_owned));
        self
    }

    /// Another program: one of the examples.
    pub(crate) fn example(mut self, name: &str) -> Self {
        self.program = example(name);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// Where the process ends itself, or is slow: `apply-before-commit=2*off->return`.
    pub(crate) fn failpoints(self, failpoints: &str) -> Self {
        self.env("FAILPOINTS", failpoints)
    }

    pub(crate) fn batch_records_max(self, records: usize) -> Self {
        self.env("TIDEGATE__APPLY__BATCH_RECORDS_MAX", records)
    }

    /// A setting of librdkafka.
    pub(crate) fn option(mut self, key: &str, value: &str) -> Self {
        self.options.push((key.to_owned(), value.to_owned()));
        self
    }

    /// A member that takes its partitions up again at once when it is started anew, without waiting
    /// for the session of its predecessor to end.
    pub(crate) fn comes_back(self) -> Self {
        let id = self.name.clone();
        self.instance_id(&id)
    }

    /// A static member: one id, one process.
    pub(crate) fn instance_id(self, id: &str) -> Self {
        self.env("TIDEGATE__KAFKA__GROUP_INSTANCE_ID", id)
    }

    /// A session and heartbeats of the length that they have where nobody says otherwise.
    pub(crate) fn usual_session(mut self) -> Self {
        self.options.clear();
        self
    }

    /// The group protocol in which the broker decides. It takes no session's length from a member.
    pub(crate) fn consumer_protocol(self) -> Self {
        self.usual_session()
            .env("TIDEGATE__KAFKA__GROUP_PROTOCOL", "consumer")
    }

    /// The protocols in which every rebalance takes all partitions from everybody first.
    pub(crate) fn eager_protocol(self) -> Self {
        self.env("TIDEGATE__KAFKA__GROUP_PROTOCOL", "eager")
    }

    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    fn command(&self, command: &[&str]) -> Command {
        let config = self.world.write_config(&self.name, &self.options);
        let mut child = Command::new(&self.program);
        child
            .args(command)
            .args(&self.arguments)
            .env("TIDEGATE_CONFIG", config)
            .env(
                "TIDEGATE__KAFKA__BOOTSTRAP_SERVERS",
                self.world.kafka.bootstrap_servers(),
            )
            .envs(self.world.way_to_postgres(command[0]))
            .env("TIDEGATE_LOG", "info,tidegate=debug")
            .env("TIDEGATE_LOG_FORMAT", "text")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        child
    }

    /// Starts `run`, or what was said instead.
    pub(crate) fn start(self) -> Process {
        let log = self.world.folder().join(format!("{}.log", self.name));
        // One log for all runs of that name, the newest last.
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let mut command = self.command(&[self.service]);
        command.stdout(file.try_clone().unwrap()).stderr(file);
        Process {
            child: command.spawn().unwrap(),
            name: self.name,
            starts_at: usize::try_from(fs::metadata(&log).unwrap().len()).unwrap(),
            log,
        }
    }

    /// Runs a command to its end, which must come.
    #[track_caller]
    pub(crate) fn output(self, command: &[&str]) -> Output {
        let path = |ending: &str| self.world.folder().join(format!("{}.{ending}", self.name));
        let (stdout, stderr) = (path("stdout"), path("stderr"));
        let mut run = self.command(command);
        run.stdout(File::create(&stdout).unwrap());
        run.stderr(File::create(&stderr).unwrap());
        let mut process = Process {
            child: run.spawn().unwrap(),
            name: self.name,
            log: stderr.clone(),
            starts_at: 0,
        };
        let status = process.wait(LONG);
        Output {
            // A signal as its negative number.
            code: status
                .code()
                .unwrap_or_else(|| -status.signal().unwrap_or(0)),
            stdout: fs::read_to_string(stdout).unwrap(),
            stderr: fs::read_to_string(stderr).unwrap(),
        }
    }
}

/// A running process. Killed when dropped; shows the end of its log if the test has failed.
pub(crate) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
    starts_at: usize,
}

impl Process {
    /// What this run has logged.
    pub(crate) fn log(&self) -> String {
        // Also asked by `drop`, when the folder may be gone already.
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.starts_at..).unwrap_or_default()).into_owned()
    }

    /// Whether a line of the log has all these words.
    pub(crate) fn has_logged(&self, words: &[&str]) -> bool {
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        self.log().lines().any(has_all)
    }

    #[track_caller]
    pub(crate) fn wait_for_log(&self, limit: Duration, words: &[&str]) {
        let what = format!("{} has logged {words:?}", self.name);
        wait_until(limit, &what, || self.has_logged(words));
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How much of a processor it uses, over two seconds. Where that cannot be read, none.
    pub(crate) fn load(&self) -> f64 {
        const SPAN: Duration = Duration::from_secs(2);
        // User and system time, in hundredths of a second.
        let used = || -> f64 {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
            let stat = stat.unwrap_or_default();
            let fields = stat
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .split_whitespace();
            fields
                .skip(11)
                .take(2)
                .filter_map(|ticks| ticks.parse::<f64>().ok())
                .sum()
        };
        let before = used();
        std::thread::sleep(SPAN);
        (used() - before) / 100.0 / SPAN.as_secs_f64()
    }

    /// Sends a signal, by the name that `kill` knows.
    pub(crate) fn signal(&self, signal: &str) {
        let done = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(self.child.id().to_string())
            .status()
            .unwrap();
        assert!(done.success(), "{} cannot be sent {signal}", self.name);
    }

    /// Ends it without a chance to clean up.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for it to end by itself.
    #[track_caller]
    pub(crate) fn wait(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("{} has ended", self.name);
        wait_until(limit, &what, || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap()
    }

    /// Stops it in order, and expects that it does.
    #[track_caller]
    pub(crate) fn stop(self) {
        self.signal("TERM");
        self.expect_stopped();
    }

    /// Waits for the end of a process that was told to stop.
    #[track_caller]
    pub(crate) fn expect_stopped(mut self) {
        let status = self.wait(Duration::from_secs(40));
        assert_eq!(status.code(), Some(0), "{} did not stop cleanly", self.name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
            show(
                &format!("end of the log of {}", self.name),
                &tail.join("\n"),
            );
        }
    }
}

/// The path of an example, which is built first: `cargo test --test it` builds only the service.
fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let service = Path::new(env!("CARGO_BIN_EXE_tidegate"));
        let profile_folder = service.parent().unwrap();
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args([
                "build",
                "--quiet",
                "--locked",
                "--examples",
                "--features",
                "failpoints",
            ])
            .arg("--target-dir")
            .arg(profile_folder.parent().unwrap());
        // What cargo tells a test about its package would make build scripts run again.
        for (name, _) in std::env::vars_os() {
            let told = name.to_string_lossy();
            if told.starts_with("CARGO_") && told != "CARGO_HOME" {
                build.env_remove(&name);
            }
        }
        if profile_folder.ends_with("release") {
            build.arg("--release");
        }
        assert!(
            build.status().unwrap().success(),
            "the examples cannot be built"
        );
        profile_folder.join("examples")
    });
    folder.join(name)
}
