//! `tidegate relay`: the relay without projections, its headers and partitions, and how long it keeps what it sent.

use std::time::{Duration, Instant};

use crate::harness::{LONG, Launch, Process, World, create_topic, delete, wait_until};
use crate::relay_quarantine::{
    Message, emit, passed, quarantine, received, wait_until_nothing_waits, wait_until_passed,
};

/// No projection at all: the relay needs none.
fn world() -> World {
    World::new(1, "", &[])
}

fn relay<'w>(world: &'w World, name: &str, lease: &str) -> Launch<'w> {
    let launch = world.launch(name).relay();
    launch.env("TIDEGATE__RELAY__LEASE", lease)
}

fn keeping(world: &World, keep: &str) -> Process {
    let launch = relay(world, "a", "2s").env("TIDEGATE__OUTBOX__KEEP", keep);
    launch.env("TIDEGATE__RELAY__ATTEMPTS_MAX", 2).start()
}

fn numbers(world: &World, stream: &str) -> Vec<i64> {
    let rows: Vec<(i64,)> = world.db.rows(&format!(
        "SELECT number FROM tidegate.outbox WHERE stream = '{stream}' ORDER BY number"
    ));
    rows.into_iter().map(|(number,)| number).collect()
}

fn some(world: &World, count: usize) -> Vec<Message<'_>> {
    let value = |n: usize| format!("v{n:05}");
    let message = |n: usize| Message::new(world.outgoing(), "k", value(n));
    (0..count).map(message).collect()
}

// I9: another relay goes on when a lease is over, and at once after a clean stop.
#[test]
fn a_relay_that_was_killed_is_replaced_within_its_lease() {
    let world = world();
    emit(&world, "app", &some(&world, 10));
    let mut first = relay(&world, "first", "3s").start();
    wait_until_passed(&world, "app", 10);
    let second = relay(&world, "second", "3s").start();
    second.wait_for_log(LONG, &["running the relay"]);
    first.kill();
    let killed = Instant::now();
    emit(&world, "app", &some(&world, 10));
    wait_until_passed(&world, "app", 20);
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(3 + 4), "{took:?}");
    second.stop();

    let first = relay(&world, "first", "60s").start();
    emit(&world, "app", &some(&world, 10));
    wait_until_passed(&world, "app", 30);
    let second = relay(&world, "second", "60s").start();
    second.wait_for_log(LONG, &["running the relay"]);
    first.stop();
    let stopped = Instant::now();
    emit(&world, "app", &some(&world, 10));
    wait_until_passed(&world, "app", 40);
    let took = stopped.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(received(world.outgoing(), 1)["k"].len(), 40);
    second.stop();
}

// I9: neither a backlog nor long messages of one stream keep another one waiting.
#[test]
fn a_backlog_of_one_stream_keeps_no_other_waiting() {
    let world = world();
    let out = world.outgoing();
    // More than a window of bytes at a time.
    world.db.run(&format!(
        "INSERT INTO tidegate.stream (stream, emitted) VALUES ('busy', 60000);
         INSERT INTO tidegate.outbox (stream, number, id, topic, key, payload, type, source)
         SELECT 'busy', n, gen_random_uuid(), '{out}', 'busy', convert_to(repeat('x', 5000), 'UTF8'), 't', '/app'
         FROM generate_series(1, 60000) n"
    ));
    let process = relay(&world, "a", "2s").start();
    wait_until_passed(&world, "busy", 1);
    emit(&world, "quiet", &some(&world, 10));
    wait_until_passed(&world, "quiet", 10);
    let busy: i64 = world
        .db
        .one("SELECT sent_through FROM tidegate.relay WHERE stream = 'busy'");
    assert!(busy < 60_000, "there is still a backlog");
    process.stop();
}

