//! Several types of event in one topic, CloudEvents, and change events of a table.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::harness::{LONG, Sender, World, wait_until};

/// A number that is set, or added to: the order of the two is all that matters.
const NUMBERS: &str = r#"
[projections.number]
topics   = ["@in@"]
entity   = "/id"
sequence = "/seq"
gate     = "newest"
type     = "header:kind"
types    = ["set", "add", "note"]
setup    = "number.sql"
columns  = { id = "text", value = { type = "bigint", default = 1 } }

[[projections.number.apply]]
types = ["set"]
sql = """
INSERT INTO number (id, value) SELECT id, value FROM latest
ON CONFLICT (id) DO UPDATE SET value = excluded.value"""

[[projections.number.apply]]
types = ["add"]
sql = """
INSERT INTO number AS n (id, value) SELECT id, sum(value) FROM events GROUP BY id
ON CONFLICT (id) DO UPDATE SET value = n.value + excluded.value"""

[[projections.number.apply]]
sql = """
INSERT INTO seen AS s (kind, events) SELECT _type, count(*) FROM events GROUP BY 1 ORDER BY 1
ON CONFLICT (kind) DO UPDATE SET events = s.events + excluded.events"""

[[projections.number.emit]]
name  = "was_set"
topic = "@out@"
types = ["set"]
sql   = "SELECT _ref, id AS key, jsonb_build_object('to', value) AS payload FROM events"
"#;

const NUMBER_TABLES: &str = "
CREATE TABLE number (id text PRIMARY KEY, value bigint NOT NULL);
CREATE TABLE seen (kind text PRIMARY KEY, events bigint NOT NULL)";

fn typed(sender: &Sender, kind: &str, event: &Value) {
    let headers = [("kind", kind.as_bytes())];
    let event = event.to_string();
    sender.send_with_headers(0, None, Some(event.as_bytes()), &headers);
}

// I4, I6: an entity's events reach their statements in the order in which they came, whatever the batch.
#[test]
fn events_of_several_types_reach_their_statements_in_order() {
    let world = World::new(1, NUMBERS, &[("number.sql", NUMBER_TABLES)]);
    world.tidegate(&["check"]).expect(0);
    let sender = world.sender();
    let mut random = world.random();
    let mut numbers: BTreeMap<String, i64> = BTreeMap::new();
    let (mut seen, mut set) = (BTreeMap::new(), 0_i64);
    for seq in 1..=2_000_i64 {
        let id = format!("n-{}", random.u8(..7));
        let number = numbers.entry(id.clone()).or_default();
        let value = random.i64(-50..50);
        let kind = ["set", "add", "add", "note"][random.usize(..4)];
        let mut event = json!({"id": id, "seq": seq});
        if kind != "note" && value != 0 {
            event["value"] = json!(value);
        }
        // What is not said is one.
        let value = if value == 0 { 1 } else { value };
        match kind {
            "set" => (*number, set) = (value, set + 1),
            "add" => *number += value,
            _ => {}
        }
        *seen.entry(kind.to_owned()).or_insert(0_i64) += 1;
        typed(&sender, kind, &event);
    }
    sender.flush();
    let _process = world.launch("a").batch_records_max(300).start();
    world.wait_until_done(LONG);
    let found: Vec<(String, i64)> = world.db.rows("SELECT id, value FROM number.number");
    let found: BTreeMap<String, i64> = found.into_iter().collect();
    numbers.retain(|id, _| found.contains_key(id));
    assert_eq!(found, numbers);
    let counted: Vec<(String, i64)> = world.db.rows("SELECT kind, events FROM number.seen");
    assert_eq!(counted.into_iter().collect::<BTreeMap<_, _>>(), seen);
    let messages: i64 = world.db.one("SELECT count(*) FROM tidegate.outbox");
    assert_eq!(messages, set);
}

