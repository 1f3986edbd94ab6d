//! What is parked may be sent to a topic too.

use std::collections::BTreeSet;

use serde_json::json;

use crate::harness::{
    LONG, LogRecord, World, configure_topic, create_topic, delete, read_log, wait_until,
};
use crate::relay_quarantine::release;

const PROJECTIONS: &str = r#"
[projections.score]
topics   = ["@in@"]
entity   = "key"
sequence = "/seq"
gate     = "newest"
dead_letter_topic = "@in@-dead"
setup    = "score.sql"
columns  = { account = "text", amount = "bigint" }

[[projections.score.apply]]
sql = """
INSERT INTO score (account, amount) SELECT account, max(100 / amount) FROM events GROUP BY account
ON CONFLICT (account) DO UPDATE SET amount = excluded.amount"""

[[projections.score.emit]]
name  = "copy"
topic = "@out@"
sql   = "SELECT _ref, account AS key, jsonb_build_object('amount', amount) AS payload FROM events"
"#;

const SETUP: &str = "CREATE TABLE score (account text PRIMARY KEY, amount bigint NOT NULL)";

/// The topic that letters go to. It has one partition, whatever the projection reads.
struct Dead(String);

impl Dead {
    fn of(world: &World) -> Self {
        let topic = format!("{}-dead", world.incoming());
        create_topic(&topic, 1);
        Self(topic)
    }

    /// The messages, once each: the relay may repeat one.
    fn messages(&self) -> Vec<LogRecord> {
        let mut ids = BTreeSet::new();
        let mut messages = read_log(&self.0, 1);
        messages.retain(|message| ids.insert(message.header("ce_id").to_owned()));
        messages
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        delete(&[&self.0], &[]);
    }
}

fn score(partitions: i32) -> (World, Dead) {
    let world = World::new(partitions, PROJECTIONS, &[("score.sql", SETUP)]);
    let dead = Dead::of(&world);
    (world, dead)
}

fn letters_in_outbox(world: &World) -> i64 {
    world
        .db
        .one("SELECT count(*) FROM tidegate.outbox WHERE type = 'tidegate.dead_letter'")
}

