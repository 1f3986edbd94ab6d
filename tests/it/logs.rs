//! What is logged: for whom, of what, and never of what a record says. And by which trace a message was caused.

use serde_json::{Value, json};

use crate::harness::{LONG, Process, World, wait_until};

pub(crate) const CANARY: &str = "canary-4f1d";
pub(crate) const NOTES: &str = r#"
[projections.notes]
topics   = ["@in@"]
entity   = "key"
sequence = "/seq"
gate     = "newest"
setup    = "notes.sql"
columns  = { account = "text", note = "text" }

[[projections.notes.apply]]
sql = "INSERT INTO note (account, number) SELECT account, note::bigint FROM events"

[[projections.notes.emit]]
name  = "copy"
topic = "@out@"
sql   = "SELECT _ref, account AS key, jsonb_build_object('account', account) AS payload FROM events"
"#;
pub(crate) const SETUP: (&str, &str) = (
    "notes.sql",
    "CREATE TABLE note (account text, number bigint CHECK (number < 1000))",
);

/// Every line as the object it is.
fn lines(process: &Process) -> Vec<Value> {
    let log = process.log();
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    log.lines().map(line).collect()
}

#[test]
fn where_nobody_reads_along_every_line_is_an_object() {
    let world = World::journal(2);
    let process = world.launch("a").env("TIDEGATE_LOG_FORMAT", "auto").start();
    let sender = world.sender();
    for partition in [0, 1] {
        sender.send_json(partition, &json!({ "account": "a" }));
    }
    sender.flush();
    world.wait_until_done(LONG);
    wait_until(LONG, "a batch is told of", || {
        process.has_logged(&["\"applied\""])
    });
    let all = lines(&process);
    let applied = all
        .iter()
        .find(|line| line["message"] == "applied")
        .unwrap();
    assert_eq!(applied["level"], "DEBUG");
    let span = &applied["span"];
    assert_eq!(span["name"], "batch", "{applied:#}");
    assert_eq!(span["projection"], "journal");
    let partitions = span["partitions"].as_str().unwrap();
    assert!(partitions.contains("]@0..1"), "{partitions}");
    process.stop();
}

// Neither of what cannot be read, nor of what the database quotes in its error, at any level.
#[test]
fn no_log_line_has_what_a_record_says() {
    for on_failure in ["park", "halt"] {
        let mut world = World::new(1, NOTES, &[SETUP]);
        world.change_projections(
            "gate     =",
            &format!("on_failure = \"{on_failure}\"\ngate ="),
        );
        let sender = world.sender();
        let value = |seq: i64, note: &str| {
            json!({ "seq": seq, "account": CANARY, "note": note }).to_string()
        };
        let headers = [("secret", CANARY.as_bytes())];
        let send = |value: String| {
            sender.send_with_headers(0, Some(CANARY.as_bytes()), Some(value.as_bytes()), &headers);
        };
        send(value(1, "7"));
        send(value(2, CANARY));
        send(format!("{{ {CANARY}"));
        send(value(3, "2000"));
        sender.flush();
        let process = world.launch("a").env("TIDEGATE_LOG", "trace").start();
        match on_failure {
            "park" => world.wait_until_done(LONG),
            _ => assert!(
                world.wait_until_halted("notes", 0).contains(CANARY),
                "status says it"
            ),
        }
        let log = process.log();
        assert!(log.contains("22P02"), "the failure is told of: {log}");
        let line = log.lines().find(|line| line.contains(CANARY));
        assert_eq!(line, None, "on_failure = {on_failure}");
        process.stop();
    }
}

// Through gate, outbox and relay to whoever reads the message, and into the batch's span.
#[test]
fn a_message_goes_on_with_the_trace_of_its_record() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let world = World::new(1, NOTES, &[SETUP]);
    let sender = world.sender();
    let send = |account: &str, headers: &[(&str, &[u8])]| {
        let value = json!({ "seq": 1, "account": account, "note": "1" }).to_string();
        sender.send_with_headers(0, Some(account.as_bytes()), Some(value.as_bytes()), headers);
    };
    send(
        "traced",
        &[("traceparent", PARENT.as_bytes()), ("tracestate", b"v=1")],
    );
    send("ce", &[("ce_traceparent", PARENT.as_bytes())]);
    send("plain", &[]);
    send("broken", &[("traceparent", b"00-not-a-trace")]);
    sender.flush();
    let process = world.start("a");
    wait_until(LONG, "all is sent", || world.sent().len() == 4);
    for message in world.sent() {
        let account = message.json()["account"].as_str().unwrap().to_owned();
        let header = |name: &str| {
            let found = message.headers.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| String::from_utf8(value.clone()).unwrap())
        };
        let expected = match &*account {
            "traced" => (Some(PARENT.to_owned()), Some("v=1".to_owned())),
            "ce" => (Some(PARENT.to_owned()), None),
            _ => (None, None),
        };
        assert_eq!(
            (header("traceparent"), header("tracestate")),
            expected,
            "{account}"
        );
    }
    assert!(process.has_logged(&["batch{", "traces=", PARENT]));
    process.stop();
}
