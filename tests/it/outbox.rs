//! Messages of applications: emitted in transactions of their own, numbered when those commit.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use serde_json::json;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use tidegate::Outbox;
use tidegate::projection::Message;
use tidegate::types::Header;

use crate::harness::{LONG, LogRecord, Session, World, block_on, unique, wait_until};
use crate::relay::assert_sent;

/// Wraps statements so that an error's text begins with its SQLSTATE.
fn with_sqlstate(call: &str) -> String {
    format!(
        "DO $do$ BEGIN PERFORM {call};
         EXCEPTION WHEN OTHERS THEN RAISE EXCEPTION '% %', SQLSTATE, SQLERRM; END $do$"
    )
}

/// The error of a call, with its SQLSTATE.
#[track_caller]
fn refusal(session: &mut Session, call: &str) -> String {
    match session.try_run(&with_sqlstate(call)) {
        Ok(()) => panic!("{call} is not refused"),
        Err(error) => error,
    }
}

/// A session that waits for no lock for ever.
fn session(world: &World) -> Session {
    let mut session = world.db.session();
    session.run("SET lock_timeout = '30s'");
    session
}

/// Emits a message of one key, so of one stream.
fn emit(world: &World, what: &str) -> String {
    let topic = match world.outgoing() {
        "" => "t",
        topic => topic,
    };
    format!(r#"SELECT tidegate.emit('{topic}', 'key', '{{"what": "{what}"}}')"#)
}

/// What is in the outbox, in the order of its numbers.
fn emitted(world: &World) -> Vec<String> {
    let messages = world.outbox().into_values().flatten();
    let what = messages.map(|message| message.payload["what"].as_str().unwrap().to_owned());
    what.collect()
}

fn waits_for_a_lock(world: &World, query: &str) -> bool {
    world.db.one(&format!(
        "SELECT count(*) > 0 FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock' AND query = '{query}'"
    ))
}

/// An account whose events are numbered under its row's lock.
const ACCOUNTS: &str = "
    CREATE TABLE account (name text PRIMARY KEY, events bigint NOT NULL);
    INSERT INTO account SELECT 'a-' || n, 0 FROM generate_series(1, 12) n";

/// Transactions of one service. Accounts are locked in one order, as services do; messages come in another one.
fn be_a_service(world: &World, number: u64, committed: &Mutex<Vec<String>>) {
    let mut random = fastrand::Rng::with_seed(world.seed ^ number);
    let mut session = session(world);
    session.run("SET deadlock_timeout = '100ms'");
    for round in 0..40 {
        let mut accounts: Vec<u32> = (0..random.usize(1..4))
            .map(|_| random.u32(1..=12))
            .collect();
        accounts.sort_unstable();
        accounts.dedup();
        session.run("BEGIN");
        let mut events: Vec<(String, i64)> = Vec::new();
        for account in accounts {
            let name = format!("a-{account}");
            let event: i64 = session.one(&format!(
                "UPDATE account SET events = events + 1 WHERE name = '{name}' RETURNING events"
            ));
            events.push((name, event));
        }
        random.shuffle(&mut events);
        // Nobody has locked these keys before.
        events.push((format!("free-{}", random.u32(0..30)), 0));
        let mut ids: Vec<String> = Vec::new();
        for (key, event) in events {
            let emit = |event: i64| {
                let payload = json!({ "event": event, "round": round, "service": number });
                format!(
                    "SELECT tidegate.emit('{}', '{key}', '{payload}')::text",
                    world.outgoing()
                )
            };
            if random.u32(0..3) == 0 {
                session.run("SAVEPOINT s");
                session.one::<String>(&emit(-1));
                session.run("ROLLBACK TO SAVEPOINT s");
            }
            ids.push(session.one(&emit(event)));
        }
        if random.u32(0..5) == 0 {
            session.run("ROLLBACK");
        } else {
            session.run("COMMIT");
            committed.lock().unwrap().append(&mut ids);
        }
    }
}

/// The events of each account, in the order of `keys_and_payloads`.
fn events<'a>(
    keys_and_payloads: impl Iterator<Item = (&'a str, serde_json::Value)>,
) -> BTreeMap<String, Vec<i64>> {
    let mut events: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (key, payload) in keys_and_payloads.filter(|(key, _)| key.starts_with("a-")) {
        let event = payload["event"].as_i64().unwrap();
        events.entry(key.to_owned()).or_default().push(event);
    }
    events
}

// I9: many services at once, with rollbacks and savepoints, over the same keys in different orders: nobody
// deadlocks, numbers are dense, and each key's messages are in the order in which its transactions committed, in the
// outbox and in Kafka.
#[test]
fn messages_of_many_services_are_dense_and_in_the_order_of_their_commits() {
    let world = World::journal(3);
    world.db.run(ACCOUNTS);
    let process = world.start("a");
    let committed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..8 {
            let (world, committed) = (&world, &committed);
            scope.spawn(move || be_a_service(world, number, committed));
        }
    });
    let outbox = world.outbox();
    let mut stored: Vec<String> = Vec::new();
    for (stream, messages) in &outbox {
        assert!(stream.starts_with("application/"), "{stream}");
        stored.extend(messages.iter().map(|message| message.id.to_string()));
    }
    stored.sort_unstable();
    let mut committed = committed.into_inner().unwrap();
    committed.sort_unstable();
    assert_eq!(
        stored, committed,
        "what has committed, once, and nothing else"
    );

    let expected: BTreeMap<String, Vec<i64>> = world
        .db
        .rows("SELECT name, events FROM account WHERE events > 0")
        .into_iter()
        .map(|(name, events): (String, i64)| (name, (1..=events).collect()))
        .collect();
    let messages = outbox.values().flatten();
    let in_outbox = messages.map(|message| (&*message.key, message.payload.clone()));
    assert_eq!(events(in_outbox), expected);

    assert_eq!(assert_sent(&world), 0, "each is sent once");
    let sent = world.sent();
    let key = |record: &LogRecord| String::from_utf8(record.key.clone().unwrap()).unwrap();
    let keys: Vec<String> = sent.iter().map(key).collect();
    let in_kafka = keys
        .iter()
        .map(String::as_str)
        .zip(sent.iter().map(LogRecord::json));
    assert_eq!(events(in_kafka), expected);

    let left: i64 = world.db.one("SELECT count(*) FROM tidegate.pending");
    assert_eq!(left, 0);
    world.tidegate(&["verify"]).expect(0);
    process.stop();
}

