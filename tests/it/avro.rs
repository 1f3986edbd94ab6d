//! Values in Avro, and the schemas that a registry knows: what a value becomes.

use apache_avro::types::Value as AvroValue;
use serde_json::{Value, json};

use crate::harness::{LONG, SchemaRegistry, World, wait_until};

const PROJECTIONS: &str = r#"
[projections.score]
topics   = ["@in@"]
format   = "avro"
schema   = "score.avsc"
entity   = "/account"
sequence = "/seq"
gate     = "newest"
setup    = "score.sql"
columns  = { account = "text", note = { type = "text", nullable = true } }

[[projections.score.apply]]
sql = """
INSERT INTO score (account, seq, note) SELECT account, _sequence, note FROM latest
ON CONFLICT (account) DO UPDATE SET seq = excluded.seq, note = excluded.note"""
"#;

const SETUP: &str = "CREATE TABLE score (account text PRIMARY KEY, seq bigint NOT NULL, note text)";

pub(crate) const SCORE: &str = r#"{"type": "record", "name": "Score", "fields": [
    {"name": "account", "type": "string"}, {"name": "seq", "type": "long"},
    {"name": "note", "type": ["null", "string"], "default": null}]}"#;

/// As it was before there were notes, and with a field that nobody reads any more.
pub(crate) const OLD_SCORE: &str = r#"{"type": "record", "name": "Score", "fields": [
    {"name": "seq", "type": "int"}, {"name": "gone", "type": {"type": "array", "items": "string"}},
    {"name": "account", "type": "string"}]}"#;

/// A datum as the library writes it, behind Confluent's frame.
pub(crate) fn framed(id: u32, schema: &str, value: &Value) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(id.to_be_bytes());
    bytes.extend(written(schema, value));
    bytes
}

fn written(schema: &str, value: &Value) -> Vec<u8> {
    let schema = apache_avro::Schema::parse_str(schema).unwrap();
    let value = AvroValue::try_from(value.clone())
        .unwrap()
        .resolve(&schema)
        .unwrap();
    let writer = apache_avro::writer::datum::GenericDatumWriter::builder(&schema)
        .build()
        .unwrap();
    writer.write_value_to_vec(value).unwrap()
}

pub(crate) fn score(account: &str, seq: i64, note: &str) -> Value {
    json!({"account": account, "seq": seq, "note": note})
}

/// The projection, and the registry it asks, which knows the id 1.
pub(crate) fn world(partitions: i32, settings: &str) -> (World, SchemaRegistry) {
    let registry = SchemaRegistry::start();
    registry.register(1, SCORE);
    let settings = format!(
        "[schema_registry]\nurl = \"{}\"\ntimeout = \"300ms\"\n{settings}\n{PROJECTIONS}",
        registry.url()
    );
    let files = [("score.sql", SETUP), ("score.avsc", SCORE)];
    (World::new(partitions, &settings, &files), registry)
}

pub(crate) fn scores(world: &World) -> Vec<(String, i64, Option<String>)> {
    world
        .db
        .rows("SELECT account, seq, note FROM score.score ORDER BY account")
}

pub(crate) fn letters(world: &World) -> Vec<(i64, String, String)> {
    world.db.rows(
        "SELECT record_offset, reason, detail FROM tidegate.dead_letter ORDER BY record_offset",
    )
}

// I6: values of several schemas in one topic, of which each is asked for once.
#[test]
fn what_was_written_with_older_schemas_is_read_by_the_projections() {
    let (world, registry) = world(2, "");
    registry.register(7, OLD_SCORE);
    let sender = world.sender();
    for seq in 1..200_i64 {
        let old = json!({"seq": seq, "gone": ["a", "b"], "account": "old"});
        sender.send(0, None, Some(&framed(7, OLD_SCORE, &old)));
        sender.send(1, None, Some(&framed(1, SCORE, &score("new", seq, "x"))));
        sender.send(0, None, Some(&framed(1, SCORE, &score("both", seq, "y"))));
    }
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    let row =
        |account: &str, note: Option<&str>| (account.to_owned(), 199, note.map(str::to_owned));
    let expected = [
        row("both", Some("y")),
        row("new", Some("x")),
        row("old", None),
    ];
    assert_eq!(scores(&world), expected);
    assert_eq!((registry.asked_for(1), registry.asked_for(7)), (1, 1));
    let remembered: i64 = world
        .db
        .one("SELECT count(*) FROM tidegate.registry_schema");
    assert_eq!(remembered, 2);
    world.tidegate(&["verify"]).expect(0);
}

