//! A message that can never be sent steps aside with those behind it, and everything else goes on.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::harness::{
    LONG, MockBroker, Process, World, create_topic, delete, read_log, set_topic, unique, wait_until,
};

/// A message that an application puts in the outbox.
pub(crate) struct Message<'m> {
    pub(crate) topic: &'m str,
    pub(crate) key: Option<String>,
    pub(crate) value: String,
    pub(crate) partition: Option<i32>,
}

impl<'m> Message<'m> {
    pub(crate) fn new(topic: &'m str, key: &str, value: impl Into<String>) -> Self {
        Self {
            topic,
            key: Some(key.to_owned()),
            value: value.into(),
            partition: None,
        }
    }
}

/// Puts messages in a stream of the outbox, as `outbox_insert.sql` does, in one transaction.
pub(crate) fn emit(world: &World, stream: &str, messages: &[Message<'_>]) {
    let json: Vec<Value> = messages
        .iter()
        .map(|m| serde_json::json!([m.topic, m.key, m.value, m.partition]))
        .collect();
    world.db.run(&format!(
        "WITH message AS (
             SELECT row_number() OVER () AS place, count(*) OVER () AS count, m
             FROM jsonb_array_elements($emit${}$emit$) AS m
         ),
         counter AS (
             INSERT INTO tidegate.stream AS s (stream, emitted) VALUES ('{stream}', {count})
             ON CONFLICT (stream) DO UPDATE SET emitted = s.emitted + excluded.emitted
             RETURNING emitted
         )
         INSERT INTO tidegate.outbox (stream, number, id, topic, key, payload, partition, type, source)
         SELECT '{stream}', emitted - count + place, gen_random_uuid(), m ->> 0, convert_to(m ->> 1, 'UTF8'),
                convert_to(m ->> 2, 'UTF8'), (m ->> 3)::integer, 't', '/app'
         FROM counter, message",
        Value::Array(json),
        count = messages.len(),
    ));
}

/// Releases everything that waits.
pub(crate) fn release(world: &World) {
    world.tidegate(&["outbox", "release", "--all"]).expect(0);
}

/// What is in quarantine of a stream: number, reason, state.
pub(crate) fn quarantine(world: &World, stream: &str) -> Vec<(i64, String, String)> {
    world.db.rows(&format!(
        "SELECT number, reason, state FROM tidegate.quarantine WHERE stream = '{stream}' ORDER BY number"
    ))
}

fn row(number: i64, reason: &str, state: &str) -> (i64, String, String) {
    (number, reason.to_owned(), state.to_owned())
}

pub(crate) fn passed(world: &World, stream: &str) -> i64 {
    world.db.one(&format!(
        "SELECT coalesce(max(sent_through), 0) FROM tidegate.relay WHERE stream = '{stream}'"
    ))
}

#[track_caller]
pub(crate) fn wait_until_passed(world: &World, stream: &str, number: i64) {
    wait_until(LONG, "the cursor is there", || {
        passed(world, stream) >= number
    });
}

#[track_caller]
pub(crate) fn wait_until_nothing_waits(world: &World) {
    wait_until(LONG, "nothing is in quarantine", || {
        world.db.one(
            "SELECT count(*) = 0 FROM tidegate.quarantine WHERE state IN ('waiting', 'released')",
        )
    });
}

/// What each key got in a topic, without repeats, in order.
pub(crate) fn received(topic: &str, partitions: i32) -> BTreeMap<String, Vec<String>> {
    let mut received: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut ids = Vec::new();
    for record in read_log(topic, partitions) {
        let id = record.header("ce_id").to_owned();
        if ids.contains(&id) {
            continue;
        }
        ids.push(id);
        let key = String::from_utf8(record.key.unwrap_or_default()).unwrap();
        let value = String::from_utf8(record.value.unwrap_or_default()).unwrap();
        let short: String = value.chars().take(6).collect();
        received.entry(key).or_default().push(short);
    }
    received
}

/// Text that is not compressed: a broker's limit is for what is.
fn noise(world: &World, length: usize) -> String {
    let mut random = world.random();
    (0..length).map(|_| random.alphanumeric()).collect()
}

fn start(world: &World, attempts_max: u32) -> Process {
    let launch = world.launch("a").env("TIDEGATE__RELAY__LEASE", "1s");
    let attempts = ("TIDEGATE__RELAY__ATTEMPTS_MAX", attempts_max);
    launch.env(attempts.0, attempts.1).start()
}

