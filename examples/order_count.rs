//! A projection in Rust: counts the orders of each customer, and sends a message at every tenth.
//!
//! ```text
//! cargo run --example order_count -- migrate --config examples/order_count.toml
//! cargo run --example order_count -- run --config examples/order_count.toml
//! ```
//!
//! An order is `{"id": "5f0c..", "customer": "c-17"}` with the customer as the record's key: all orders
//! of a customer are in one partition, so which one is the tenth is a fact of the log. `id` stays the
//! same on every resend; the inbox drops copies.
//!
//! The handler shows what a handler owes: it folds the batch first and writes once, and its messages
//! are the same however the batch was cut.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Deserialize;
use tidegate::projection::{
    Batch, BatchHandler, Context, Event, Gate, HandlerError, Message, Projection, Registry, Source,
};

const SETUP: &str =
    r#"CREATE TABLE order_count (customer text COLLATE "C" PRIMARY KEY, orders bigint NOT NULL)"#;

// One row per customer even if the batch has many of its orders: ON CONFLICT touches a row once only.
const ADD: &str = "
    INSERT INTO order_count AS c (customer, orders)
    SELECT customer, orders FROM unnest($1::text[], $2::bigint[]) AS t (customer, orders)
    ON CONFLICT (customer) DO UPDATE SET orders = c.orders + excluded.orders
    RETURNING customer, orders";

#[derive(Deserialize)]
struct Order {
    customer: String,
}

struct OrderCount {
    rewards: String,
}

impl BatchHandler for OrderCount {
    async fn apply(&self, ctx: &mut Context<'_>, batch: &Batch<'_>) -> Result<(), HandlerError> {
        let mut orders: BTreeMap<String, Vec<Event<'_>>> = BTreeMap::new();
        for event in batch.iter() {
            let order: Order = event.json()?;
            orders.entry(order.customer).or_default().push(event);
        }
        // Sorted by customer, so that two writers that meet on rows wait for each other and never deadlock.
        let customers: Vec<&str> = orders.keys().map(String::as_str).collect();
        let added: Vec<i64> = orders.values().map(|events| count(events)).collect();
        let totals: Vec<(String, i64)> = sqlx::query_as(ADD)
            .bind(&customers)
            .bind(&added)
            .fetch_all(ctx.connection())
            .await?;
        for (customer, total) in totals {
            let events = &orders[&customer];
            // The total is the one after the batch; each order's own number is counted from before it.
            for (number, event) in (total - count(events) + 1..).zip(events) {
                if number % 10 == 0 {
                    let message = Message {
                        topic: self.rewards.clone(),
                        key: Some(customer.clone().into_bytes()),
                        payload: Some(format!("{{\"orders\": {number}}}").into_bytes()),
                        ..Message::default()
                    };
                    ctx.emit(event, "reward", message)?;
                }
            }
        }
        Ok(())
    }
}

fn count(events: &[Event<'_>]) -> i64 {
    i64::try_from(events.len()).unwrap_or(i64::MAX)
}

fn topic(variable: &str, usual: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| usual.to_owned())
}

#[allow(clippy::print_stderr, reason = "this is a command line")]
fn main() -> ExitCode {
    let handler = OrderCount {
        rewards: topic("REWARDS_TOPIC", "rewards"),
    };
    let orders = topic("ORDERS_TOPIC", "orders");
    let projection = Projection::batch("order_count", 1, &[&orders], Gate::None, handler)
        .event_id(Source::Pointer("/id".to_owned()))
        .setup(SETUP);
    match Registry::new().register(projection) {
        Ok(registry) => tidegate::cli::main(registry),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
