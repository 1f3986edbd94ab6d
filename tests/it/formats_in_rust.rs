//! Handlers in Rust of what is not JSON: change events, CloudEvents, types of event; and definitions that cannot be. All
//! kinds of Rust in Avro, by a real registry, are in `avro_ledger.rs`.

use std::fs;

use chrono::{DateTime, NaiveDate, Utc};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate::projection::{
    Avro, AvroSchema, Batch, BatchHandler, Column, ColumnType, Columns, Context, Event, Fold,
    Format, Gate, HandlerError, Messages, Projection, Registry, Source, State, TimeUnit, Types,
    UnknownType,
};
use tidegate::testing::{Given, Test};

use crate::formats::{ENVELOPE, MIRROR_TABLE};
use crate::harness::{LONG, World, block_on};

fn pointer(pointer: &str) -> Source {
    Source::Pointer(pointer.to_owned())
}

fn attribute(name: &str) -> Source {
    Source::Attribute(name.to_owned())
}

/// A row of the table that change events are about.
#[derive(sqlx::FromRow)]
struct Customer {
    name: String,
    since: DateTime<Utc>,
    born: Option<NaiveDate>,
}

impl State for Customer {
    const TABLE: &'static str = "customer";
    const KEY: &'static str = "id";

    fn columns(columns: &mut Columns<'_, Self>) {
        columns.column("name", |customer| &customer.name);
        columns.column("since", |customer| customer.since);
        columns.column("born", |customer| customer.born);
    }
}

/// The rows as they are, from columns.
struct Mirror;

impl Fold for Mirror {
    type State = Customer;

    fn fold(
        &self,
        _: Option<Customer>,
        event: &Event<'_>,
        _: &mut Messages,
    ) -> Result<Option<Customer>, HandlerError> {
        if event.event_type() == Some("d") {
            return Ok(None);
        }
        Ok(Some(Customer {
            name: event.get::<&str>("name")?.to_owned(),
            since: event.get("since")?,
            born: event.get("born")?,
        }))
    }
}

/// What has become of each row, from whole values.
struct Changes;

#[derive(Deserialize)]
struct Row {
    id: i64,
    name: Option<String>,
}

impl BatchHandler for Changes {
    async fn apply(&self, ctx: &mut Context<'_>, batch: &Batch<'_>) -> Result<(), HandlerError> {
        for event in batch.iter() {
            let row: Row = event.json()?;
            sqlx::query("INSERT INTO change (id, op, name) VALUES ($1, $2, $3)")
                .bind(row.id)
                .bind(event.event_type())
                .bind(row.name)
                .execute(ctx.connection())
                .await?;
        }
        Ok(())
    }
}

fn change(op: &str, lsn: i64, before: Value, after: Value) -> Given {
    let source = json!({ "snapshot": "false", "lsn": lsn });
    let change = json!({ "op": op, "source": source, "before": before, "after": after });
    Given::json(change).key(json!({ "id": 1 }).to_string())
}

// I4: a snapshot, changes, some again, a deletion with its tombstone: the rows are those that SQL makes of them, in JSON and
// in Avro, by columns and by whole values.
#[test]
fn a_table_is_mirrored_in_rust_from_its_change_events() {
    let world = World::without_kafka();
    let row = |id: i64, name: &str| json!({ "id": id, "name": name, "since": -1, "born": 0 });
    for avro in [None, Some(Avro::raw(ENVELOPE))] {
        let column = |name: &str, column_type, unit| Column {
            unit,
            nullable: name == "born",
            ..Column::new(name, column_type, pointer(&format!("/{name}")))
        };
        let mirror = Projection::fold("customers", 1, &["customers"], Gate::Newest, Mirror)
            .entity(pointer("/id"))
            .column(column("name", ColumnType::Text, None))
            .column(column(
                "since",
                ColumnType::Timestamptz,
                Some(TimeUnit::Micros),
            ))
            .column(column("born", ColumnType::Date, Some(TimeUnit::Days)))
            .setup(&MIRROR_TABLE.replace("id bigint", "id text"))
            .format(Format::Debezium(avro.clone()));
        let changes = Projection::batch("changes", 1, &["customers"], Gate::Newest, Changes)
            .format(Format::Debezium(avro))
            .entity(pointer("/id"))
            .setup("CREATE TABLE change (id bigint, op text, name text)");
        let given = |projection| {
            // Of what is gone the key alone is logged.
            let gone = json!({ "id": 2, "name": null, "since": null });
            Test::of(projection)
                .given(change("r", 100, Value::Null, row(1, "Ann")))
                .given(change("r", 100, Value::Null, row(2, "Bert")))
                .given(change("u", 140, row(1, "Ann"), row(1, "Anna")))
                .given(change("d", 160, gone, Value::Null))
                .given(Given::tombstone("2"))
                .given(change("u", 140, row(1, "Ann"), row(1, "Anna")))
        };
        let rows = json!([
            { "id": "1", "name": "Anna", "since": "1969-12-31T23:59:59.999999+00:00", "born": "1970-01-01" }
        ]);
        let test = given(&mirror).then("customer", rows);
        block_on(test.run(&world.db.url())).unwrap();
        let rows = json!([
            { "id": 1, "op": "r", "name": "Ann" }, { "id": 2, "op": "r", "name": "Bert" },
            { "id": 1, "op": "u", "name": "Anna" }, { "id": 2, "op": "d", "name": null },
        ]);
        let test = given(&changes).then("change", rows);
        block_on(test.run(&world.db.url())).unwrap();
        // Of no row, and nobody said what it means.
        let test = given(&changes).given(change("t", 180, Value::Null, Value::Null));
        let why = block_on(test.run(&world.db.url())).unwrap_err().to_string();
        assert!(
            why.contains("`t` is none that the projection knows"),
            "{why}"
        );
    }
}