// I9: a message is never behind the cursor when it becomes visible: who commits first is first, whoever came first.
#[test]
fn a_message_of_a_transaction_that_commits_later_is_not_skipped() {
    let world = World::journal(1);
    let _process = world.start("a");
    let (mut early, mut late) = (session(&world), session(&world));
    early.run("BEGIN");
    early.run(&emit(&world, "early"));
    late.run(&format!("BEGIN; {}; ROLLBACK", emit(&world, "never")));
    late.run(&format!("BEGIN; {}; COMMIT", emit(&world, "late")));
    wait_until(LONG, "the later one is sent", || world.sent().len() == 1);
    early.run("COMMIT");
    assert_eq!(assert_sent(&world), 0);
    let sent = world.sent().into_iter();
    let sent: Vec<_> = sent.map(|record| record.json()["what"].clone()).collect();
    assert_eq!(sent, ["late", "early"]);
}

// I9: the order of transaction ids, or of the first statements, is not that of the commits.
#[test]
fn messages_about_a_locked_row_are_in_the_order_of_its_lock() {
    let world = World::without_kafka();
    world.db.run(ACCOUNTS);
    let lock = "SELECT FROM account WHERE name = 'a-1' FOR UPDATE";
    let (mut first, mut second) = (session(&world), session(&world));
    first.run("BEGIN");
    let of_first: i64 = first.one("SELECT pg_current_xact_id()::text::bigint");
    second.run("BEGIN");
    let of_second: i64 = second.one("SELECT pg_current_xact_id()::text::bigint");
    assert!(of_first < of_second);
    second.run(lock);
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            first.run(lock);
            first.run(&emit(&world, "second"));
            first.run("COMMIT");
        });
        wait_until(LONG, "it waits", || {
            waits_for_a_lock(&world, &lock.replace('\'', "''"))
        });
        second.run(&emit(&world, "first"));
        second.run("COMMIT");
        waits.join().unwrap();
    });
    assert_eq!(emitted(&world), ["first", "second"]);
}

