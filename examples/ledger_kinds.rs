//! The balances of `examples/ledger` in the three kinds of Rust, side by side: a fold, a batch handler, an event handler.
//!
//! ```text
//! cargo run --example ledger_kinds -- migrate --config examples/ledger/tidegate.toml
//! cargo run --example ledger_kinds -- run --config examples/ledger/tidegate.toml
//! ```
//!
//! The configuration file adds the fourth kind, SQL. The fold is there twice, the second time with its gate in its rows. All have the same tables and send the same messages over the
//! same entries, which a test checks; `docs/handlers.md` says which one to choose. With `ENTRIES_FORMAT=avro` they read the entries that
//! `tidegate demo --format avro` writes: one line more, and the handlers are as they were.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::json;
use tidegate::projection::{
    Avro, Batch, BatchHandler, Column, ColumnType, Columns, Context, Event, EventHandler, Fold,
    Format, Gate, HandlerError, Message, Messages, Projection, Registry, RegistryError, Source,
    State,
};

const SETUP: &str = r#"
    CREATE TABLE balance (account text COLLATE "C" PRIMARY KEY, amount bigint NOT NULL, entries bigint NOT NULL)"#;

/// The same for a fold whose rows carry the gate.
const SETUP_WITH_GATE: &str = r#"
    CREATE TABLE balance (
        account text COLLATE "C" PRIMARY KEY, amount bigint NOT NULL, entries bigint NOT NULL, _sequence bigint NOT NULL
    ) WITH (fillfactor = 80)"#;

/// What is read of an entry; its account is the entity. The fold asks for the column instead.
#[derive(Deserialize)]
struct Entry {
    amount: i64,
}

/// Where overdrafts are told.
#[derive(Clone)]
struct Overdrafts {
    topic: String,
}

impl Overdrafts {
    /// The message of an entry that has taken its account's balance below zero.
    fn message(&self, account: &str, amount: i64, after: i64) -> Option<Message> {
        (after < 0 && after - amount >= 0).then(|| Message {
            topic: self.topic.clone(),
            key: Some(account.as_bytes().to_vec()),
            payload: Some(
                json!({ "account": account, "balance": after })
                    .to_string()
                    .into_bytes(),
            ),
            ..Message::default()
        })
    }
}

// The fold: what an entry makes of its account's balance.

#[derive(Default, sqlx::FromRow)]
struct Balance {
    amount: i64,
    entries: i64,
}

impl State for Balance {
    const TABLE: &'static str = "balance";
    const KEY: &'static str = "account";

    fn columns(columns: &mut Columns<'_, Self>) {
        columns.column("amount", |balance| balance.amount);
        columns.column("entries", |balance| balance.entries);
    }
}

struct Folded(Overdrafts);

impl Fold for Folded {
    type State = Balance;

    fn fold(
        &self,
        state: Option<Balance>,
        event: &Event<'_>,
        messages: &mut Messages,
    ) -> Result<Option<Balance>, HandlerError> {
        let amount: i64 = event.get("amount")?;
        let mut balance = state.unwrap_or_default();
        balance.amount = balance
            .amount
            .checked_add(amount)
            .ok_or_else(|| HandlerError::terminal("the balance is too large"))?;
        balance.entries += 1;
        if let Some(message) = self.0.message(event.entity(), amount, balance.amount) {
            messages.emit("overdraft", message);
        }
        Ok(Some(balance))
    }
}

// The batch handler: one statement for all entries, then back to what the balance was after each of them.

const ADD_ALL: &str = "
    INSERT INTO balance AS b (account, amount, entries)
    SELECT account, sum(amount), count(*) FROM unnest($1::text[], $2::bigint[]) AS t (account, amount)
    GROUP BY account ORDER BY account
    ON CONFLICT (account) DO UPDATE
    SET amount = b.amount + excluded.amount, entries = b.entries + excluded.entries
    RETURNING account, amount";

struct InBatches(Overdrafts);

