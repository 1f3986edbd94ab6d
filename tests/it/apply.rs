//! What is applied does not depend on how it was cut into batches.

use std::collections::BTreeMap;

use serde_json::json;

use crate::harness::{Expected, LONG, World, wait_until};

// I1, I5: the same tables and the same messages, with the same ids, keys, payloads and numbers.
#[test]
pub(crate) fn however_a_stream_is_cut_tables_and_messages_are_the_same() {
    let whole = World::ledger(3);
    whole.stream().produce(900);
    let mut results: Vec<(usize, Expected)> = Vec::new();
    for size in [1, 7, 1_000] {
        let world = whole.sibling();
        let process = world.launch("a").batch_records_max(size).start();
        world.assert_exact();
        process.stop();
        results.push((size, world.stored()));
    }
    let (_, first) = &results[0];
    assert!(
        first.messages.len() > 3,
        "overdrafts and copies: {:?}",
        first.messages.keys()
    );
    for (size, result) in &results[1..] {
        assert!(
            result == first,
            "batches of {size} differ from batches of 1"
        );
    }
}

// I1, I5: the same for a handler in Rust (`examples/order_count.rs`), over a kill and another cut too.
#[test]
fn a_projection_in_rust_counts_and_emits_each_order_once() {
    let world = World::new(2, "", &[]);
    let sender = world.sender();
    let mut random = world.random();
    let mut orders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for number in 0..600 {
        let customer = random.usize(..12);
        let name = format!("c-{customer}");
        let known = orders.entry(name.clone()).or_default();
        let id = if random.u8(..10) == 0 && !known.is_empty() {
            known[random.usize(..known.len())].clone() // a resend
        } else {
            known.push(format!("o-{number}"));
            format!("o-{number}")
        };
        let order = json!({ "id": id, "customer": name });
        let partition = i32::try_from(customer % 2).unwrap();
        sender.send(
            partition,
            Some(name.as_bytes()),
            Some(order.to_string().as_bytes()),
        );
    }
    sender.flush();
    let launch = |world: &World, size: usize, failpoints: &str| {
        let launch = world.launch("a").example("order_count").comes_back();
        launch
            .env("ORDERS_TOPIC", world.incoming())
            .env("REWARDS_TOPIC", world.outgoing())
            .batch_records_max(size)
            .failpoints(failpoints)
            .start()
    };
    let mut outboxes = Vec::new();
    for (size, next_size) in [(1, 1_000), (50, 3)] {
        let world = world.sibling();
        launch(&world, size, "apply-before-commit=3*off->return").wait(LONG);
        let _process = launch(&world, next_size, "");
        world.wait_until_done(LONG);
        let counted: Vec<(String, i64)> = world
            .db
            .rows("SELECT customer, orders FROM order_count.order_count ORDER BY customer");
        let expected: Vec<(String, i64)> = orders
            .iter()
            .map(|(customer, ids)| (customer.clone(), i64::try_from(ids.len()).unwrap()))
            .collect();
        assert_eq!(counted, expected);
        world.tidegate(&["verify"]).expect(0);
        outboxes.push(world.outbox());
    }
    assert_eq!(outboxes[0], outboxes[1]);
    let rewards: usize = outboxes[0].values().map(Vec::len).sum();
    let expected: usize = orders.values().map(|ids| ids.len() / 10).sum();
    assert_eq!(rewards, expected);
}

// I1: what `emit` says leaves with what `apply` says, or neither does.
#[test]
fn a_projection_that_is_paused_is_not_claimed() {
    let world = World::journal(1);
    world.stream().produce(20);
    let process = world.start("a");
    world.assert_exact();
    world.tidegate(&["pause", "journal"]).expect(0);
    process.wait_for_log(LONG, &["not claimed", "paused"]);
    world.stream().produce(20);
    assert_eq!(world.progress(), 20);
    world.tidegate(&["resume", "journal"]).expect(0);
    wait_until(LONG, "it is claimed again", || {
        world.is_owned_by("journal", &process)
    });
    world.assert_exact();
}

// I10: large records fill a batch long before there are many of them, or before they have waited for long.
#[test]
fn a_batch_is_full_by_bytes_too() {
    let projections = r#"
[projections.heap]
topics  = ["@in@"]
gate    = "none"
setup   = "heap.sql"
columns = { account = "text" }

[[projections.heap.apply]]
sql = "INSERT INTO heap (events) SELECT count(*) FROM events"
"#;
    let setup =
        "CREATE TABLE heap (place bigint GENERATED ALWAYS AS IDENTITY, events bigint NOT NULL)";
    let world = World::new(1, projections, &[("heap.sql", setup)]);
    let sender = world.sender();
    let text = "x".repeat(700_000);
    for _ in 0..60 {
        sender.send_json(0, &json!({ "account": "a", "text": text }));
    }
    sender.flush();
    let _process = world
        .launch("a")
        .env("TIDEGATE__APPLY__BATCH_LINGER", "10m")
        .start();
    // 16 MiB are full with the 24th record. The last twelve would wait.
    let heap = ("heap".to_owned(), 0);
    wait_until(LONG, "two batches are full", || {
        world.positions().get(&heap) == Some(&48)
    });
    let batches: Vec<(i64,)> = world.db.rows("SELECT events FROM heap.heap ORDER BY place");
    assert_eq!(batches, [(24,), (24,)]);
}

// I1: a batch is one transaction however large it is; arrays have no limit of 65,535 parameters.
#[test]
fn a_batch_of_seventy_thousand_records_is_one_transaction() {
    let world = World::new(
        1,
        r#"
[projections.wide]
topics  = ["@in@"]
gate    = "none"
setup   = "wide.sql"
columns = { a = "bigint", b = "bigint", c = "text", d = "text", e = "bigint", f = "boolean", g = "numeric", h = "text" }

[[projections.wide.apply]]
sql = "INSERT INTO wide SELECT a, b, c, d, e, f, g, h FROM events"
"#,
        &[(
            "wide.sql",
            "CREATE TABLE wide (a bigint, b bigint, c text, d text, e bigint, f boolean, g numeric, h text)",
        )],
    );
    let sender = world.sender();
    for n in 0..70_000 {
        let value = format!(r#"{{"a":{n},"b":1,"c":"c","d":"d","e":2,"f":true,"g":1.5,"h":"h"}}"#);
        sender.send(0, None, Some(value.as_bytes()));
    }
    sender.flush();
    let process = world
        .launch("a")
        .batch_records_max(100_000)
        .env("TIDEGATE__APPLY__BATCH_LINGER", "8s")
        .option("queued.min.messages", "100000")
        .option("queued.max.messages.kbytes", "65536")
        .start();
    world.wait_until_done(LONG);
    let sum: i64 = world.db.one("SELECT sum(a)::bigint FROM wide.wide");
    assert_eq!(sum, 69_999 * 70_000 / 2);
    assert!(process.has_logged(&["applied: 70000"]), "in one batch");
}