/// Writes down what each event says.
struct Orders;

#[derive(Deserialize)]
struct Order {
    total: i64,
}

impl BatchHandler for Orders {
    async fn apply(&self, ctx: &mut Context<'_>, batch: &Batch<'_>) -> Result<(), HandlerError> {
        for event in batch.iter() {
            let order: Option<Order> = event.json()?;
            let by_column: Option<i64> = event.get("total")?;
            assert_eq!(order.as_ref().map(|order| order.total), by_column);
            sqlx::query("INSERT INTO told (subject, type, total) VALUES ($1, $2, $3)")
                .bind(event.get::<&str>("subject")?)
                .bind(event.event_type())
                .bind(by_column)
                .execute(ctx.connection())
                .await?;
        }
        Ok(())
    }
}

fn orders(unknown: UnknownType) -> Projection {
    let total = Column {
        nullable: true,
        ..Column::new("total", ColumnType::Bigint, pointer("/total"))
    };
    Projection::batch("orders", 1, &["orders"], Gate::None, Orders)
        .format(Format::CloudEvents)
        .event_id(attribute("id"))
        .types(Types::new(attribute("type"), &["placed", "paid"]).unknown(unknown))
        .column(Column::new(
            "subject",
            ColumnType::Text,
            attribute("subject"),
        ))
        .column(total)
        .setup("CREATE TABLE told (subject text, type text, total bigint)")
}

/// With attributes in headers.
fn binary(id: &str, kind: &str, given: Given) -> Given {
    given
        .header("ce_specversion", "1.0")
        .header("ce_id", id)
        .header("ce_source", "/shop")
        .header("ce_subject", format!("o-{id}"))
        .header("ce_type", kind)
}

// I6: both modes are read alike, an id is applied once, and a type that nobody knows is what the projection says.
#[test]
fn cloud_events_are_handled_in_rust_whatever_their_mode() {
    let world = World::without_kafka();
    let structured = json!({
        "specversion": "1.0", "id": "2", "source": "/shop", "subject": "o-2", "type": "paid", "data": { "total": 7 },
    });
    for (unknown, parked) in [
        (UnknownType::Halt, 0),
        (UnknownType::Filter, 0),
        (UnknownType::Park, 1),
    ] {
        let orders = orders(unknown);
        let test = Test::of(&orders)
            .given(binary("1", "placed", Given::json(json!({ "total": 5 }))))
            .given(
                Given::json(structured.clone())
                    .header("content-type", "application/cloudevents+json"),
            )
            .given(binary("1", "placed", Given::json(json!({ "total": 9 }))))
            // Without data, and no tombstone.
            .given(binary("3", "paid", Given::default()))
            .given(binary("4", "lost", Given::json(json!({}))))
            .then_parked(parked)
            .then(
                "told",
                json!([
                    { "subject": "o-1", "type": "placed", "total": 5 },
                    { "subject": "o-2", "type": "paid", "total": 7 },
                    { "subject": "o-3", "type": "paid", "total": null },
                ]),
            );
        match (unknown, block_on(test.run(&world.db.url()))) {
            (UnknownType::Halt, Err(why)) => {
                let why = why.to_string();
                assert!(
                    why.contains("`lost` is none that the projection knows"),
                    "{why}"
                );
            }
            (UnknownType::Halt, Ok(())) => panic!("an unknown type was passed"),
            (_, done) => done.unwrap(),
        }
    }
}

#[track_caller]
fn refused(change: impl FnOnce(Projection) -> Projection, expected: &str) {
    let projection = change(Projection::batch("p", 1, &["t"], Gate::None, Orders));
    let why = Registry::new().register(projection.clone()).unwrap_err();
    assert_eq!(why.to_string(), format!("projection `p`: {expected}"));
    // The testkit does without a registry.
    let done = block_on(Test::of(&projection).run("postgres://nobody@127.0.0.1:1/none"));
    let why = done.unwrap_err().to_string();
    assert_eq!(why, format!("projection `p`, its definition: {expected}"));
}

