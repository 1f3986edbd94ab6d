//! `examples/orders` and `examples/totals` in Rust, for what is different there: a fold whose state goes away with a
//! tombstone, and a batch handler that writes rows which every other batch writes too.
//!
//! ```text
//! cargo run --example orders_and_totals -- check --config examples/orders/tidegate.toml
//! ```

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Deserialize;
use tidegate::projection::{
    Batch, BatchHandler, Columns, Context, Event, Fold, Gate, HandlerError, Messages, Projection,
    Registry, RegistryError, Source, State, Tombstones,
};

// Orders: what a record says is the whole state, so the fold looks at the state before only where it has to.

#[derive(Deserialize, sqlx::FromRow)]
struct Order {
    status: String,
    total: i64,
    coupon: Option<String>,
}

impl State for Order {
    const TABLE: &'static str = "order_state";
    const KEY: &'static str = "order_id";

    fn columns(columns: &mut Columns<'_, Self>) {
        columns.column("status", |order| order.status.as_str());
        columns.column("total", |order| order.total);
        columns.column("coupon", |order| order.coupon.as_deref());
    }
}

struct Orders;

impl Fold for Orders {
    type State = Order;

    fn fold(
        &self,
        _before: Option<Order>,
        event: &Event<'_>,
        _messages: &mut Messages,
    ) -> Result<Option<Order>, HandlerError> {
        // No state: the row is deleted. The gate keeps the version in a row of its own, so an older record that is sent
        // again does not bring the order back; for that reason this is no `Projection::fold_with_gate`.
        if event.record().value().is_none() {
            return Ok(None);
        }
        event.json().map(Some)
    }
}

/// The orders of the topic `orders`; their version is in a header, since a tombstone has no body.
#[allow(unreachable_pub, reason = "tests take it from here")]
pub fn orders() -> Projection {
    Projection::fold("orders_folded", 1, &["orders"], Gate::Newest, Orders)
        .entity(Source::Key)
        .sequence(Source::Header("version".to_owned()))
        .tombstones(Tombstones::Event)
        .setup(
            r#"CREATE TABLE order_state (
                 order_id text COLLATE "C" PRIMARY KEY, status text NOT NULL, total bigint NOT NULL, coupon text
             )"#,
        )
}

// Totals: a few rows to which every batch of every writer adds.

#[derive(Deserialize)]
struct Sale {
    country: String,
    cents: i64,
}

struct Totals;

const ADD: &str = "
    INSERT INTO sales AS s (country, sales, cents)
    SELECT country, sales, cents FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS t (country, sales, cents)
    ON CONFLICT (country) DO UPDATE SET sales = s.sales + excluded.sales, cents = s.cents + excluded.cents";

impl BatchHandler for Totals {
    async fn apply(&self, ctx: &mut Context<'_>, batch: &Batch<'_>) -> Result<(), HandlerError> {
        // Sorted: rows stay locked until the batch commits, and two batches that take two rows in different orders would
        // wait for each other. A map that iterates in an order of its own, as HashMap does, would do just that.
        let mut sums: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for event in batch.iter() {
            let sale: Sale = event.json()?;
            let (sales, cents) = sums.entry(sale.country).or_default();
            *sales += 1;
            *cents = cents
                .checked_add(sale.cents)
                .ok_or_else(|| HandlerError::terminal("the total is too large").at(&event))?;
        }
        let (countries, of): (Vec<String>, Vec<(i64, i64)>) = sums.into_iter().unzip();
        let (sales, cents): (Vec<i64>, Vec<i64>) = of.into_iter().unzip();
        sqlx::query(ADD)
            .bind(countries)
            .bind(sales)
            .bind(cents)
            .execute(ctx.connection())
            .await?;
        Ok(())
    }
}

/// The sales of the topic `sales` by country; a sale's id tells copies.
#[allow(unreachable_pub, reason = "tests take it from here")]
pub fn totals() -> Projection {
    Projection::batch("totals_in_batches", 1, &["sales"], Gate::None, Totals)
        .event_id(Source::Pointer("/id".to_owned()))
        .setup(
            r#"CREATE TABLE sales (country text COLLATE "C" PRIMARY KEY, sales bigint NOT NULL, cents bigint NOT NULL)
             WITH (fillfactor = 70)"#,
        )
}

fn registry() -> Result<Registry, RegistryError> {
    Registry::new().register(orders())?.register(totals())
}

#[allow(clippy::print_stderr, reason = "this is a command line")]
fn main() -> ExitCode {
    match registry() {
        Ok(registry) => tidegate::cli::main(registry),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
