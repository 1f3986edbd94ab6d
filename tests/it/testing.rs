//! The testkit finds what is wrong with a projection, and says so; and it is content with what is right.

use serde_json::{Value, json};
use tidegate::projection::{
    Batch, BatchHandler, Context, Gate, HandlerError, Message, Projection, Source,
};
use tidegate::testing::{Given, Test};

use crate::harness::{World, block_on};

#[allow(dead_code, reason = "its command line is the example's own")]
#[path = "../../examples/orders_and_totals.rs"]
mod orders_and_totals;

/// What a handler does with a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    Right,
    /// Writes down when it was.
    ReadsTheClock,
    /// One message for a batch, not for an event.
    EmitsPerBatch,
    /// Counts batches.
    CountsBatches,
    /// Goes on after an error of a statement.
    SwallowsErrors,
    /// Remembers what it has seen elsewhere than in tables.
    Remembers,
}

struct Sums {
    does: Does,
    seen: std::sync::atomic::AtomicI64,
}

impl BatchHandler for Sums {
    async fn apply(&self, ctx: &mut Context<'_>, batch: &Batch<'_>) -> Result<(), HandlerError> {
        if self.does == Does::SwallowsErrors {
            let _ = sqlx::query("SELECT 1 / 0").execute(ctx.connection()).await;
        }
        let mut amounts: Vec<(String, i64)> = Vec::new();
        for event in batch.iter_by_entity() {
            let value: Value = event.json()?;
            amounts.push((
                event.entity().to_owned(),
                value["amount"].as_i64().unwrap_or(0),
            ));
        }
        let seen = self
            .seen
            .fetch_add(batch.len() as i64, std::sync::atomic::Ordering::SeqCst);
        let note = match self.does {
            Does::ReadsTheClock => "clock_timestamp()::text",
            Does::Remembers => &seen.to_string(),
            _ => "''",
        };
        let rows = match self.does {
            Does::CountsBatches => "1",
            _ => "count(*)",
        };
        sqlx::query(sqlx::AssertSqlSafe(format!(
            "INSERT INTO sums AS s (entity, amount, rows, note)
             SELECT entity, sum(amount), {rows}, {note} FROM unnest($1::text[], $2::bigint[]) AS t (entity, amount)
             GROUP BY entity ORDER BY entity
             ON CONFLICT (entity) DO UPDATE
             SET amount = s.amount + excluded.amount, rows = s.rows + excluded.rows, note = excluded.note"
        )))
        .bind(amounts.iter().map(|(entity, _)| &**entity).collect::<Vec<_>>())
        .bind(amounts.iter().map(|(_, amount)| *amount).collect::<Vec<_>>())
        .execute(ctx.connection())
        .await?;
        let told = match self.does {
            Does::EmitsPerBatch => 1,
            _ => batch.len(),
        };
        for event in batch.iter().take(told) {
            let message = Message {
                topic: "told".to_owned(),
                key: Some(event.entity().into()),
                payload: event.record().value().map(Vec::from),
                ..Message::default()
            };
            ctx.emit(&event, "told", message)?;
        }
        Ok(())
    }
}

fn projection(does: Does, gate: Gate) -> Projection {
    let handler = Sums {
        does,
        seen: std::sync::atomic::AtomicI64::new(0),
    };
    Projection::batch("sums", 1, &["entries"], gate, handler)
        .entity(Source::Pointer("/entity".to_owned()))
        .sequence(Source::Pointer("/seq".to_owned()))
        .setup(
            "CREATE TABLE sums (entity text PRIMARY KEY, amount numeric, rows bigint, note text)",
        )
}

/// Three entries of one entity, two of another, in two partitions.
fn test(projection: &Projection) -> Test<'_> {
    let entries = [
        ("a", 1, 5),
        ("b", 1, 1),
        ("a", 2, 7),
        ("b", 2, 2),
        ("a", 3, -2),
    ];
    let mut test = Test::of(projection).seed(7);
    for (entity, seq, amount) in entries {
        let value = json!({ "entity": entity, "seq": seq, "amount": amount });
        test = test.given(Given::json(value).partition(i32::from(entity == "b")));
    }
    test.then(
        "sums",
        json!([{ "entity": "a", "amount": 10 }, { "entity": "b", "amount": 3 }]),
    )
}