// I9, I10: only the message itself and those of its key step aside; what travelled with it has no part in it.
#[test]
fn a_message_that_is_too_large_waits_with_those_of_its_key_and_no_other() {
    let world = World::journal(1);
    let out = world.outgoing();
    set_topic(out, "max.message.bytes", "30000");
    let value = |n: usize| match n {
        7 => format!("v00007{}", noise(&world, 100_000)),
        n => format!("v{n:05}"),
    };
    let keys = ["k0", "k1", "k2", "k3", "k4"];
    let messages: Vec<Message<'_>> = (0..30)
        .map(|n| Message::new(out, keys[n % 5], value(n)))
        .collect();
    emit(&world, "guilty", &messages);
    let others: Vec<Message<'_>> = (0..50)
        .map(|n| Message::new(out, "other", format!("v{n:05}")))
        .collect();
    emit(&world, "a stream before it", &others);
    // All of it travels together, and one attempt is enough to be to blame.
    let process = start(&world, 1);
    wait_until_passed(&world, "guilty", 30);
    wait_until_passed(&world, "a stream before it", 50);
    let waiting: Vec<_> = [(8, "too_large"), (13, "behind"), (18, "behind")]
        .into_iter()
        .chain([(23, "behind"), (28, "behind")])
        .map(|(number, reason)| row(number, reason, "waiting"))
        .collect();
    assert_eq!(quarantine(&world, "guilty"), waiting);
    assert!(quarantine(&world, "a stream before it").is_empty());
    let of = |keep: fn(usize) -> bool, count: usize| -> Vec<String> {
        let kept = (0..count).filter(|n| keep(*n));
        kept.map(|n| format!("v{n:05}")).collect()
    };
    let sent = received(out, 1);
    assert_eq!(sent["other"], of(|_| true, 50));
    assert_eq!(sent["k0"], of(|n| n % 5 == 0, 30));
    assert_eq!(sent["k1"], of(|n| n % 5 == 1, 30));
    assert_eq!(sent["k2"], ["v00002"]);
    world.tidegate(&["verify"]).expect(0);
    // librdkafka calls it fatal; nobody is needed for anything but the message.
    assert!(!process.log().contains("ERROR"), "{}", process.log());

    // What is emitted meanwhile waits too.
    emit(&world, "guilty", &[Message::new(out, "k2", "v00032")]);
    wait_until_passed(&world, "guilty", 31);
    assert_eq!(quarantine(&world, "guilty").len(), 6);
    // Released too early, it goes back, and all behind it.
    release(&world);
    wait_until(LONG, "it was tried again", || {
        world
            .db
            .one("SELECT attempts = 2 FROM tidegate.quarantine WHERE number = 8")
    });
    emit(&world, "guilty", &[Message::new(out, "k3", "v00033")]);
    wait_until_passed(&world, "guilty", 32);
    let states = quarantine(&world, "guilty");
    assert!(
        states.iter().all(|(_, _, state)| state == "waiting"),
        "{states:?}"
    );
    assert_eq!(received(out, 1)["k2"], ["v00002"]);

    set_topic(out, "max.message.bytes", "1000000");
    release(&world);
    emit(&world, "guilty", &[Message::new(out, "k2", "v00037")]);
    wait_until_passed(&world, "guilty", 33);
    wait_until_nothing_waits(&world);
    let mut k2 = of(|n| n % 5 == 2, 33);
    k2.push("v00037".to_owned());
    assert_eq!(received(out, 1)["k2"], k2);
    let states = quarantine(&world, "guilty");
    assert!(states.iter().all(|(_, _, state)| state == "sent"));
    world.tidegate(&["verify"]).expect(0);
    process.stop();
}