// I1, I5: with its bytes, once over crashes, redrives and replays, to whatever partition its key belongs.
#[test]
fn what_is_parked_is_sent_once_with_its_bytes_and_its_reason() {
    let (world, dead) = score(3);
    let sender = world.sender();
    let bytes = b"\0\0\0\0\x01\xff";
    let headers: [(&str, &[u8]); 4] = [
        ("k", b"1"),
        ("k", b"2"),
        ("bin", b"\xff\0"),
        ("ce_id", b"theirs"),
    ];
    sender.send_with_headers(2, Some(b"\0\xff"), Some(bytes), &headers);
    for (seq, amount) in [(1, 0), (2, 5)] {
        sender.send_json(
            2,
            &json!({ "account": "bad", "seq": seq, "amount": amount }),
        );
        sender.send_json(0, &json!({ "account": "good", "seq": seq, "amount": 5 }));
    }
    sender.flush();
    for failpoint in [
        "apply-before-commit=1*off->return",
        "apply-after-commit=return",
    ] {
        let launch = world.launch("a").comes_back().batch_records_max(2);
        let mut process = launch.failpoints(failpoint).start();
        process.wait(LONG);
    }
    let process = world.launch("a").comes_back().start();
    world.wait_until_done(LONG);
    assert_eq!(letters_in_outbox(&world), 3);
    wait_until(LONG, "they are sent", || dead.messages().len() == 3);

    let messages = dead.messages();
    let of_bytes = messages
        .iter()
        .find(|m| m.value.as_deref() == Some(bytes))
        .unwrap();
    assert_eq!(of_bytes.key.as_deref(), Some(&b"\0\xff"[..]));
    assert_eq!(of_bytes.header("ce_type"), "tidegate.dead_letter");
    assert_eq!(of_bytes.header("tidegate_reason"), "undecodable");
    let place = |offset: i64| format!("{}/2@{offset}", world.incoming());
    assert_eq!(of_bytes.header("tidegate_record"), place(0));
    assert!(
        of_bytes
            .header("tidegate_detail")
            .contains("not a JSON object"),
        "{of_bytes:?}"
    );
    let theirs: Vec<(&str, &[u8])> = of_bytes
        .headers
        .iter()
        .filter(|(name, _)| !name.starts_with("ce_") && !name.starts_with("tidegate_"))
        .map(|(name, value)| (name.as_str(), value.as_slice()))
        .collect();
    assert_eq!(theirs, headers[..3], "in their order");
    let reasons: Vec<(&str, &str)> = messages
        .iter()
        .filter(|m| m.key.as_deref() == Some(b"bad"))
        .map(|m| (m.header("tidegate_record"), m.header("tidegate_reason")))
        .collect();
    let (first, second) = (place(1), place(2));
    assert_eq!(reasons, [(&*first, "database"), (&*second, "behind")]);

    // However often it fails again, and when the log is read again.
    for _ in 0..20 {
        world
            .tidegate(&["dead-letters", "redrive", "score"])
            .expect(70);
    }
    let attempts: i32 = world
        .db
        .one("SELECT max(attempts) FROM tidegate.dead_letter");
    assert_eq!(attempts, 21);
    world
        .tidegate(&["reset", "score", "--to", "earliest", "--yes"])
        .expect(0);
    wait_until(LONG, "they are parked again", || {
        world
            .db
            .one("SELECT count(*) = 6 FROM tidegate.dead_letter")
    });
    world.wait_until_done(LONG);
    assert_eq!(letters_in_outbox(&world), 3);
    // A record that comes later is a new one.
    sender.send_json(2, &json!({ "account": "worse", "seq": 1, "amount": 0 }));
    sender.flush();
    wait_until(LONG, "it is sent", || dead.messages().len() == 4);
    world.tidegate(&["verify"]).expect(0);
    process.stop();
}

// I9: a letter that is too large for a message goes without what does not fit, and a topic that takes none of them
// holds up no other message.
#[test]
fn a_letter_that_is_too_large_goes_without_its_value() {
    let (world, dead) = score(1);
    let sender = world.sender();
    let large = vec![b'x'; 999_950];
    sender.send(0, Some(b"large"), Some(&large));
    sender.flush();
    let process = world.start("a");
    wait_until(LONG, "it is sent", || dead.messages().len() == 1);
    let message = dead.messages().remove(0);
    assert_eq!(
        (message.key.as_deref(), &message.value),
        (Some(&b"large"[..]), &None)
    );
    assert_eq!(message.header("tidegate_truncated"), "value");
    let kept: i32 = world
        .db
        .one("SELECT length(value) FROM tidegate.dead_letter");
    assert_eq!(kept, 999_950, "the letter itself has no limit");

    configure_topic(&dead.0, &[("max.message.bytes", "1000")]);
    // Of bytes that cannot be compressed.
    let mut random = world.random();
    let noise: Vec<u8> = (0..990).map(|_| random.u8(..)).collect();
    sender.send(0, Some(b"large"), Some(&noise));
    sender.flush();
    let waits = || -> i64 {
        world.db.one(
            "SELECT count(*) FROM tidegate.quarantine
             WHERE stream LIKE '%/dead-letters' AND reason = 'too_large' AND state = 'waiting'",
        )
    };
    wait_until(LONG, "the letter waits in quarantine", || waits() == 1);
    for seq in 1..50 {
        sender.send_json(0, &json!({ "account": "good", "seq": seq, "amount": 5 }));
    }
    sender.flush();
    wait_until(LONG, "all other messages are sent", || {
        let sent = world.sent();
        let ids: BTreeSet<&str> = sent.iter().map(|message| message.header("ce_id")).collect();
        ids.len() == 49
    });
    configure_topic(&dead.0, &[("max.message.bytes", "1000000")]);
    release(&world);
    wait_until(LONG, "the letter is sent", || dead.messages().len() == 2);
    process.stop();
}