// I9: who has a number keeps all others of its stream waiting, and takes it along when it rolls back.
#[test]
fn a_number_that_is_rolled_back_leaves_no_gap() {
    let world = World::without_kafka();
    let (mut first, mut second) = (session(&world), session(&world));
    first.run("BEGIN");
    first.run(&emit(&world, "never"));
    first.run("SET CONSTRAINTS ALL IMMEDIATE");
    first.run(&emit(&world, "never, numbered at once"));
    let numbered: i64 = first.one("SELECT count(*) FROM tidegate.outbox");
    assert_eq!(numbered, 2);
    second.run("BEGIN");
    second.run(&emit(&world, "kept"));
    thread::scope(|scope| {
        let commits = scope.spawn(|| second.run("COMMIT"));
        wait_until(LONG, "it waits", || waits_for_a_lock(&world, "COMMIT"));
        first.run("ROLLBACK");
        commits.join().unwrap();
    });
    assert_eq!(emitted(&world), ["kept"]);
}

#[test]
fn a_savepoint_of_an_application_takes_its_messages_along() {
    let world = World::without_kafka();
    let mut session = session(&world);
    let emit = |what| emit(&world, what);
    session.run("BEGIN");
    session.run(&emit("1"));
    session.run("SAVEPOINT outer_one");
    session.run(&emit("never"));
    session.run("SAVEPOINT inner_one");
    session.run(&emit("never"));
    session.run("RELEASE inner_one; ROLLBACK TO outer_one");
    session.run(&emit("2"));
    session.run("SAVEPOINT kept");
    session.run(&emit("3"));
    session.run("RELEASE kept; COMMIT");
    assert_eq!(emitted(&world), ["1", "2", "3"]);
    // Triggers are off for a session like this one, but not this trigger.
    session.run("SET session_replication_role = replica");
    session.run(&emit("4"));
    assert_eq!(emitted(&world), ["1", "2", "3", "4"]);
}

// What the documentation says of these isolation levels: 40001, as for any row that others change, and again.
#[test]
fn a_repeatable_read_transaction_that_another_one_overtakes_is_tried_again() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let world = World::without_kafka();
        world.db.run(&emit(&world, "0"));
        let mut session = session(&world);
        let begin = format!("BEGIN ISOLATION LEVEL {level}; {}", emit(&world, "2"));
        session.run(&begin);
        world.db.run(&emit(&world, "1"));
        let error = session.try_run("COMMIT").unwrap_err();
        assert!(error.contains("could not serialize access"), "{error}");
        session.run(&begin);
        session.run("COMMIT");
        assert_eq!(emitted(&world), ["0", "1", "2"], "{level}");
    }
}

// A service's role needs to see the schema and to call the functions, and can do no more.
#[test]
fn a_service_that_may_call_the_functions_may_do_nothing_else() {
    let world = World::without_kafka();
    let role = format!("it_{}", unique());
    let mut session = session(&world);
    session.run(&format!(
        "CREATE ROLE {role}; GRANT USAGE ON SCHEMA tidegate TO {role}"
    ));
    session.run(&format!("SET ROLE {role}"));
    let denied = session.try_run(&emit(&world, "never")).unwrap_err();
    assert!(
        denied.contains("permission denied for function emit"),
        "{denied}"
    );
    session.run(&format!(
        "RESET ROLE;
         GRANT EXECUTE ON FUNCTION tidegate.emit, tidegate.emit_bytes TO {role};
         SET ROLE {role}"
    ));
    session.run(&emit(&world, "1"));
    session.run(&format!(
        "BEGIN; {}; SET CONSTRAINTS ALL IMMEDIATE; COMMIT",
        emit(&world, "2")
    ));
    session.run("SELECT tidegate.emit_bytes('t', '\\xff', '\\x00')");
    for statement in [
        "SELECT FROM tidegate.outbox",
        "SELECT FROM tidegate.pending",
        "DELETE FROM tidegate.stream",
        "SELECT tidegate.emit_message('t', NULL, NULL, NULL, NULL, NULL, NULL, false)",
    ] {
        let denied = session.try_run(statement).unwrap_err();
        assert!(
            denied.contains("permission denied"),
            "{statement}: {denied}"
        );
    }
    session.run(&format!(
        "RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}"
    ));
    let stored: i64 = world.db.one("SELECT count(*) FROM tidegate.outbox");
    assert_eq!(stored, 3);
}