// I10: nobody has said what an unknown type means; nothing is skipped until somebody does.
#[test]
fn an_unknown_type_halts_with_its_name_until_it_is_said_what_it_means() {
    let mut world = World::new(1, NUMBERS, &[("number.sql", NUMBER_TABLES)]);
    let sender = world.sender();
    typed(&sender, "set", &json!({"id": "a", "seq": 1, "value": 5}));
    typed(&sender, "double", &json!({"id": "a", "seq": 2}));
    typed(&sender, "add", &json!({"id": "a", "seq": 3}));
    typed(&sender, "add", &json!({"id": "b", "seq": 1}));
    sender.flush();
    let process = world.start("a");
    let cause = world.wait_until_halted("number", 0);
    assert!(
        cause
            .contains("offset 1: type (header `kind`): `double` is none that the projection knows"),
        "{cause}"
    );
    assert_eq!(world.parked(), 0);
    process.stop();

    world.change_projections("gate     =", "unknown_type = \"park\"\ngate     =");
    let process = world.start("b");
    world.wait_until_done(LONG);
    // What follows of its entity waits behind it.
    let letters: Vec<(i64, String)> = world
        .db
        .rows("SELECT record_offset, reason FROM tidegate.dead_letter ORDER BY record_offset");
    let letter = |offset: i64, reason: &str| (offset, reason.to_owned());
    assert_eq!(letters, [letter(1, "undecodable"), letter(2, "behind")]);
    process.stop();

    world.change_projections("unknown_type = \"park\"", "unknown_type = \"filter\"");
    world
        .tidegate(&["dead-letters", "redrive", "number"])
        .expect(0);
    let numbers: Vec<(String, i64)> = world
        .db
        .rows("SELECT id, value FROM number.number ORDER BY id");
    assert_eq!(numbers, [("a".to_owned(), 6), ("b".to_owned(), 1)]);
    world.tidegate(&["verify"]).expect(0);
}

/// As another service would read what the first projection sends.
const CHAIN: &str = r#"
[projections.source]
topics   = ["@in@"]
gate     = "none"
setup    = "none.sql"
columns  = { id = "text", value = "bigint" }

[[projections.source.apply]]
sql = "INSERT INTO source (id) SELECT id FROM events"

[[projections.source.emit]]
name  = "told"
topic = "@out@"
sql   = "SELECT _ref, id AS key, jsonb_build_object('value', value) AS payload FROM events"

[projections.reader]
topics   = ["@out@"]
format   = "cloudevents"
gate     = "none"
event_id = "ce:id"
type     = "ce:type"
types    = ["told"]
setup    = "reader.sql"

[projections.reader.columns]
of       = { type = "text", from = "key" }
value    = "bigint"
kind     = { type = "text", from = "ce:type" }
stream   = { type = "text", from = "ce:source" }
number   = { type = "bigint", from = "ce:sequence" }
at       = { type = "timestamptz", from = "ce:time" }

[[projections.reader.apply]]
sql = "INSERT INTO told (of, value, kind, stream, number, at) SELECT of, value, kind, stream, number, at FROM events"
"#;

// I5: what Tidegate sends is what Tidegate reads, each message once, however often it is sent.
#[test]
fn messages_of_one_projection_are_the_cloud_events_of_another() {
    let tables = "CREATE TABLE told (of text, value bigint, kind text, stream text, number bigint, at timestamptz)";
    let files = [
        ("none.sql", "CREATE TABLE source (id text)"),
        ("reader.sql", tables),
    ];
    let world = World::new(1, CHAIN, &files);
    world.tidegate(&["check"]).expect(0);
    let sender = world.sender();
    for value in 0..100 {
        sender.send_json(
            0,
            &json!({"id": format!("k-{}", value % 5), "value": value}),
        );
    }
    sender.flush();
    let _process = world.start("a");
    wait_until(LONG, "its table is there", || {
        world
            .db
            .one("SELECT to_regclass('reader.told') IS NOT NULL")
    });
    let told = || world.db.one::<i64>("SELECT count(*) FROM reader.told");
    wait_until(LONG, "all of it was told", || told() == 100);
    let good: i64 = world.db.one(
        "SELECT count(*) FROM reader.told WHERE of = 'k-' || value % 5 AND kind = 'told' AND stream = '/tidegate/source'
         AND number = value + 1 AND at > now() - interval '1 hour'",
    );
    assert_eq!(good, 100);
    // As a relay does that has forgotten that it had sent them; once more as one event in the value.
    let again = world.kafka.sender(world.outgoing());
    for record in world.sent().iter().take(10) {
        let headers: Vec<(&str, &[u8])> = [
            "ce_specversion",
            "ce_id",
            "ce_source",
            "ce_type",
            "ce_time",
            "ce_sequence",
            "content-type",
        ]
        .iter()
        .map(|name| (*name, record.header(name).as_bytes()))
        .collect();
        let payload = record.json().to_string();
        again.send_with_headers(0, Some(b"k"), Some(payload.as_bytes()), &headers);
        let whole = json!({
            "specversion": "1.0", "id": record.header("ce_id"), "source": record.header("ce_source"), "type": "told",
            "sequence": "1", "time": "2026-01-31T09:30:00Z", "data": record.json(),
        });
        let structured = [("content-type", &b"application/cloudevents+json"[..])];
        again.send_with_headers(
            0,
            Some(b"k"),
            Some(whole.to_string().as_bytes()),
            &structured,
        );
    }
    again.flush();
    wait_until(LONG, "the repeats are dropped", || {
        world.db.one::<i64>(
            "SELECT sum(duplicate)::bigint FROM tidegate.position WHERE projection = 'reader'",
        ) == 20
    });
    assert_eq!((told(), world.parked()), (100, 0));
}

