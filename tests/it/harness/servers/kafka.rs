//! A Kafka broker of a test's own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::{free_port, kill, program, succeed};
use crate::harness::{Kafka, LONG, show, wait_until};

/// Any id will do: 16 bytes in URL-safe base64.
const CLUSTER_ID: &str = "TidegateTestsOwnKafka0";

/// A further address of a broker, where clients must be somebody.
pub(crate) struct Listener {
    pub(crate) name: &'static str,
    /// `SSL`, `SASL_SSL` ..
    pub(crate) protocol: &'static str,
    /// Its own settings, as lines, without `listener.name.NAME.` in front.
    pub(crate) settings: String,
}

/// Broker and controller in one process. Runs until dropped.
pub(crate) struct KafkaServer {
    folder: TempDir,
    port: u16,
    controller: u16,
    broker: Option<Child>,
    starts: u32,
    /// Names and ports of further listeners.
    further: Vec<(&'static str, u16)>,
}

impl KafkaServer {
    pub(crate) fn start() -> Self {
        Self::start_with("")
    }

    /// With settings of its own, as lines.
    pub(crate) fn start_with(settings: &str) -> Self {
        Self::start_listening(settings, &[], &[])
    }

    /// With further addresses. `users` are known by SCRAM: name and password.
    pub(crate) fn start_listening(
        settings: &str,
        listeners: &[Listener],
        users: &[(&str, &str)],
    ) -> Self {
        let server = Self {
            folder: tempfile::tempdir().unwrap(),
            port: free_port(),
            controller: free_port(),
            broker: None,
            starts: 0,
            further: listeners.iter().map(|l| (l.name, free_port())).collect(),
        };
        server.write_config(&format!("{settings}\n{}", server.listening(listeners)));
        let mut format = server.java("log4j2-tools.yaml");
        format.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"]);
        format.arg(server.config());
        for (name, password) in users {
            for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
                let user = format!("{mechanism}=[name={name},password={password}]");
                format.args(["--add-scram", &user]);
            }
        }
        succeed(&mut format);
        let mut server = server;
        server.start_again();
        // Otherwise the first consumer group waits 3 s until the broker has made this topic.
        let compacted = [
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
        ];
        let kafka = server.kafka();
        kafka.create_topic_with("__consumer_offsets", 4, &compacted);
        server
    }

    /// `host:port` of a further listener.
    pub(crate) fn address_of(&self, name: &str) -> String {
        let found = self.further.iter().find(|(known, _)| *known == name);
        let (_, port) = found.unwrap_or_else(|| panic!("no listener {name}"));
        format!("127.0.0.1:{port}")
    }

    /// Settings of further listeners. Where a setting is said twice, the later one counts.
    fn listening(&self, listeners: &[Listener]) -> String {
        if listeners.is_empty() {
            return String::new();
        }
        let config = fs::read_to_string(Self::deploy().join("server.properties")).unwrap();
        let protocols = "listener.security.protocol.map=";
        let mut map = config
            .lines()
            .find(|line| line.starts_with(protocols))
            .unwrap()
            .to_owned();
        let mut addresses = format!("PLAINTEXT://127.0.0.1:{}", self.port);
        let mut settings = String::new();
        for (listener, (name, port)) in listeners.iter().zip(&self.further) {
            addresses.push_str(&format!(",{name}://127.0.0.1:{port}"));
            map.push_str(&format!(",{name}:{}", listener.protocol));
            let prefix = format!("listener.name.{}.", name.to_lowercase());
            for line in listener.settings.lines().filter(|line| !line.is_empty()) {
                settings.push_str(&format!("{prefix}{line}\n"));
            }
        }
        format!(
            "{map}\nlisteners={addresses},CONTROLLER://127.0.0.1:{}\nadvertised.listeners={addresses}\n{settings}",
            self.controller
        )
    }

    fn deploy() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/local/kafka")
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("server.properties")
    }

    /// The settings of `deploy/local`, with addresses and a folder of its own.
    fn write_config(&self, more: &str) {
        let settings = fs::read_to_string(Self::deploy().join("server.properties")).unwrap();
        let (port, controller) = (self.port, self.controller);
        let log = self.folder.path().join("log");
        let own = format!(
            "
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={}
{more}
",
            log.display()
        );
        fs::write(self.config(), settings + &own).unwrap();
    }

    fn java(&self, logging: &str) -> Command {
        let jars = program("TIDEGATE_TEST_KAFKA_JARS", "a Kafka");
        let logging = Self::deploy().join(logging);
        let mut java = Command::new(program("TIDEGATE_TEST_JAVA", "a Kafka"));
        java.current_dir(self.folder.path())
            .stdin(Stdio::null())
            .args(["-cp", &format!("{jars}/*")])
            .args(["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC"])
            // Quick to start rather than quick.
            .arg("-XX:TieredStopAtLevel=1")
            .arg(format!("-Dlog4j2.configurationFile={}", logging.display()));
        java
    }

    pub(crate) fn kafka(&self) -> Kafka {
        Kafka::private(&format!("127.0.0.1:{}", self.port))
    }

    fn log(&self) -> PathBuf {
        self.folder
            .path()
            .join(format!("server-{}.log", self.starts))
    }

    /// Starts it on the same port and data, and waits until it has recovered and takes requests.
    pub(crate) fn start_again(&mut self) {
        self.launch();
        self.wait_for_log("Kafka Server started");
    }

    /// Starts it, and stops it with SIGSTOP where it is about to take requests.
    pub(crate) fn almost_start_again(&mut self) {
        self.launch();
        self.wait_for_log("The broker has been unfenced");
        self.signal("STOP");
    }

    /// Stops it with SIGSTOP: connections stay, and nothing is answered.
    pub(crate) fn fall_silent(&self) {
        self.signal("STOP");
    }

    pub(crate) fn finish_start(&mut self) {
        self.signal("CONT");
        self.wait_for_log("Kafka Server started");
    }

    fn signal(&self, signal: &str) {
        let pid = self.broker.as_ref().expect("Kafka is up").id();
        succeed(Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]));
    }

    fn launch(&mut self) {
        assert!(self.broker.is_none(), "Kafka is up");
        self.starts += 1;
        let log = File::create(self.log()).unwrap();
        let mut command = self.java("log4j2.yaml");
        command.arg("kafka.Kafka").arg(self.config());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.broker = Some(command.spawn().unwrap());
    }

    fn wait_for_log(&mut self, words: &str) {
        wait_until(LONG, &format!("Kafka has logged {words:?}"), || {
            let ended = self.broker.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "Kafka did not start\n{}", self.log_tail());
            let log = fs::read(self.log()).unwrap();
            String::from_utf8_lossy(&log).contains(words)
        });
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        kill(&mut self.broker.take().expect("Kafka is up"));
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(4 << 10)..];
        String::from_utf8_lossy(tail).into_owned()
    }
}

impl Drop for KafkaServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show("end of the log of Kafka", &self.log_tail());
        }
        if let Some(mut broker) = self.broker.take() {
            kill(&mut broker);
        }
    }
}