// I6, I10: whatever the bytes are, one record is parked, with what is wrong with it; the registry is not asked for nonsense.
#[test]
fn bytes_that_are_no_avro_are_parked_with_what_is_wrong() {
    let (world, registry) = world(1, "");
    let good = framed(1, SCORE, &score("a", 1, "x"));
    let cut = &good[..good.len() - 1];
    let more = [&good[..], b"\0"].concat();
    let values: [(&[u8], &str); 8] = [
        (
            br#"{"account": "a"}"#,
            "it begins with the byte 0x7b, not with the zero byte before a schema id; it looks like JSON",
        ),
        (b"", "the value is empty"),
        (
            b"\0",
            "the value has 1 bytes; a zero byte and a schema id alone are five",
        ),
        (b"\0\0\0\x01", "the value has 4 bytes"),
        (
            b"\0\0\0\0\x01",
            "not what schema 1 writes: a number is cut off, at byte 0 of the datum",
        ),
        (cut, "1 bytes are wanted and 0 are left: cut off"),
        (&more, "1 bytes are left over"),
        (b"\xc3\x01", "; it looks like single-object encoding"),
    ];
    let sender = world.sender();
    for (value, _) in values {
        sender.send(0, None, Some(value));
    }
    sender.send(0, None, Some(&good));
    sender.flush();
    let mut process = world.start("a");
    world.wait_until_done(LONG);
    let parked = letters(&world);
    assert_eq!(parked.len(), values.len());
    for ((_, reason, detail), (_, why)) in parked.iter().zip(values) {
        assert_eq!(reason, "undecodable");
        assert!(detail.contains(why), "{detail}");
    }
    assert_eq!(registry.asked(), ["/schemas/ids/1"]);
    assert_eq!(scores(&world).len(), 1);
    assert!(process.is_running());
}

// I6: schemas that refer to others, that are no Avro, or that read as nothing the projection knows.
#[test]
fn a_schema_that_cannot_be_used_parks_its_records_and_says_why() {
    let (world, registry) = world(1, "");
    let reference =
        |name: &str, version: i64| json!({"name": name, "subject": name, "version": version});
    let main = r#"{"type": "record", "name": "Score", "fields": [
        {"name": "account", "type": "string"}, {"name": "kind", "type": "shop.Kind"}, {"name": "seq", "type": "long"},
        {"name": "flag", "type": "shop.Flag"}]}"#;
    let kind = r#"{"type": "enum", "name": "shop.Kind", "symbols": ["A", "B"]}"#;
    let flag = r#"{"type": "record", "name": "shop.Flag", "fields": [{"name": "of", "type": "shop.Kind"}]}"#;
    registry.answer(2, json!({"schema": main, "references": [reference("shop.Flag", 3), reference("shop.Kind", 1)]}));
    registry.version(
        "shop.Flag",
        3,
        json!({"schema": flag, "references": [reference("shop.Kind", 1)]}),
    );
    // Around in a circle.
    registry.version(
        "shop.Kind",
        1,
        json!({"schema": kind, "references": [reference("shop.Flag", 3)]}),
    );
    registry.answer(
        3,
        json!({"schema": "syntax = \"proto3\";", "schemaType": "PROTOBUF"}),
    );
    registry.register(4, "{\"type\": \"record\"}");
    registry.register(5, &SCORE.replace("Score", "Other"));
    let sender = world.sender();
    sender.send(0, None, Some(b"\0\0\0\0\x02\x04A2\x02\x06\x02"));
    for id in 3..=5 {
        let value = framed(id, SCORE, &score("a", 1, "x"));
        sender.send(0, None, Some(&value));
    }
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(scores(&world), [("A2".to_owned(), 3, None)]);
    let parked = letters(&world);
    let expected = [
        "the schema with the id 3 is not usable: it is PROTOBUF, not Avro",
        "the schema with the id 4 cannot be read",
        "schema 5: written as record `Other`, read as record `Score`",
    ];
    assert_eq!(parked.len(), expected.len());
    for ((_, _, detail), why) in parked.iter().zip(expected) {
        assert!(detail.contains(why), "{detail}");
    }
    let references = registry
        .asked()
        .iter()
        .filter(|path| path.starts_with("/subjects"))
        .count();
    assert_eq!(references, 2);
}