/// A table, and what has become of it.
const MIRROR: &str = r#"
[projections.customers]
topics   = ["@in@"]
format   = "debezium"
entity   = "/id"
gate     = "newest"
setup    = "customers.sql"

[projections.customers.columns]
id      = "bigint"
name    = "text"
credit  = { type = "numeric", nullable = true }
since   = { type = "timestamptz", unit = "micros" }
born    = { type = "date", unit = "days", nullable = true }

[[projections.customers.apply]]
sql = """
INSERT INTO customer (id, name, credit, since, born)
SELECT id, name, credit, since, born FROM latest WHERE _type <> 'd'
ON CONFLICT (id) DO UPDATE SET name = excluded.name, credit = excluded.credit, since = excluded.since, born = excluded.born"""

[[projections.customers.apply]]
sql = "DELETE FROM customer WHERE id IN (SELECT id FROM latest WHERE _type = 'd')"
"#;

pub(crate) const MIRROR_TABLE: &str = "
CREATE TABLE customer (id bigint PRIMARY KEY, name text NOT NULL, credit numeric, since timestamptz NOT NULL, born date)";

/// The customers as `id name credit since born`.
fn customers(world: &World) -> Vec<String> {
    world.db.rows(
        "SELECT concat_ws(' ', id, name, coalesce(credit::text, '-'), to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US'),
             coalesce(born::text, '-'))
         FROM customers.customer ORDER BY id",
    ).into_iter().map(|(row,): (String,)| row).collect()
}

fn row(id: i64, name: &str, credit: &Value, since: i64, born: &Value) -> Value {
    json!({"id": id, "name": name, "credit": credit, "since": since, "born": born})
}

/// A change event as Debezium writes it; in an envelope with its schema, or without.
fn change(op: &str, lsn: i64, before: &Value, after: &Value, with_schema: bool) -> Value {
    let snapshot = if op == "r" { "true" } else { "false" };
    let event = json!({
        "before": before, "after": after,
        "source": {"version": "3.6.1.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1_769_851_800_000_i64,
            "snapshot": snapshot, "db": "shop", "sequence": format!("[null,\"{lsn}\"]"), "schema": "public",
            "table": "customers", "txId": 771, "lsn": lsn, "xmin": null},
        "transaction": {"id": "771:1", "total_order": 1, "data_collection_order": 1},
        "op": op, "ts_ms": 1_769_851_800_001_i64,
    });
    match with_schema {
        true => {
            json!({"schema": {"type": "struct", "name": "shop.public.customers.Envelope", "fields": []}, "payload": event})
        }
        false => event,
    }
}

// I4, I6: a snapshot, then changes, some of them again: the rows are those of the table.
#[test]
fn a_table_is_mirrored_from_its_change_events() {
    for with_schema in [false, true] {
        let world = World::new(1, MIRROR, &[("customers.sql", MIRROR_TABLE)]);
        world.tidegate(&["check"]).expect(0);
        let sender = world.sender();
        let none = Value::Null;
        let send = |id: i64, event: Option<&Value>| {
            let key = json!({ "id": id }).to_string();
            let event = event.map(Value::to_string);
            sender.send(
                0,
                Some(key.as_bytes()),
                event.as_ref().map(String::as_bytes),
            );
        };
        let anna = |name: &str, credit: &Value| row(1, name, credit, -1, &json!(-719_162));
        let bert = row(2, "Bert", &none, 1_769_851_800_123_456, &none);
        let carl = row(3, "Carl", &json!("12.50"), 0, &json!(0));
        let event = |op: &str, lsn, before: &Value, after: &Value| {
            change(op, lsn, before, after, with_schema)
        };
        // All of a snapshot have the position at which it was taken.
        send(1, Some(&event("r", 100, &none, &anna("Ann", &none))));
        send(2, Some(&event("r", 100, &none, &bert)));
        send(
            1,
            Some(&event(
                "u",
                140,
                &anna("Ann", &none),
                &anna("Anna", &json!("0.10")),
            )),
        );
        send(3, Some(&event("c", 150, &none, &carl)));
        send(
            2,
            Some(&event(
                "d",
                160,
                &json!({"id": 2, "name": null, "since": null}),
                &none,
            )),
        );
        send(2, None);
        // The connector begins once more where it had been before.
        send(
            1,
            Some(&event(
                "u",
                140,
                &anna("Ann", &none),
                &anna("Anna", &json!("0.10")),
            )),
        );
        send(2, Some(&event("d", 160, &bert, &none)));
        send(2, None);
        let again = row(2, "Bertha", &none, 5, &none);
        send(2, Some(&event("c", 170, &none, &again)));
        sender.flush();
        let process = world.start("a");
        world.wait_until_done(LONG);
        let expected = [
            "1 Anna 0.10 1969-12-31 23:59:59.999999 0001-01-01",
            "2 Bertha - 1970-01-01 00:00:00.000005 -",
            "3 Carl 12.50 1970-01-01 00:00:00.000000 1970-01-01",
        ];
        assert_eq!(customers(&world), expected, "with a schema: {with_schema}");
        assert_eq!(world.parked(), 0);
        let totals: (i64, i64, i64) = world
            .db
            .rows("SELECT applied, stale, filtered FROM tidegate.position")[0];
        assert_eq!(totals, (6, 2, 2));

        // Emptied at the source: no event says which rows are gone.
        send(0, Some(&event("t", 180, &none, &none)));
        sender.flush();
        let cause = world.wait_until_halted("customers", 0);
        assert!(
            cause.contains("type (`envelope:/op`): `t` is none that the projection knows"),
            "{cause}"
        );
        assert_eq!(customers(&world).len(), 3);
        process.stop();
        world.tidegate(&["verify"]).expect(0);
    }
}