#[test]
fn what_cannot_be_sent_is_refused_where_it_is_emitted() {
    let world = World::without_kafka();
    let mut session = session(&world);
    let long_topic = format!("'{}', 'k', '1'", "t".repeat(250));
    for (arguments, code, says) in [
        ("NULL, 'k', '1'", "22004", "the topic is null"),
        ("'', 'k', '1'", "22023", "`` cannot name a topic"),
        ("'..', 'k', '1'", "22023", "`..` cannot name a topic"),
        ("'^a', 'k', '1'", "22023", "`^a` cannot name a topic"),
        ("E'a\n', 'k', '1'", "22023", "cannot name a topic"),
        ("'ä', 'k', '1'", "22023", "`ä` cannot name a topic"),
        (&long_topic, "22023", "cannot name a topic"),
        (
            "'t', 'k', '1', partition => -1",
            "22023",
            "partition -1 is negative",
        ),
        ("'t', 'k', '1', '3'", "22023", "headers are 3"),
        ("'t', 'k', '1', '[\"a\"]'", "22023", "`\"a\"` is no header"),
        ("'t', 'k', '1', '[[\"a\"]]'", "22023", "is no header"),
        ("'t', 'k', '1', '[[1, \"a\"]]'", "22023", "is no header"),
        (
            "'t', 'k', '1', '{\"a\": 1}'",
            "22023",
            "header `a` is no string",
        ),
        (
            "'t', 'k', '1', '{\"a\": [\"base64\"]}'",
            "22023",
            "header `a` is no string",
        ),
        (
            "'t', 'k', '1', '{\"a\": {\"base64\": 1}}'",
            "22023",
            "header `a` is no string",
        ),
        (
            "'t', 'k', '1', '{\"a\": {\"base64\": \"\", \"b\": 1}}'",
            "22023",
            "header `a` is no string",
        ),
        (
            "'t', 'k', '1', '{\"a\": {\"base64\": \"?\"}}'",
            "22023",
            "header `a`: invalid symbol",
        ),
        (
            "'t', 'k', '1', '{\"ce_id\": \"1\"}'",
            "22023",
            "header `ce_id` is set by tidegate",
        ),
    ] {
        let error = refusal(&mut session, &format!("tidegate.emit({arguments})"));
        assert!(
            error.contains(&format!("{code} tidegate.emit: ")),
            "{arguments}: {error}"
        );
        assert!(error.contains(says), "{arguments}: {error}");
    }

    // Everything that a service can make longer counts, as for projections.
    let sized = |payload: i32| {
        format!(
            "tidegate.emit_bytes('t', 'kkk', convert_to(repeat('p', {payload}), 'UTF8'),
                                 '{{\"name\": \"value\", \"null\": null}}', type => 'type')"
        )
    };
    let others = 3 + 4 + (4 + 5 + 6) + (4 + 6);
    session.run(&format!("SELECT {}", sized(1_000_000 - others)));
    let error = refusal(&mut session, &sized(1_000_001 - others));
    assert!(
        error.contains("54000 tidegate.emit: the message has 1000001 bytes"),
        "{error}"
    );
}

// I5: an id that a service gives is in the outbox once; a repeated call is told so.
#[test]
fn an_id_of_a_service_is_emitted_once() {
    let world = World::without_kafka();
    let mut session = session(&world);
    let id = uuid::Uuid::new_v4();
    let call = format!("tidegate.emit('t', 'k', '1', id => '{id}')");
    let given: uuid::Uuid = session.one(&format!("SELECT {call}"));
    assert_eq!(given, id);
    let error = refusal(&mut session, &call);
    assert!(error.contains("23505 tidegate.emit: message"), "{error}");
    let twice = uuid::Uuid::new_v4();
    let call = format!("SELECT tidegate.emit('t', 'k', '1', id => '{twice}')");
    let error = session
        .try_run(&format!("BEGIN; {call}; {call}; COMMIT"))
        .unwrap_err();
    assert!(error.contains("a_message_is_emitted_once"), "{error}");
    session.run("ROLLBACK");
    assert_eq!(emitted_ids(&world), [id]);
}

fn emitted_ids(world: &World) -> Vec<uuid::Uuid> {
    let messages = world.outbox().into_values().flatten();
    messages.map(|message| message.id).collect()
}