#[test]
fn what_cannot_be_read_is_told_when_it_is_registered() {
    const SCORE: &str = crate::avro::SCORE;
    const HELP: &str = "types that it refers to are given by `AvroSchema::with_types`";
    let column = |name: &str, column_type, source| Column::new(name, column_type, source);
    refused(
        |p| p.format(Format::Avro(Avro::raw("{"))).entity(pointer("/a")),
        &format!(
            "not an Avro schema: the schema is no JSON: EOF while parsing an object at line 1 column 1; {HELP}"
        ),
    );
    let uses = r#"{"type": "record", "name": "R", "fields": [{"name": "of", "type": "Score"}]}"#;
    refused(
        |p| p.format(Format::Avro(Avro::confluent(uses))),
        &format!("not an Avro schema: Unknown primitive type: Score; {HELP}"),
    );
    refused(
        |p| p.format(Format::Avro(Avro::single_object(SCORE, &["\"strin\""]))),
        &format!("not an Avro schema: in `written_with`: Unknown primitive type: strin; {HELP}"),
    );
    refused(
        |p| p.format(Format::Avro(Avro::raw(SCORE).key("7"))),
        &format!("not an Avro schema: of the key: Must be a JSON string, object or array; {HELP}"),
    );
    let with_types = Avro::confluent(AvroSchema::with_types(&[SCORE], uses));
    refused(
        |p| {
            p.format(Format::Avro(with_types))
                .column(column("note", ColumnType::Text, pointer("/of/note")))
                .column(column("notes", ColumnType::Text, pointer("/of/nots")))
        },
        "column `notes`: the schema has no `nots` at `/of/nots`; did you mean `note`?",
    );
    refused(
        |p| {
            p.column(column("seq", ColumnType::Text, pointer("/seq")))
                .format(Format::Avro(Avro::raw(SCORE)))
        },
        "column `seq`: the schema has an integer at `/seq`, which cannot be text; bigint can",
    );
    let in_key = Source::KeyPath("/id".to_owned());
    refused(
        |p| p.format(Format::Avro(Avro::raw(SCORE))).entity(in_key),
        "`entity`: `key:/id` is a part of the key, and needs `key_schema`, by which keys in Avro are read",
    );
    refused(
        |p| p.event_id(attribute("id")),
        "`event_id`: `ce:id` is an attribute of CloudEvents, and needs `format = \"cloudevents\"`",
    );
    refused(
        |p| p.types(Types::new(pointer("/type"), &["a", "b", "a"])),
        "`types` has `a` twice; remove one",
    );
    refused(
        |p| p.types(Types::new(pointer("/type"), &[])),
        "`type` needs `types`, those that the projection knows; name them: types = [\"OrderPlaced\", \"OrderShipped\"]",
    );
}

// I10: who has forgotten the registry is told before anything is read.
#[test]
fn a_binary_that_needs_a_registry_says_so() {
    let world = World::without_kafka();
    for command in ["check", "run"] {
        let launch = world.launch("a").example("ledger_kinds");
        let said = launch.env("ENTRIES_FORMAT", "avro").output(&[command]);
        let said = said.expect(78).stderr;
        let what = "projection `balances_folded`: the framing `confluent` needs [schema_registry]";
        assert!(said.contains(what), "{command}: {said}");
    }
}

// `tidegate test` writes what the format of a projection in Rust is; no registry is asked.
#[test]
fn events_of_tests_are_written_for_projections_in_rust_too() {
    let world = World::new(1, "[schema_registry]\nurl = \"http://127.0.0.1:1\"\n", &[]);
    let test = r#"
[[test]]
name = "an entry in Avro"
projection = "balances_in_batches"
given = [{ value = { id = "1", account = "a", seq = 1, amount = 5, booked_at = "2026-01-31T09:30:00Z" } }]
then.tables.balance = [{ account = "a", amount = 5 }]
"#;
    let path = world.folder().join("kinds.test.toml");
    fs::write(&path, test).unwrap();
    let run = |expected: i32| {
        let launch = world.launch("a").example("ledger_kinds");
        let launch = launch.env("ENTRIES_FORMAT", "avro");
        launch
            .output(&["test", path.to_str().unwrap()])
            .expect(expected)
    };
    run(0);
    fs::write(&path, test.replace("seq = 1", "seq = \"1\"")).unwrap();
    let wrong = run(78).stderr;
    assert!(
        wrong.contains("event 1: /seq: a string is no long"),
        "{wrong}"
    );
}

// I6: what a record may cost is the same for all projections.
#[test]
fn the_limits_of_values_are_those_of_handlers_too() {
    let world = World::new(1, "[decode]\nvalue_bytes_max = 60\n", &[]);
    let sender = world.sender();
    let entry =
        |seq: i64, note: &str| json!({ "account": "a", "seq": seq, "amount": 1, "note": note });
    sender.send_json(0, &entry(1, ""));
    sender.send_json(0, &entry(2, &"x".repeat(60)));
    sender.flush();
    let launch = world.launch("a").example("ledger_kinds");
    let _process = launch
        .env("ENTRIES_TOPIC", world.incoming())
        .env("OVERDRAFTS_TOPIC", world.outgoing())
        .start();
    world.wait_until_done(LONG);
    let letters: Vec<(String,)> = world.db.rows("SELECT detail FROM tidegate.dead_letter");
    assert_eq!(letters.len(), 4);
    for (detail,) in letters {
        assert!(
            detail.contains("60 are allowed (decode.value_bytes_max)"),
            "{detail}"
        );
    }
}