impl BatchHandler for InBatches {
    async fn apply(&self, ctx: &mut Context<'_>, batch: &Batch<'_>) -> Result<(), HandlerError> {
        let mut entries: BTreeMap<&str, Vec<(Event<'_>, i64)>> = BTreeMap::new();
        let (mut accounts, mut amounts) = (Vec::new(), Vec::new());
        for event in batch.iter() {
            let Entry { amount } = event.json()?;
            let of_account = entries.entry(event.entity()).or_default();
            of_account.push((event, amount));
            accounts.push(event.entity());
            amounts.push(amount);
        }
        let balances: Vec<(String, i64)> = sqlx::query_as(ADD_ALL)
            .bind(&accounts)
            .bind(&amounts)
            .fetch_all(ctx.connection())
            .await?;
        for (account, at_the_end) in balances {
            let entries = &entries[&*account];
            let mut balance = at_the_end - entries.iter().map(|(_, amount)| amount).sum::<i64>();
            for (event, amount) in entries {
                balance += amount;
                if let Some(message) = self.0.message(&account, *amount, balance) {
                    ctx.emit(event, "overdraft", message)?;
                }
            }
        }
        Ok(())
    }
}

// The event handler: a statement for each entry.

const ADD_ONE: &str = "
    INSERT INTO balance AS b (account, amount, entries) VALUES ($1, $2, 1)
    ON CONFLICT (account) DO UPDATE SET amount = b.amount + excluded.amount, entries = b.entries + 1
    RETURNING amount";

struct OneByOne(Overdrafts);

impl EventHandler for OneByOne {
    async fn apply(&self, ctx: &mut Context<'_>, event: &Event<'_>) -> Result<(), HandlerError> {
        let Entry { amount } = event.json()?;
        let balance: i64 = sqlx::query_scalar(ADD_ONE)
            .bind(event.entity())
            .bind(amount)
            .fetch_one(ctx.connection())
            .await?;
        if let Some(message) = self.0.message(event.entity(), amount, balance) {
            ctx.emit(event, "overdraft", message)?;
        }
        Ok(())
    }
}

fn registry() -> Result<Registry, RegistryError> {
    let variable = |variable: &str, usual: &str| {
        let set = std::env::var(variable);
        set.unwrap_or_else(|_| usual.to_owned())
    };
    let entries = variable("ENTRIES_TOPIC", "ledger.entries");
    let topics = [&*entries];
    let overdrafts = Overdrafts {
        topic: variable("OVERDRAFTS_TOPIC", "ledger.overdrafts"),
    };
    let kinds = [
        Projection::fold(
            "balances_folded",
            1,
            &topics,
            Gate::NEXT,
            Folded(overdrafts.clone()),
        ),
        Projection::fold_with_gate(
            "balances_folded_with_gate",
            1,
            &topics,
            Gate::NEXT,
            Folded(overdrafts.clone()),
        ),
        Projection::batch(
            "balances_in_batches",
            1,
            &topics,
            Gate::NEXT,
            InBatches(overdrafts.clone()),
        ),
        Projection::event(
            "balances_one_by_one",
            1,
            &topics,
            Gate::NEXT,
            OneByOne(overdrafts),
        ),
    ];
    let format = match &*variable("ENTRIES_FORMAT", "json") {
        "avro" => Format::Avro(Avro::confluent(include_str!("../schemas/entry.avsc"))),
        _ => Format::Json,
    };
    let mut registry = Registry::new();
    for projection in kinds {
        let setup = match projection.name() {
            "balances_folded_with_gate" => SETUP_WITH_GATE,
            _ => SETUP,
        };
        registry = registry.register(
            projection
                .format(format.clone())
                .entity(Source::Pointer("/account".to_owned()))
                .sequence(Source::Pointer("/seq".to_owned()))
                .column(Column::new(
                    "amount",
                    ColumnType::Bigint,
                    Source::Pointer("/amount".to_owned()),
                ))
                .setup(setup),
        )?;
    }
    Ok(registry)
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