const KEY: &str =
    r#"{"type": "record", "name": "Key", "fields": [{"name": "account", "type": "string"}]}"#;

// A deletion has no value that could name what is deleted.
#[test]
fn a_key_in_avro_names_the_entity_of_an_event_and_of_its_tombstone() {
    let registry = SchemaRegistry::start();
    registry.register(1, SCORE);
    registry.register(2, KEY);
    let entity = "entity   = \"key:/account\"\nkey_schema = \"key.avsc\"\ntombstones = \"event\"";
    let projections = PROJECTIONS
        .replace("entity   = \"/account\"", entity)
        .replace("account = \"text\", ", "")
        .replace("\"newest\"", "\"none\"")
        .replace(
            "SELECT account, _sequence, note FROM latest",
            "SELECT _entity, _sequence, note FROM latest WHERE NOT _tombstone",
        );
    let deletion = "
[[projections.score.apply]]
sql = \"DELETE FROM score WHERE account IN (SELECT _entity FROM latest WHERE _tombstone)\"\n";
    let settings = format!(
        "[schema_registry]\nurl = \"{}\"\n{projections}{deletion}",
        registry.url()
    );
    let files = [
        ("score.sql", SETUP),
        ("score.avsc", SCORE),
        ("key.avsc", KEY),
    ];
    let world = World::new(1, &settings, &files);
    world.tidegate(&["check"]).expect(0);
    let sender = world.sender();
    let key = |account: &str| framed(2, KEY, &json!({ "account": account }));
    for (account, seq) in [("a", 1), ("b", 1), ("a", 2)] {
        let value = framed(1, SCORE, &score("of the value", seq, "x"));
        sender.send(0, Some(&key(account)), Some(&value));
    }
    sender.send(0, Some(&key("b")), None);
    // What is no key parks its record, and so does a value that is none; that one's entity waits behind it.
    sender.send(
        0,
        Some(b"plain"),
        Some(&framed(1, SCORE, &score("c", 1, "x"))),
    );
    sender.send(0, Some(&key("a")), Some(b"plain"));
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(scores(&world), [("a".to_owned(), 2, Some("x".to_owned()))]);
    assert_eq!((registry.asked_for(1), registry.asked_for(2)), (1, 1));
    let parked: Vec<(i64, Option<String>, String)> = world.db.rows(
        "SELECT record_offset, entity, detail FROM tidegate.dead_letter ORDER BY record_offset",
    );
    assert_eq!(parked.len(), 2, "{parked:?}");
    assert_eq!((parked[0].0, &parked[0].1), (4, &None));
    assert!(
        parked[0]
            .2
            .starts_with("entity (`key:/account`): the key: it begins with the byte 0x70"),
        "{parked:?}"
    );
    assert_eq!((parked[1].0, parked[1].1.as_deref()), (5, Some("a")));
    world.tidegate(&["verify"]).expect(0);
}

const KINDS: &str = r#"
[projections.kinds]
topics   = ["@in@"]
format   = "avro"
framing  = "raw"
schema   = "kinds.avsc"
gate     = "none"
setup    = "kinds.sql"