// I9, I10: a topic may come later; until it is given up its stream stands, and no other.
#[test]
fn an_unknown_topic_holds_up_neither_other_topics_nor_other_streams() {
    let world = World::journal(1);
    let (out, missing) = (world.outgoing(), format!("it-{}-late", unique()));
    let mut messages = Vec::new();
    for n in 0..10 {
        messages.push(Message::new(&missing, &format!("k{n}"), format!("l{n:05}")));
        messages.push(Message::new(out, "k", format!("v{n:05}")));
    }
    emit(&world, "app", &messages);
    emit(&world, "other", &[Message::new(out, "other", "v00000")]);
    let process = start(&world, 1_000);
    wait_until_passed(&world, "other", 1);
    let attempts = || -> (i32, String) {
        let mut rows = world
            .db
            .rows("SELECT attempts, last_error FROM tidegate.relay WHERE stream = 'app'");
        rows.remove(0)
    };
    wait_until(LONG, "it was tried", || attempts().0 >= 2);
    assert!(attempts().1.contains(&missing), "{:?}", attempts());
    assert_eq!(passed(&world, "app"), 0);
    process.stop();

    // The next relay goes on with the attempts of the one before.
    let tried = attempts().0;
    assert!(tried >= 2);
    let process = start(&world, 3);
    wait_until_passed(&world, "app", 20);
    let states = quarantine(&world, "app");
    let expected: Vec<_> = (1..=20)
        .step_by(2)
        .map(|number| match number {
            1 => row(number, "unknown_topic", "waiting"),
            _ => row(number, "behind", "waiting"),
        })
        .collect();
    assert_eq!(states, expected);
    let total: i32 = world
        .db
        .one("SELECT attempts FROM tidegate.quarantine WHERE number = 1");
    assert!(total > tried.min(3) - 1 && total >= 3, "{total} of {tried}");
    assert_eq!(received(out, 1)["k"].len(), 10);

    create_topic(&missing, 2);
    release(&world);
    wait_until_nothing_waits(&world);
    let late = received(&missing, 2);
    assert_eq!(late.len(), 10);
    assert!(late.values().all(|values| values.len() == 1));
    world.tidegate(&["verify"]).expect(0);
    process.stop();
    delete(&[&missing], &[]);
}

// I9: a chosen partition is where a message goes, and one that its topic does not have is its own fault.
#[test]
fn a_message_goes_to_the_partition_that_was_chosen_for_it() {
    let world = World::journal(3);
    let out = world.outgoing();
    let to = |partition: i32, key: Option<&str>| Message {
        topic: out,
        key: key.map(str::to_owned),
        value: format!("p{partition}"),
        partition: Some(partition),
    };
    let messages = [
        to(2, Some("a")),
        to(0, Some("a")),
        to(3, None),
        to(1, Some("a")),
    ];
    emit(&world, "app", &messages);
    let process = start(&world, 2);
    wait_until_passed(&world, "app", 4);
    assert_eq!(quarantine(&world, "app"), [row(3, "refused", "waiting")]);
    let detail: String = world.db.one("SELECT detail FROM tidegate.quarantine");
    assert!(detail.contains("no partition 3"), "{detail}");
    for record in world.sent() {
        let value = String::from_utf8(record.value.unwrap()).unwrap();
        assert_eq!(value, format!("p{}", record.partition));
    }
    // Without a key nothing waits behind it.
    let holds: bool = world
        .db
        .one("SELECT holds IS NULL FROM tidegate.quarantine");
    assert!(holds);
    process.stop();
}

// I9, I10: no permission is the topic's fault; an outage nobody's.
#[test]
fn a_topic_that_may_not_be_written_to_is_set_aside_with_all_its_messages() {
    let world = World::journal(1);
    let (out, secret) = (world.outgoing(), "secret");
    let broker = MockBroker::with_topics(&[world.incoming(), out, secret], 1);
    broker.refuse_permission(secret);
    let messages = [
        Message::new(secret, "a", "1"),
        Message::new(out, "a", "2"),
        Message::new(secret, "b", "3"),
    ];
    emit(&world, "app", &messages);
    let servers = broker.bootstrap_servers();
    let process = world
        .launch("a")
        .env("TIDEGATE__KAFKA__BOOTSTRAP_SERVERS", servers)
        .env("TIDEGATE__RELAY__ATTEMPTS_MAX", 2)
        .start();
    wait_until_passed(&world, "app", 3);
    let expected = [
        row(1, "no_permission", "waiting"),
        row(3, "behind", "waiting"),
    ];
    assert_eq!(quarantine(&world, "app"), expected);
    broker.fall_silent();
    emit(&world, "app", &[Message::new("another", "a", "4")]);
    process.wait_for_log(LONG, &["relay: the broker does not answer"]);
    let attempts: i32 = world
        .db
        .one("SELECT attempts FROM tidegate.relay WHERE stream = 'app'");
    assert_eq!((attempts, passed(&world, "app")), (0, 3));
    process.stop();
}