// I9: a message goes once it was sent and kept for long enough, however late it was committed.
#[test]
fn only_what_was_sent_is_removed() {
    let world = world();
    let out = world.outgoing();
    // Its messages look old as soon as they can be seen.
    let mut late = world.db.session();
    late.run(&format!(
        "BEGIN;
         INSERT INTO tidegate.stream (stream, emitted) VALUES ('late', 5);
         INSERT INTO tidegate.outbox (stream, number, id, topic, key, payload, type, source)
         SELECT 'late', n, gen_random_uuid(), '{out}', 'late', convert_to('v0000' || n, 'UTF8'), 't', '/app'
         FROM generate_series(1, 5) n"
    ));
    emit(&world, "app", &some(&world, 2_500));
    // In quarantine, and so kept; what is behind it is removed.
    let mut messages = vec![Message::new("nowhere", "q", "v")];
    messages.extend(some(&world, 10));
    emit(&world, "quarantine", &messages);
    let process = keeping(&world, "1s");
    wait_until_passed(&world, "app", 2_500);
    wait_until(LONG, "all that was sent is removed", || {
        numbers(&world, "app").is_empty() && numbers(&world, "quarantine") == [1]
    });
    world.tidegate(&["verify"]).expect(0);
    late.run("COMMIT");
    wait_until_passed(&world, "late", 5);
    assert_eq!(received(out, 1)["late"].len(), 5, "sent, old as they were");
    wait_until(LONG, "they are removed too", || {
        numbers(&world, "late").is_empty()
    });
    let discard = [
        "outbox",
        "discard",
        "--stream",
        "quarantine",
        "--number",
        "1",
    ];
    let discard = [&discard[..], &["--why", "a test", "--yes"]].concat();
    world.tidegate(&discard).expect(0);
    wait_until_nothing_waits(&world);
    wait_until(LONG, "what was discarded is removed too", || {
        numbers(&world, "quarantine").is_empty() && quarantine(&world, "quarantine").is_empty()
    });
    process.stop();

    // Old, and not sent: nothing of it goes. What was sent before it is kept for an hour now.
    emit(&world, "app", &some(&world, 20));
    world.db.run(
        "UPDATE tidegate.outbox SET created_at = now() - interval '1 day' WHERE number > 2510",
    );
    world.tidegate(&["verify"]).expect(0);
    assert_eq!(numbers(&world, "app").len(), 20);
    let process = keeping(&world, "1h");
    wait_until_passed(&world, "app", 2_520);
    process.stop();
    assert_eq!(
        numbers(&world, "app").len(),
        20,
        "the young ones stop the walk"
    );
    world.tidegate(&["verify"]).expect(0);

    // The proof notices one that is missing in the middle.
    world
        .db
        .run("DELETE FROM tidegate.outbox WHERE stream = 'app' AND number = 2505");
    world.tidegate(&["verify"]).expect(70);
}

// I9: what stands at a message that cannot be sent is not removed, however old it is.
#[test]
fn what_waits_to_be_sent_is_never_removed() {
    let world = world();
    let mut messages = vec![Message::new("nowhere", "q", "v")];
    messages.extend(some(&world, 10));
    emit(&world, "stands", &messages);
    emit(&world, "goes", &some(&world, 10));
    let process = relay(&world, "a", "2s")
        .env("TIDEGATE__OUTBOX__KEEP", "1s")
        .env("TIDEGATE__RELAY__ATTEMPTS_MAX", 1_000)
        .start();
    wait_until(LONG, "the other stream's are removed", || {
        passed(&world, "goes") == 10 && numbers(&world, "goes").is_empty()
    });
    assert_eq!(numbers(&world, "stands").len(), 11);
    process.stop();
}

#[test]
fn headers_have_the_names_that_were_chosen_and_the_emitters_own_pass_through() {
    let world = world();
    let mark = |stream: &str| {
        emit(&world, stream, &some(&world, 1));
        world.db.run(&format!(
            "UPDATE tidegate.outbox
             SET header_names = '{{traceparent,tracestate,x,x}}',
                 header_values = ARRAY['00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', 'a=b', '1', '\\xff00']::bytea[]
             WHERE stream = '{stream}'"
        ));
    };
    mark("first");
    let process = relay(&world, "a", "2s").start();
    wait_until_passed(&world, "first", 1);
    process.stop();
    mark("second");
    let mut launch = relay(&world, "b", "2s");
    for (header, name) in [
        ("ID", "event-id"),
        ("SPECVERSION", ""),
        ("SOURCE", ""),
        ("TYPE", "kind"),
        ("TIME", ""),
    ] {
        launch = launch.env(&format!("TIDEGATE__RELAY__HEADERS__{header}"), name);
    }
    let process = launch.start();
    wait_until_passed(&world, "second", 1);
    process.stop();

    let sent = world.sent();
    let names: Vec<Vec<&str>> = sent
        .iter()
        .map(|record| record.headers.iter().map(|(name, _)| &**name).collect())
        .collect();
    let own = ["traceparent", "tracestate", "x", "x"];
    let cloud_events = [
        "ce_specversion",
        "ce_id",
        "ce_source",
        "ce_type",
        "ce_time",
        "ce_sequence",
    ];
    assert_eq!(names[0], [&cloud_events[..], &own].concat());
    assert_eq!(
        names[1],
        [&["event-id", "kind", "ce_sequence"][..], &own].concat()
    );
    for record in &sent {
        assert!(record.header("traceparent").starts_with("00-0af7651916cd"));
        assert_eq!(record.header("tracestate"), "a=b");
        assert_eq!(record.headers.last().unwrap().1, b"\xff\0");
    }
}

/// Keys, and their partitions of 1, 3, 12 and 50 by `Utils.toPositive(Utils.murmur2(key))` of the Java client.
fn of_java() -> [(Vec<u8>, [i32; 4]); 5] {
    [
        (b"".to_vec(), [0, 0, 9, 31]),
        (b"a".to_vec(), [0, 1, 4, 24]),
        (b"o-1".to_vec(), [0, 0, 6, 22]),
        (
            b"7c9e6679-7425-40de-944b-e07fc1f90ae7".to_vec(),
            [0, 2, 5, 39],
        ),
        ((0..200).map(|n| n % 10).collect(), [0, 0, 6, 4]),
    ]
}

