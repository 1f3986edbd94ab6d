//! A schema registry behind TLS that lets in whom it knows by a certificate. Certificates and server are OpenSSL's.

use std::fs;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::harness::{Authority, LONG, World, free_port, wait_until};

const PROJECTION: &str = r#"
[schema_registry]
url           = "https://127.0.0.1:@port@"
ca_file       = "ca.pem"
identity_file = "identity.pem"
timeout       = "2s"

[projections.words]
topics  = ["@in@"]
format  = "avro"
schema  = "word.avsc"
gate    = "none"
setup   = "words.sql"
columns = { word = "text" }

[[projections.words.apply]]
sql = "INSERT INTO words (word) SELECT word FROM events"
"#;

const SCHEMA: &str =
    r#"{"type": "record", "name": "Word", "fields": [{"name": "word", "type": "string"}]}"#;

/// Ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// I10: who is not let in waits, and parks nothing.
#[test]
fn a_registry_behind_tls_knows_us_by_our_certificate() {
    let port = free_port();
    let files = [
        ("words.sql", "CREATE TABLE words (word text)"),
        ("word.avsc", SCHEMA),
    ];
    let world = World::new(1, &PROJECTION.replace("@port@", &port.to_string()), &files);
    let folder = world.folder();
    let authority = Authority::new(folder, "ca");
    for name in ["server", "client"] {
        authority.certify(name, "IP:127.0.0.1");
    }
    let identity_file = folder.join("identity.pem");
    fs::copy(authority.bundle("client"), &identity_file).unwrap();
    let body = json!({ "schema": SCHEMA }).to_string();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    fs::create_dir_all(folder.join("schemas/ids")).unwrap();
    fs::write(folder.join("schemas/ids/1"), answer).unwrap();
    let server = Command::new("openssl")
        .current_dir(folder)
        .args([
            "s_server",
            "-accept",
            &port.to_string(),
            "-cert",
            "server.pem",
            "-key",
            "server.key",
        ])
        .args([
            "-CAfile",
            "ca.pem",
            "-Verify",
            "2",
            "-verify_return_error",
            "-HTTP",
            "-quiet",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Server(server);
    let sender = world.sender();
    sender.send(0, None, Some(b"\0\0\0\0\x01\x0ahello"));
    sender.flush();

    // A certificate that the authority has not signed.
    let stranger = Authority::new(folder, "other");
    fs::copy(stranger.bundle("other"), &identity_file).unwrap();
    let process = world.start("a");
    wait_until(LONG, "it is not let in", || {
        world
            .condition("words", 0)
            .1
            .contains("schema 1 cannot be asked for")
    });
    process.stop();
    assert_eq!(world.parked(), 0);

    fs::copy(authority.bundle("client"), &identity_file).unwrap();
    let _process = world.start("b");
    world.wait_until_done(LONG);
    let words: Vec<(String,)> = world.db.rows("SELECT word FROM words.words");
    assert_eq!(words, [("hello".to_owned(),)]);
    fs::write(&identity_file, "no certificate").unwrap();
    let refused = world.tidegate(&["check"]).expect(78).stderr;
    assert!(
        refused.contains("`schema_registry` cannot be used"),
        "{refused}"
    );
}