[projections.kinds.columns]
small   = "integer"
large   = "bigint"
precise = "double precision"
amount  = "numeric"
yes     = "boolean"
text    = "text"
colour  = "text"
id      = "uuid"
at      = "timestamptz"
local   = "timestamp"
day     = "date"
time    = { type = "text", from = "/deep/time" }
blob    = "bytea"
first   = { type = "bigint", from = "/list/0", nullable = true }
tree    = { type = "jsonb", from = "/deep" }

[[projections.kinds.apply]]
sql = """
INSERT INTO kinds (small, large, precise, amount, yes, text, colour, id, at, local, day, time, blob, first, tree)
SELECT small, large, precise, amount, yes, text, colour, id, at, local, day, time::time, blob, first, tree FROM events"""
"#;

const KINDS_SETUP: &str = "
CREATE TABLE kinds (small integer, large bigint, precise double precision, amount numeric, yes boolean, text text, colour text,
    id uuid, at timestamptz, local timestamp, day date, time time, blob bytea, first bigint, tree jsonb)";

const KINDS_SCHEMA: &str = r#"{"type": "record", "name": "Kinds", "fields": [
    {"name": "small", "type": "int"}, {"name": "large", "type": "long"}, {"name": "precise", "type": "double"},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 3}},
    {"name": "yes", "type": "boolean"}, {"name": "text", "type": "string"},
    {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
    {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "blob", "type": "bytes"},
    {"name": "list", "type": {"type": "array", "items": "long"}},
    {"name": "deep", "type": {"type": "record", "name": "Deep", "fields": [
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "maybe", "type": ["null", "string"]}]}}]}"#;

// Each type of Avro as the type of Postgres that is meant, digit for digit, on both sides of 1970.
#[test]
fn every_avro_type_becomes_the_postgres_type_that_is_meant() {
    let files = [("kinds.sql", KINDS_SETUP), ("kinds.avsc", KINDS_SCHEMA)];
    let world = World::new(1, KINDS, &files);
    world.tidegate(&["check"]).expect(0);
    let mut datum = Vec::new();
    datum.extend(b"\xff\xff\xff\xff\x0f"); // small: the smallest int
    datum.extend(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"); // large: the largest long
    datum.extend(0.1_f64.to_le_bytes());
    datum.extend(b"\x20"); // amount: 16 bytes
    datum.extend((-12_345_678_901_234_567_890_123_456_789_i128).to_be_bytes());
    datum.extend(b"\x01\x06a\xc3\xa4\x02\x48"); // true, "aä", the second symbol
    datum.extend(b"00112233-4455-6677-8899-aabbccddeeff");
    datum.extend(b"\x01\x01\x01"); // a microsecond, a millisecond, a day before 1970
    datum.extend(b"\x04\x00\xff"); // blob
    datum.extend(b"\x04\x0e\x02\x00"); // list: 7, 1
    datum.extend(b"\x80\xe7\xce\x20\x02\x02x"); // time: 09:30; maybe: x
    let sender = world.sender();
    sender.send(0, None, Some(&datum));
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(letters(&world), []);
    let row: Value = world
        .db
        .one("SELECT to_jsonb(k) - 'tree' FROM kinds.kinds k");
    let expected = json!({
        "small": i32::MIN, "large": i64::MAX, "precise": 0.1, "yes": true, "text": "aä", "colour": "BLUE",
        "id": "00112233-4455-6677-8899-aabbccddeeff", "at": "1969-12-31T23:59:59.999999+00:00",
        "local": "1969-12-31T23:59:59.999", "day": "1969-12-31", "time": "09:30:00", "blob": "\\x00ff", "first": 7,
        "amount": row["amount"],
    });
    assert_eq!(row, expected);
    let amount: String = world.db.one("SELECT amount::text FROM kinds.kinds");
    assert_eq!(amount, "-12345678901234567890123456.789");
    let tree: Value = world.db.one("SELECT tree FROM kinds.kinds");
    assert_eq!(tree, json!({"time": "09:30:00", "maybe": "x"}));
}

/// What one projection sends in Avro another one reads.
const OUTGOING: &str = r#"
[projections.source]
topics   = ["@in@"]
gate     = "none"
entity   = "/id"
setup    = "none.sql"
columns  = { id = "text", amount = "numeric", memo = { type = "text", nullable = true } }

[[projections.source.apply]]
sql = "INSERT INTO source (id) SELECT id FROM events"

[[projections.source.emit]]
name   = "told"
topic  = "@out@"
schema = "told.avsc"
sql    = """
SELECT _ref, id AS key, jsonb_build_object('id', id, 'amount', amount::text, 'at', _timestamp, 'memo', memo) AS payload FROM events
WHERE memo IS DISTINCT FROM 'none'
UNION ALL SELECT _ref, id, NULL FROM events WHERE memo = 'none'"""

[projections.reader]
topics     = ["@out@"]
format     = "avro"
schema     = "told.avsc"
gate       = "none"
tombstones = "event"
setup      = "reader.sql"
columns    = { id = "text", amount = "numeric", at = "timestamptz", memo = { type = "text", nullable = true } }

[[projections.reader.apply]]
sql = "INSERT INTO told (id, amount, at, memo, gone) SELECT id, amount, at, memo, _tombstone FROM events"
"#;

const TOLD: &str = r#"{"type": "record", "name": "Told", "fields": [
    {"name": "id", "type": "string"},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "memo", "type": ["null", "string"], "default": null}]}"#;