// I9: a key is in one partition, whoever writes it.
#[test]
fn messages_are_partitioned_as_the_java_client_does() {
    let world = world();
    let topics: Vec<(String, i32)> = [1, 3, 12, 50]
        .map(|partitions| (format!("{}-{partitions}", world.outgoing()), partitions))
        .into();
    let mut messages = Vec::new();
    for (topic, partitions) in &topics {
        create_topic(topic, *partitions);
        for (key, _) in of_java() {
            let key = String::from_utf8(key).unwrap();
            messages.push(Message::new(topic, &key, "v"));
        }
    }
    // Zero bytes do not travel in JSON as text for Postgres.
    for message in &mut messages {
        let key = message.key.take().unwrap();
        message.key = (!key.contains('\0')).then_some(key);
    }
    emit(&world, "app", &messages);
    let long: String = of_java()[4].0.iter().map(|b| format!("{b:02x}")).collect();
    world.db.run(&format!(
        "UPDATE tidegate.outbox SET key = '\\x{long}' WHERE key IS NULL"
    ));
    let process = relay(&world, "a", "2s").start();
    wait_until_passed(&world, "app", 20);
    process.stop();
    for (place, (topic, partitions)) in topics.iter().enumerate() {
        let records = world.kafka.read_log(topic, *partitions);
        assert_eq!(records.len(), 5);
        for (key, expected) in of_java() {
            let found = records
                .iter()
                .find(|record| record.key.as_deref() == Some(&*key));
            assert_eq!(
                found.unwrap().partition,
                expected[place],
                "{key:?} of {partitions}"
            );
        }
        delete(&[topic], &[]);
    }
}

/// Sends every record on, and reads what was sent; the second has an inbox.
const TWO: &str = r#"
[projections.first]
topics  = ["@in@"]
gate    = "none"
columns = { account = "text" }

[[projections.first.apply]]
sql = "SELECT 1 FROM events"

[[projections.first.emit]]
name  = "copy"
topic = "@out@"
sql   = "SELECT _ref, account AS key, jsonb_build_object('account', account) AS payload FROM events"

[projections.second]
topics   = ["@out@"]
gate     = "none"
event_id = "header:ce_id"
setup    = "second.sql"
columns  = { account = "text" }

[[projections.second.apply]]
sql = """
INSERT INTO total AS t (account, messages) SELECT account, count(*) FROM events GROUP BY account
ON CONFLICT (account) DO UPDATE SET messages = t.messages + excluded.messages"""
"#;

const SECOND: &str = "CREATE TABLE total (account text PRIMARY KEY, messages bigint NOT NULL)";

// I9, I4: repeats carry the same id, so that whoever reads the topic drops them.
#[test]
fn behind_a_relay_that_is_killed_fifty_times_every_total_is_exact() {
    const KILLS: u32 = 50;
    let world = World::new(2, TWO, &[("second.sql", SECOND)]);
    let reads = world
        .launch("reads")
        .env("TIDEGATE__RELAY__ENABLED", "false")
        .start();
    let mut stream = world.stream();
    let mut random = world.random();
    for kill in 0..KILLS {
        let before = passed_in_all(&world);
        stream.produce(40);
        let launch = relay(&world, "relay", "200ms");
        match kill % 2 {
            // Sent, and its cursor does not know.
            0 => {
                let mut ended = launch.failpoints("relay-before-cursor=return").start();
                assert_eq!(ended.wait(LONG).code(), None);
            }
            // At any moment.
            _ => {
                let mut process = launch.start();
                wait_until(LONG, "something was sent", || {
                    passed_in_all(&world) > before
                });
                std::thread::sleep(Duration::from_millis(random.u64(..30)));
                process.kill();
            }
        }
    }
    let last = relay(&world, "relay", "200ms").start();
    let count = |sql: &str| -> i64 { world.db.one(sql) };
    let emitted = || count("SELECT coalesce(sum(emitted), 0)::bigint FROM tidegate.stream");
    wait_until(LONG, "everything is sent", || {
        let written = i64::try_from(world.log().len()).unwrap();
        emitted() == written && passed_in_all(&world) == written
    });
    wait_until(LONG, "everything is read", || {
        count("SELECT coalesce(sum(messages), 0)::bigint FROM second.total") >= emitted()
            && world
                .positions()
                .iter()
                .all(|((projection, partition), next)| {
                    projection == "first" || {
                        let ends = world
                            .kafka
                            .end_offsets(world.outgoing(), world.partitions());
                        *next == ends[partition]
                    }
                })
    });
    let wrong = count(
        "SELECT count(*)
         FROM (SELECT convert_from(key, 'UTF8') AS account, count(*) AS messages
               FROM tidegate.outbox GROUP BY key) AS sent
         FULL JOIN second.total t USING (account)
         WHERE sent.messages IS DISTINCT FROM t.messages",
    );
    assert_eq!(wrong, 0);
    let repeats = i64::try_from(world.sent().len()).unwrap() - emitted();
    eprintln!("{repeats} repeats of {} messages", emitted());
    assert!(repeats > 0, "something was sent twice");
    world.tidegate(&["verify"]).expect(0);
    last.stop();
    reads.stop();
}

fn passed_in_all(world: &World) -> i64 {
    world
        .db
        .one("SELECT coalesce(sum(sent_through), 0)::bigint FROM tidegate.relay")
}