/// A projection whose table has a trigger that emits as if it were an application.
const TRIGGERED: &str = r#"
[projections.triggered]
topics  = ["@in@"]
gate    = "none"
setup   = "triggered.sql"
columns = { account = "text" }

[[projections.triggered.apply]]
sql = "INSERT INTO seen SELECT account FROM events"
"#;

const TRIGGERED_SETUP: &str = "
CREATE TABLE seen (account text);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tidegate.emit('out', NEW.account, '{}');
    RETURN NULL;
END $$;
CREATE TRIGGER tell AFTER INSERT ON seen FOR EACH ROW EXECUTE FUNCTION tell();";

// I5: what is emitted so below a projection has no identity, and every replay would send it again.
#[test]
fn an_application_message_below_a_projection_halts_it() {
    let world = World::new(1, TRIGGERED, &[("triggered.sql", TRIGGERED_SETUP)]);
    let sender = world.sender();
    sender.send_json(0, &json!({ "account": "a" }));
    sender.flush();
    let _process = world.start("a");
    let cause = world.wait_until_halted("triggered", 0);
    for words in [
        "a projection is being applied here",
        "25001",
        "Context::emit",
    ] {
        assert!(cause.contains(words), "{words:?} in {cause:?}");
    }
    assert_eq!(world.positions()[&("triggered".to_owned(), 0)], 0);
    assert!(world.outbox().is_empty());
}

fn header(name: &str, value: Option<&[u8]>) -> Header {
    Header {
        name: name.to_owned(),
        value: value.map(<[u8]>::to_vec),
    }
}

// From Rust: bytes, names that come twice, tombstones, and all or nothing with the service's own effects.
#[test]
#[allow(clippy::disallowed_methods, reason = "as a service does it")]
fn a_service_in_rust_emits_in_its_own_transaction() {
    let world = World::journal(3);
    world.db.run("CREATE TABLE effect (n integer)");
    let message = |payload: Option<&[u8]>| Message {
        topic: world.outgoing().to_owned(),
        key: Some(b"\xffkey".to_vec()),
        payload: payload.map(<[u8]>::to_vec),
        kind: "thing.done".to_owned(),
        headers: vec![
            header("twice", Some(b"1")),
            header("none", None),
            header("bytes", Some(&[0, 255, b'"'].repeat(40))),
            header("twice", Some(b"")),
        ],
        partition: None,
    };
    let options: PgConnectOptions = world.db.url().parse().unwrap();
    let ids = block_on(async {
        let mut connection = options.connect().await.unwrap();
        let mut tx = connection.begin().await.unwrap();
        sqlx::query("INSERT INTO effect VALUES (1)")
            .execute(&mut *tx)
            .await
            .unwrap();
        Outbox::emit(&mut tx, message(Some(b"never")))
            .await
            .unwrap();
        tx.rollback().await.unwrap();

        let mut tx = connection.begin().await.unwrap();
        sqlx::query("INSERT INTO effect VALUES (2)")
            .execute(&mut *tx)
            .await
            .unwrap();
        let first = Outbox::emit(&mut tx, message(Some(b"\0\xff")))
            .await
            .unwrap();
        let second = Outbox::emit(&mut tx, message(None)).await.unwrap();
        tx.commit().await.unwrap();

        let plain = Message {
            topic: String::new(),
            ..Message::default()
        };
        let error = Outbox::emit(&mut connection, plain).await.unwrap_err();
        let code = error
            .as_database_error()
            .unwrap()
            .code()
            .unwrap()
            .into_owned();
        assert_eq!(code, "22023", "{error}");
        [first, second]
    });
    let effects: i64 = world.db.one("SELECT sum(n) FROM effect");
    assert_eq!(effects, 2);

    let process = world.start("a");
    wait_until(LONG, "both are sent", || world.sent().len() == 2);
    let sent = world.sent();
    for (record, (id, number)) in sent.iter().zip(ids.iter().zip(["1", "2"])) {
        assert_eq!(record.key.as_deref(), Some(&b"\xffkey"[..]));
        assert_eq!(record.header("ce_id"), id.to_string());
        assert_eq!(record.header("ce_sequence"), number);
        assert_eq!(record.header("ce_type"), "thing.done");
        assert_eq!(record.header("ce_source"), "/tidegate/application");
        let own = record
            .headers
            .iter()
            .filter(|(name, _)| !name.starts_with("ce_"));
        let own: Vec<(&str, &[u8])> = own.map(|(name, value)| (&**name, &**value)).collect();
        let bytes = [0, 255, b'"'].repeat(40);
        let expected: [(&str, &[u8]); 4] = [
            ("twice", b"1"),
            ("none", b""),
            ("bytes", &bytes),
            ("twice", b""),
        ];
        assert_eq!(own, expected);
    }
    assert_eq!(sent[0].value.as_deref(), Some(&b"\0\xff"[..]));
    assert_eq!(sent[1].value, None, "a tombstone");
    process.stop();
}