/// Both projections, whose framing and registration are as these settings of the emit say.
fn outgoing(settings: &str, framing: &str) -> (World, SchemaRegistry) {
    let registry = SchemaRegistry::start();
    let projections = OUTGOING
        .replace(
            "schema = \"told.avsc\"\nsql",
            &format!("schema = \"told.avsc\"\n{settings}\nsql"),
        )
        .replace(
            "gate       =",
            &format!("framing = \"{framing}\"\ngate       ="),
        );
    let registry_settings = format!("[schema_registry]\nurl = \"{}\"\n", registry.url());
    let files = [
        ("none.sql", "CREATE TABLE source (id text)"),
        (
            "reader.sql",
            "CREATE TABLE told (id text, amount numeric, at timestamptz, memo text, gone boolean)",
        ),
        ("told.avsc", TOLD),
    ];
    (
        World::new(1, &format!("{registry_settings}{projections}"), &files),
        registry,
    )
}

/// Id, amount, memo, and whether it was a tombstone.
type Told = (Option<String>, Option<String>, Option<String>, bool);

fn told(world: &World) -> Vec<Told> {
    wait_until(LONG, "its table is there", || {
        world
            .db
            .one("SELECT to_regclass('reader.told') IS NOT NULL")
    });
    world
        .db
        .rows("SELECT id, amount::text, memo, gone FROM reader.told ORDER BY amount NULLS LAST")
}

// I5, I6: a payload is written with its schema, whatever the framing; one that the schema does not take is its record's fault.
#[test]
fn messages_leave_in_avro_as_their_schema_says() {
    let settings = [
        ("", "confluent"),
        ("framing = \"single-object\"", "single-object"),
        ("framing = \"raw\"", "raw"),
    ];
    for (setting, framing) in settings {
        let (world, registry) = outgoing(setting, framing);
        world.tidegate(&["check"]).expect(0);
        let sender = world.sender();
        for (id, amount, memo) in [
            ("a", "-12345678901234567890.05", json!("x")),
            ("b", "1.234", json!(null)),
            ("c", "2", json!(null)),
            ("d", "3", json!("none")),
        ] {
            sender.send_json(0, &json!({"id": id, "amount": amount, "memo": memo}));
        }
        sender.flush();
        let _process = world.start("a");
        wait_until(LONG, "all of it was told", || told(&world).len() == 3);
        let row = |id: &str, amount: &str, memo: Option<&str>| {
            (
                Some(id.to_owned()),
                Some(amount.to_owned()),
                memo.map(str::to_owned),
                false,
            )
        };
        let gone = (None, None, None, true);
        let expected = [
            row("a", "-12345678901234567890.05", Some("x")),
            row("c", "2.00", None),
            gone,
        ];
        assert_eq!(told(&world), expected, "{framing}");
        let parked = letters(&world);
        assert_eq!(parked.len(), 1);
        assert!(
            parked[0].2.contains(
                "emit told: payload: /amount: `1.234` is no decimal with 2 digits after the point"
            ),
            "{}",
            parked[0].2
        );
        let subject = format!("/subjects/{}-value/versions", world.outgoing());
        let registered = registry.asked().contains(&subject);
        assert_eq!(registered, framing == "confluent");
    }
}