/// The schema of the same change events in Avro, as Debezium registers it, but for what nobody reads.
pub(crate) const ENVELOPE: &str = r#"{"type": "record", "name": "Envelope", "namespace": "shop.public.customers", "fields": [
    {"name": "before", "type": ["null", {"type": "record", "name": "Value", "fields": [
        {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]},
        {"name": "credit", "type": ["null", {"type": "bytes", "scale": 2, "precision": 12, "logicalType": "decimal"}], "default": null},
        {"name": "since", "type": ["null", {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"}]},
        {"name": "born", "type": ["null", {"type": "int", "connect.version": 1, "connect.name": "io.debezium.time.Date"}], "default": null}]}],
        "default": null},
    {"name": "after", "type": ["null", "Value"], "default": null},
    {"name": "source", "type": {"type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql", "fields": [
        {"name": "snapshot", "type": ["string", "null"]}, {"name": "lsn", "type": ["null", "long"], "default": null}]}},
    {"name": "op", "type": "string"}, {"name": "ts_ms", "type": ["null", "long"], "default": null}]}"#;

#[test]
fn a_table_is_mirrored_from_its_change_events_in_avro() {
    let projections = MIRROR.replace(
        "format   = \"debezium\"",
        "format   = \"debezium\"\nschema   = \"envelope.avsc\"\nframing  = \"raw\"",
    );
    let files = [("customers.sql", MIRROR_TABLE), ("envelope.avsc", ENVELOPE)];
    let world = World::new(1, &projections, &files);
    world.tidegate(&["check"]).expect(0);
    let row = |id: u8, name: &str, credit: &[u8], rest: &[u8]| {
        let name = [&[2, u8::try_from(name.len() * 2).unwrap()], name.as_bytes()].concat();
        let credit = match credit {
            [] => vec![0],
            credit => [&[2, u8::try_from(credit.len() * 2).unwrap()], credit].concat(),
        };
        [&[id * 2][..], &name, &credit, rest].concat()
    };
    // One microsecond before 1970; born in the year 1.
    let rest = b"\x02\x01\x02\xf3\xe4\x57";
    let change = |op: &str, lsn: u8, before: &[u8], after: &[u8]| {
        let side = |row: &[u8]| match row {
            [] => vec![0],
            row => [&[2], row].concat(),
        };
        let source = [&[0, 8][..], b"true", &[2, lsn * 2]].concat();
        [
            &side(before)[..],
            &side(after),
            &source,
            &[2],
            op.as_bytes(),
            &[0],
        ]
        .concat()
    };
    let sender = world.sender();
    let (anna, bert) = (row(1, "Anna", b"\xff", rest), row(2, "Bert", b"", rest));
    sender.send(0, Some(b"\x02"), Some(&change("r", 10, b"", &anna)));
    sender.send(0, Some(b"\x04"), Some(&change("c", 20, b"", &bert)));
    // Of what is gone Postgres logs the key.
    let gone = row(2, "", b"", b"\0\0");
    let gone = [&gone[..1], b"\0", &gone[3..]].concat();
    sender.send(0, Some(b"\x04"), Some(&change("d", 30, &gone, b"")));
    sender.send(0, Some(b"\x04"), None);
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    let letters: Vec<(String,)> = world.db.rows("SELECT detail FROM tidegate.dead_letter");
    assert_eq!(letters, []);
    assert_eq!(
        customers(&world),
        ["1 Anna -0.01 1969-12-31 23:59:59.999999 0001-01-01"]
    );
}