#[track_caller]
fn found(does: Does, gate: Gate, expected: &str) {
    let projection = projection(does, gate);
    let world = World::without_kafka();
    let url = world.db.url();
    let done = block_on(test(&projection).run(&url));
    let why = done.expect_err("the fault is found").to_string();
    assert!(why.contains(expected), "{why}");
}

#[test]
fn a_projection_that_is_right_passes() {
    let projection = projection(Does::Right, Gate::NEXT);
    let world = World::without_kafka();
    let url = world.db.url();
    block_on(test(&projection).run(&url)).unwrap();
    let wrong = test(&projection).then("sums", json!([{ "entity": "a", "amount": 11 }]));
    let why = block_on(wrong.run(&url)).unwrap_err().to_string();
    assert!(why.contains("- {\"amount\":11,\"entity\":\"a\"}"), "{why}");
}

#[test]
fn sums_without_a_gate_are_found() {
    found(
        Does::Right,
        Gate::None,
        "applied again: give the projection a gate",
    );
}

#[test]
fn a_handler_that_reads_the_clock_is_found() {
    found(Does::ReadsTheClock, Gate::NEXT, "reads a clock");
}

#[test]
fn messages_of_batches_instead_of_events_are_found() {
    found(
        Does::EmitsPerBatch,
        Gate::NEXT,
        "depends on how the events were cut",
    );
}

#[test]
fn rows_that_depend_on_batches_are_found() {
    found(
        Does::CountsBatches,
        Gate::NEXT,
        "depends on how the events were cut",
    );
}

#[test]
fn a_swallowed_error_is_found() {
    found(
        Does::SwallowsErrors,
        Gate::NEXT,
        "has swallowed an SQL error",
    );
}

#[test]
fn what_a_handler_remembers_outside_of_tables_is_found() {
    found(Does::Remembers, Gate::NEXT, "a second time (+)");
}

#[test]
fn a_test_leaves_no_database_behind() {
    let world = World::without_kafka();
    let right = projection(Does::Right, Gate::NEXT);
    block_on(test(&right).run(&world.db.url())).unwrap();
    let wrong = projection(Does::CountsBatches, Gate::NEXT);
    block_on(test(&wrong).run(&world.db.url())).unwrap_err();
    // Those of tests beside this one come and go; none stays.
    crate::harness::wait_until(crate::harness::LONG, "no database is left", || {
        world
            .db
            .one("SELECT count(*) = 0 FROM pg_database WHERE datname LIKE 'tidegate\\_test\\_%'")
    });
}

#[test]
fn the_examples_are_right_and_their_own_tests_pass() {
    let world = World::without_kafka();
    for (example, tests) in [("ledger", 4), ("orders", 3), ("feed", 2), ("totals", 1)] {
        let config = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/");
        let config = format!("{config}{example}/tidegate.toml");
        let run = |command: &str| {
            let command = [command, "--config", &config];
            world.launch(example).output(&command).expect(0)
        };
        run("check");
        let done = run("test").stdout;
        let passed = format!("{tests} test{} passed", if tests == 1 { "" } else { "s" });
        assert!(done.contains(&passed), "{example}: {done}");
    }
}

// The two that are in Rust, and the fold whose rows carry the gate.
#[test]
fn the_examples_in_rust_are_right() {
    let world = World::without_kafka();
    let order = |key: &str, version: &str, status: &str| {
        let value = json!({ "status": status, "total": 4200 });
        Given::json(value).key(key).header("version", version)
    };
    let orders = orders_and_totals::orders();
    let test = Test::of(&orders)
        .given(order("o-1", "1", "placed"))
        .given(Given::tombstone("o-1").header("version", "3"))
        .given(order("o-1", "2", "paid"))
        .given(order("o-2", "1", "placed"))
        .then(
            "order_state",
            json!([{ "order_id": "o-2", "status": "placed" }]),
        );
    block_on(test.run(&world.db.url())).unwrap();

    let sale = |id: &str, country: &str, cents: i64| {
        Given::json(json!({ "id": id, "country": country, "cents": cents }))
    };
    let totals = orders_and_totals::totals();
    let test = Test::of(&totals)
        .given(sale("1", "NZ", 100))
        .given(sale("2", "AT", 50))
        .given(sale("1", "NZ", 100))
        .given(sale("3", "NZ", -20))
        .then(
            "sales",
            json!([{ "country": "AT", "sales": 1, "cents": 50 }, { "country": "NZ", "sales": 2, "cents": 80 }]),
        );
    block_on(test.run(&world.db.url())).unwrap();
}
