//! What `docs/outbox.md` and `examples/outbox` say about the outbox.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::{LONG, World, unique, wait_until};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/outbox")
}

fn example(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap()
}

#[test]
fn the_order_of_the_example_is_sent() {
    let world = World::journal(1);
    let config = folder().join("tidegate.toml");
    let check = world
        .launch("check")
        .env("TIDEGATE_CONFIG", config.display());
    check.output(&["check"]).expect(0);
    // Roles are the server's, not the database's.
    let role = format!("it_{}", unique());
    let mut session = world.db.session();
    session.run(&example("role.sql").replace("shop", &role));
    let order = example("order.sql").replace("'orders'", &format!("'{}'", world.outgoing()));
    session.run(&order);
    let (_, emit) = order.split_once("SELECT ").unwrap();
    let (emit, _) = emit.split_once(';').unwrap();
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/outbox.md"));
    let (_, arguments) = emit.split_once(',').unwrap();
    assert!(
        page.unwrap().contains(arguments),
        "the page shows it as it is"
    );
    session.run(&format!("SET ROLE {role}; SELECT {emit}; RESET ROLE"));
    session.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    let process = world.start("a");
    wait_until(LONG, "both are sent", || world.sent().len() == 2);
    for record in world.sent() {
        assert_eq!(record.key.as_deref(), Some(&b"17"[..]));
        assert_eq!(record.header("ce_type"), "order.placed");
        assert_eq!(
            record.json(),
            serde_json::json!({ "order": 17, "total": 4200 })
        );
    }
    process.stop();
}

#[test]
fn the_columns_that_change_data_capture_reads_exist() {
    let world = World::without_kafka();
    let properties = example("debezium.properties");
    let settings: BTreeMap<&str, &str> = properties
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once('=').unwrap())
        .collect();
    let (schema, table) = settings["table.include.list"].split_once('.').unwrap();
    let columns: Vec<(String, String)> = world.db.rows(&format!(
        "SELECT column_name::text, data_type::text FROM information_schema.columns
         WHERE table_schema = '{schema}' AND table_name = '{table}'"
    ));
    let columns: BTreeMap<String, String> = columns.into_iter().collect();
    let router = |setting: &str| settings[&*format!("transforms.outbox.{setting}")];
    for (setting, kind) in [
        ("table.field.event.id", "uuid"),
        ("table.field.event.key", "bytea"),
        ("table.field.event.payload", "bytea"),
        ("route.by.field", "text"),
    ] {
        assert_eq!(columns[router(setting)], kind, "{setting}");
    }
    for placement in router("table.fields.additional.placement").split(',') {
        let (column, header) = placement.split_once(":header:").unwrap();
        assert!(columns.contains_key(column), "{column}");
        assert!(header.starts_with("ce_"), "{header}");
    }
    for column in [
        "stream",
        "partition",
        "header_names",
        "header_values",
        "created_at",
    ] {
        assert!(columns.contains_key(column), "{column}");
    }
}

// I6: what is removed counts as sent, and nothing in between is missing.
#[test]
fn what_change_data_capture_has_read_can_be_removed() {
    let world = World::without_kafka();
    let emit = "SELECT tidegate.emit('t', key => 'k' || n % 5, payload => to_jsonb(n)) FROM generate_series(1, 50) n";
    world.db.run(emit);
    world
        .db
        .run("UPDATE tidegate.outbox SET created_at = created_at - interval '2 days'");
    world.db.run(emit);
    for _ in 0..2 {
        world.db.run(&example("remove.sql"));
        let kept: i64 = world.db.one("SELECT count(*) FROM tidegate.outbox");
        assert_eq!(kept, 50);
        world.tidegate(&["verify"]).expect(0);
    }
    world
        .db
        .run("UPDATE tidegate.outbox SET created_at = created_at - interval '2 days'");
    world.db.run(&example("remove.sql"));
    let kept: i64 = world.db.one("SELECT count(*) FROM tidegate.outbox");
    assert_eq!(kept, 0);
    world.db.run(emit);
    world.tidegate(&["verify"]).expect(0);
}