// The projections' own tests write what their format is.
#[test]
fn tests_of_projections_are_written_in_json_whatever_the_format() {
    let projections = MIRROR.replace(
        "format   = \"debezium\"",
        "format   = \"debezium\"\nschema   = \"envelope.avsc\"\nframing  = \"raw\"",
    );
    let files = [("customers.sql", MIRROR_TABLE), ("envelope.avsc", ENVELOPE)];
    let world = World::new(1, &projections, &files);
    let test = r#"
[[test]]
name = "a customer is renamed"
projection = "customers"
given = [
  { value = { op = "r", source = { snapshot = "true", lsn = 1 }, after = { id = 1, name = "Ann", since = 5, credit = "1.5" } } },
  { value = { op = "u", source = { snapshot = "false", lsn = 2 }, after = { id = 1, name = "Anna", since = 5 } } },
  { key = "x", tombstone = true },
]
then.tables.customer = [{ id = 1, name = "Anna" }]
"#;
    let path = world.folder().join("customers.test.toml");
    fs::write(&path, test).unwrap();
    let path = path.to_str().unwrap();
    world.tidegate(&["test", path]).expect(0);
    fs::write(path, test.replace("lsn = 2", "lsn = \"2\"")).unwrap();
    let wrong = world.tidegate(&["test", path]).expect(78).stderr;
    assert!(
        wrong.contains("test \"a customer is renamed\", event 2: /source/lsn: a string is no long"),
        "{wrong}"
    );
}

/// The same for the captured table, which has more columns.
const CAPTURED: &str = r#"
[projections.customers]
topics   = ["@in@"]
format   = "debezium"
entity   = "/id"
gate     = "newest"
setup    = "customers.sql"

[projections.customers.columns]
id      = "bigint"
name    = "text"
credit  = { type = "numeric", nullable = true }
since   = { type = "timestamp", unit = "micros" }
born    = { type = "date", unit = "days", nullable = true }
seen    = { type = "timestamptz", nullable = true }
note    = { type = "text", nullable = true }

[[projections.customers.apply]]
sql = """
INSERT INTO customer (id, name, credit, since, born, note)
SELECT id, name, credit, since, born, note::jsonb FROM latest WHERE _type <> 'd'
ON CONFLICT (id) DO UPDATE SET name = excluded.name, credit = excluded.credit, since = excluded.since, born = excluded.born, note = excluded.note"""

[[projections.customers.apply]]
sql = "DELETE FROM customer WHERE id IN (SELECT id FROM latest WHERE _type = 'd')"
"#;

// I4, I6: events that Debezium has captured from a real Postgres, a snapshot first; all of them once more, as after a restart of
// the connector that had not stored how far it was. See tests/fixtures/debezium.
#[test]
fn what_debezium_has_captured_comes_to_the_rows_of_the_table() {
    let fixture = |name: &str| {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/debezium");
        fs::read_to_string(folder.join(name)).unwrap()
    };
    let table = "CREATE TABLE customer (id bigint PRIMARY KEY, name text NOT NULL, credit numeric, since timestamp NOT NULL,
                     born date, note jsonb)";
    let events = fixture("events.tsv");
    assert_eq!(events.lines().count(), 12);
    for batch in [1, 100] {
        let world = World::new(1, CAPTURED, &[("customers.sql", table)]);
        let sender = world.sender();
        for line in events.lines().chain(events.lines()) {
            let (key, value) = line.split_once('\t').unwrap();
            let value = (value != "null").then_some(value.as_bytes());
            sender.send(0, Some(key.as_bytes()), value);
        }
        sender.flush();
        let _process = world.launch("a").batch_records_max(batch).start();
        world.wait_until_done(LONG);
        assert_eq!(world.parked(), 0);
        let found: Value = world.db.one(
            "SELECT json_agg(json_build_object('id', id, 'name', name, 'credit', credit::text, 'since',
                 to_char(since, 'YYYY-MM-DD HH24:MI:SS.US'), 'born', born::text, 'note', note) ORDER BY id) FROM customers.customer",
        );
        let expected: Value = serde_json::from_str(&fixture("rows.json")).unwrap();
        assert_eq!(found, expected, "batches of {batch}");
        world.tidegate(&["verify"]).expect(0);
    }
}