// I10: without an id nothing is emitted; the projection waits until somebody has registered its schema.
#[test]
fn a_projection_whose_messages_have_no_schema_id_waits_for_it() {
    let (world, registry) = outgoing("register = false\nsubject = \"told\"", "confluent");
    let sender = world.sender();
    sender.send_json(0, &json!({"id": "a", "amount": "1"}));
    sender.flush();
    let mut process = world.start("a");
    process.wait_for_log(
        LONG,
        &[
            "not started yet; trying again",
            "projection `source` cannot write its messages: the schema of subject `told` has no id",
        ],
    );
    assert!(process.is_running());
    registry.register(7, TOLD);
    wait_until(LONG, "it was told", || told(&world).len() == 1);
    assert!(
        registry
            .asked()
            .iter()
            .all(|path| !path.ends_with("/versions"))
    );
    let value: Vec<u8> = world.db.one("SELECT payload FROM tidegate.outbox");
    assert_eq!(value[..5], [0, 0, 0, 0, 7]);
}

// I10: nothing more is written with an id that stands for another schema by now, until it is restored.
#[test]
fn an_id_of_messages_that_is_given_anew_halts_before_it_is_written_again() {
    let (world, registry) = outgoing("", "confluent");
    let start = |name: &str| {
        let launch = world.launch(name);
        launch
            .env("TIDEGATE__SCHEMA_REGISTRY__VERIFY_EVERY", "200ms")
            .start()
    };
    let send = |id: &str| {
        let sender = world.sender();
        sender.send_json(0, &json!({"id": id, "amount": "1"}));
        sender.flush();
    };
    send("a");
    let process = start("a");
    wait_until(LONG, "it was told", || told(&world).len() == 1);
    registry.register(100, &TOLD.replace("\"memo\"", "\"remark\""));
    process.wait_for_log(LONG, &["what the registry says is not what it said"]);
    send("b");
    let cause = world.wait_until_halted("source", 0);
    assert!(
        cause.contains("schema 100 of the registry is another one than it was on"),
        "{cause}"
    );
    assert_eq!(world.db.one::<i64>("SELECT count(*) FROM source.source"), 1);
    assert_eq!(letters(&world), []);
    process.stop();

    registry.register(100, TOLD);
    let process = start("b");
    wait_until(LONG, "it is told", || told(&world).len() == 2);
    assert_eq!(letters(&world), []);
    process.stop();
}

// In tests of a projection its messages stay JSON, and are compared with their schema all the same.
#[test]
fn tests_see_messages_as_json_that_their_schema_takes() {
    let (world, _registry) = outgoing("", "confluent");
    let test = r#"
[[test]]
name = "it is told"
projection = "source"
given = [
  { value = { id = "a", amount = "1.5", memo = "x" } },
  { value = { id = "b", amount = "1.234", memo = "x" } },
]
copies = false
then.messages = [{ key = "a", payload = { id = "a", amount = "1.5", memo = "x" } }]
then.parked = 1
"#;
    let path = world.folder().join("told.test.toml");
    std::fs::write(&path, test).unwrap();
    world.tidegate(&["test", path.to_str().unwrap()]).expect(0);
}
