//! A real schema registry: Apicurio's, in memory, by its Confluent-compatible API.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{free_port, kill, program};
use crate::harness::{LONG, wait_until};

/// What comes before the paths of the API.
const PREFIX: &str = "/apis/ccompat/v7";

pub(crate) struct RegistryServer {
    folder: tempfile::TempDir,
    port: u16,
    server: Child,
}

impl RegistryServer {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let log = File::create(folder.path().join("registry.log")).unwrap();
        let server = Command::new(program("TIDEGATE_TEST_JAVA", "a schema registry"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .arg("-Dquarkus.http.host=127.0.0.1")
            .arg(format!("-Dquarkus.http.port={port}"))
            .arg("-jar")
            .arg(program("TIDEGATE_TEST_REGISTRY", "a schema registry"))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let registry = Self {
            folder,
            port,
            server,
        };
        wait_until(LONG, "the schema registry answers", || {
            registry.ask("GET", "/subjects", "").is_some()
        });
        registry
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}{PREFIX}", self.port)
    }

    /// The id that a subject's new version has.
    pub(crate) fn register(&self, subject: &str, schema: &str) -> u32 {
        let body = json!({ "schema": schema }).to_string();
        let path = format!("/subjects/{subject}/versions");
        let answer = self.ask("POST", &path, &body).unwrap();
        let id = answer["id"].as_u64().and_then(|id| u32::try_from(id).ok());
        id.unwrap_or_else(|| panic!("not registered: {answer}"))
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(
            stream,
            "{method} {PREFIX}{path} HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }
}

impl Drop for RegistryServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("registry.log"));
            crate::harness::show("log of the schema registry", &log.unwrap_or_default());
        }
        kill(&mut self.server);
    }
}
