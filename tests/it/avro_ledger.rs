//! The ledger in Avro, by a real schema registry, beside the same ledger in JSON.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use apache_avro::types::Value as AvroValue;
use chrono::DateTime;
use serde_json::{Value, json};

use crate::harness::{LONG, Message, RegistryServer, World};
use crate::kinds::{KINDS, balances_of, messages_of};

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The projections of `examples/ledger`, for values in Avro.
fn avro_ledger(partitions: i32, registry: &RegistryServer) -> World {
    let config = file("examples/ledger/tidegate.toml");
    let projections = config[config.find("[projections.").unwrap()..]
        .replace("ledger.entries", "@in@")
        .replace("ledger.overdrafts", "@out@")
        .replace(
            "setup ",
            "format = \"avro\"\nschema = \"entry.avsc\"\nsetup ",
        );
    let registry = format!("[schema_registry]\nurl = \"{}\"\n", registry.url());
    let files = [
        ("balances.sql", file("examples/ledger/balances.sql")),
        ("turnover.sql", file("examples/ledger/turnover.sql")),
        ("entry.avsc", file("schemas/entry.avsc")),
    ];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    World::new(partitions, &format!("{registry}{projections}"), &files)
}

/// An entry as both versions of the schema have it, together.
fn both_versions(entry: &Value) -> Value {
    let booked = DateTime::parse_from_rfc3339(entry["booked_at"].as_str().unwrap()).unwrap();
    json!({
        "id": entry["id"], "account": entry["account"], "seq": entry["seq"], "amount": entry["amount"],
        "booked": booked.timestamp_millis(), "booked_at": booked.timestamp_micros(),
        "clerk": "c-1", "kind": "FEE", "memo": null,
    })
}

/// The messages of each key, in order, without their ids: those name the topic that an entry came from.
fn payloads(messages: BTreeMap<String, Vec<Message>>) -> BTreeMap<String, Vec<Value>> {
    let mut payloads: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for message in messages.into_values().flatten() {
        payloads
            .entry(message.key)
            .or_default()
            .push(message.payload);
    }
    payloads
}

// I1, I6: the same entries, half of them written before the schema changed, come to the same tables and messages, in SQL and in
// all kinds of Rust (`examples/ledger_kinds.rs`).
#[test]
fn the_ledger_in_avro_comes_to_what_it_comes_to_in_json() {
    let registry = RegistryServer::start();
    let in_json = World::ledger(3);
    in_json.stream().produce(1_500);
    let in_avro = avro_ledger(3, &registry);
    in_avro.tidegate(&["check"]).expect(0);

    let versions = ["schemas/entry.v1.avsc", "schemas/entry.avsc"].map(|path| {
        let text = file(path);
        let id = registry.register("ledger.entries-value", &text);
        (id, apache_avro::Schema::parse_str(&text).unwrap())
    });
    assert_ne!(versions[0].0, versions[1].0);
    let sender = in_avro.sender();
    for (number, record) in in_json.log().iter().enumerate() {
        let (id, schema) = &versions[number % 2];
        let datum = AvroValue::try_from(both_versions(&record.json())).unwrap();
        let datum = datum.resolve(schema).unwrap();
        let writer = apache_avro::writer::datum::GenericDatumWriter::builder(schema);
        let datum = writer.build().unwrap().write_value_to_vec(datum).unwrap();
        let value = [&[0][..], &id.to_be_bytes(), &datum].concat();
        sender.send(record.partition, None, Some(&value));
    }
    sender.flush();

    let avro = in_avro.launch("avro").example("ledger_kinds");
    let avro = avro
        .env("ENTRIES_FORMAT", "avro")
        .env("ENTRIES_TOPIC", in_avro.incoming())
        .env("OVERDRAFTS_TOPIC", in_avro.outgoing());
    let _processes = [in_json.start("json"), avro.start()];
    in_json.assert_exact();
    in_avro.wait_until_done(LONG);
    let (expected, found) = (in_json.stored(), in_avro.stored());
    assert_eq!(found.balances, expected.balances);
    assert_eq!(found.turnover, expected.turnover);
    let [expected, found] = [expected.messages, found.messages].map(|mut messages| {
        messages.retain(|stream, _| stream.starts_with("balances/"));
        payloads(messages)
    });
    assert_eq!(found, expected);
    let in_rust = KINDS[2..].iter();
    for kind in in_rust {
        assert_eq!(balances_of(&in_avro, kind), balances_of(&in_avro, KINDS[0]));
        assert_eq!(messages_of(&in_avro, kind), messages_of(&in_avro, KINDS[0]));
    }
    assert_eq!(in_avro.parked(), 0);
    in_avro.tidegate(&["verify"]).expect(0);
}

// I1, I5, I6: the demo in Avro, with a kill in the middle, comes to the fold that the one in JSON comes to.
#[test]
fn the_demo_is_exact_in_avro_with_a_real_registry() {
    let registry = RegistryServer::start();
    let world = World::ledger(1);
    let demo = |registry: Option<&str>| {
        let mut launch = world.launch("demo");
        if let Some(url) = registry {
            launch = launch.env("TIDEGATE__SCHEMA_REGISTRY__URL", url);
        }
        launch.output(&[
            "demo",
            "--format",
            "avro",
            "--events",
            "3000",
            "--partitions",
            "3",
        ])
    };
    let refused = demo(None).expect(78).stderr;
    assert!(
        refused.contains("TIDEGATE__SCHEMA_REGISTRY__URL is not set"),
        "{refused}"
    );
    let told = demo(Some(&registry.url())).expect(0).stdout;
    assert!(
        told.contains("in Avro, by two versions of a schema"),
        "{told}"
    );
    assert!(told.ends_with("EXACT\n"), "{told}");
}