/// Sends what a message can be, from SQL.
const SPELLED: &str = r#"
[projections.spelled]
topics  = ["@in@"]
gate    = "none"
columns = { account = "text", state = "text" }

[[projections.spelled.apply]]
sql = "SELECT 1 FROM events"

[[projections.spelled.emit]]
name  = "copy"
topic = "@out@"
sql   = """
SELECT _ref, account AS key, CASE WHEN state <> 'gone' THEN jsonb_build_object('state', state) END AS payload,
       jsonb_build_array(jsonb_build_array('twice', '1'), jsonb_build_array('none', NULL),
                         jsonb_build_array('bytes', jsonb_build_object('base64', encode(convert_to(repeat(state, 30), 'UTF8'), 'base64'))),
                         jsonb_build_array('twice', state)) AS headers,
       CASE state WHEN 'fixed' THEN 2 WHEN 'impossible' THEN -1 END AS partition
FROM events"""
"#;

// A projection's message says all that a record of Kafka can.
#[test]
fn a_statement_sends_tombstones_repeated_headers_and_bytes() {
    let world = World::new(3, SPELLED, &[]);
    let sender = world.sender();
    for state in ["new", "fixed", "gone", "impossible"] {
        sender.send_json(0, &json!({ "account": "a", "state": state }));
    }
    sender.flush();
    let process = world.start("a");
    wait_until(LONG, "three are sent", || world.sent().len() == 3);
    let mut sent = world.sent();
    sent.sort_by_key(|record| record.header("ce_sequence").to_owned());
    for (record, state) in sent.iter().zip(["new", "fixed", "gone"]) {
        let own = record
            .headers
            .iter()
            .filter(|(name, _)| !name.starts_with("ce_"));
        let own: Vec<(&str, &[u8])> = own.map(|(name, value)| (&**name, &**value)).collect();
        let bytes = state.repeat(30);
        let mut expected: Vec<(&str, &[u8])> = vec![
            ("twice", b"1"),
            ("none", b""),
            ("bytes", bytes.as_bytes()),
            ("twice", state.as_bytes()),
        ];
        if state == "gone" {
            assert_eq!(record.value, None, "a tombstone");
        } else {
            assert_eq!(record.json(), json!({ "state": state }));
            expected.insert(0, ("content-type", b"application/json"));
        }
        assert_eq!(own, expected);
    }
    assert_eq!(sent[1].partition, 2, "not where its key would lead");
    assert_eq!(sent[0].partition, sent[2].partition);
    assert_ne!(sent[0].partition, 2);
    let partitions: Vec<(Option<i32>,)> = world
        .db
        .rows("SELECT partition FROM tidegate.outbox ORDER BY number");
    assert_eq!(partitions, [(None,), (Some(2),), (None,)]);
    let parked: Vec<(i64, String)> = world
        .db
        .rows("SELECT record_offset, detail FROM tidegate.dead_letter");
    assert_eq!(parked.len(), 1, "{parked:?}");
    assert_eq!(parked[0].0, 3);
    assert!(
        parked[0]
            .1
            .contains("emit `copy`: partition -1 is negative"),
        "{parked:?}"
    );
    process.stop();
}

// I5: a seed runs again at every reset.
#[test]
fn a_seed_cannot_emit_for_an_application() {
    let projection = r#"
[projections.p]
topics = ["@in@"]
gate   = "none"
seed   = "seed.sql"
apply  = [{ sql = "SELECT 1 FROM events" }]
"#;
    let seed = "SELECT tidegate.emit('out', 'k', '{}')";
    let world = World::new(1, projection, &[("seed.sql", seed)]);
    let refused = world.tidegate(&["check"]).expect(78);
    let why = "every rebuild would send this message again";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
}
