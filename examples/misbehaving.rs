//! Everything that a handler must not do. For the tests only: see `tests/it/handlers.rs`.
//!
//! The handler writes an effect and emits a message for every record. Where a record's value is
//! `{"do": ".."}` it then misbehaves in the way that the value names. `KIND` says which kind of handler it is.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Deserialize;
use sqlx::Connection as _;
use sqlx::types::Json;
use tidegate::projection::{
    Batch, BatchHandler, Columns, Context, Event, EventHandler, Fold, Gate, HandlerError, Message,
    Messages, OnFailure, Projection, Registry, Source, State,
};

static HAS_WAITED: AtomicBool = AtomicBool::new(false);

const SETUP: &str = "
    CREATE TABLE effect (part integer NOT NULL, record_offset bigint NOT NULL);
    CREATE TABLE seen (entity text PRIMARY KEY, events bigint NOT NULL, last text, places jsonb NOT NULL)";

#[derive(Deserialize)]
struct Order {
    #[serde(rename = "do")]
    what: Option<String>,
}

struct Misbehaving {
    outgoing: String,
}

impl Misbehaving {
    fn copy(&self, event: &Event<'_>) -> Message {
        Message {
            topic: self.outgoing.clone(),
            payload: event.record().value().map(<[u8]>::to_vec),
            ..Message::default()
        }
    }
}

impl BatchHandler for Misbehaving {
    async fn apply(&self, ctx: &mut Context<'_>, batch: &Batch<'_>) -> Result<(), HandlerError> {
        for event in batch.iter() {
            sqlx::query("INSERT INTO effect VALUES ($1, $2)")
                .bind(event.partition().partition())
                .bind(event.record().offset())
                .execute(ctx.connection())
                .await?;
            ctx.emit(&event, "copy", self.copy(&event))?;
            let order: Order = event.json()?;
            match order.what.as_deref() {
                None => {}
                Some("commit") => return run(ctx, "COMMIT").await,
                Some("commit and begin") => {
                    run(ctx, "COMMIT").await?;
                    return run(ctx, "BEGIN").await;
                }
                Some("rollback") => return run(ctx, "ROLLBACK").await,
                Some("rollback and begin") => {
                    run(ctx, "ROLLBACK").await?;
                    return run(ctx, "BEGIN").await;
                }
                Some("swallow") => {
                    let _ = run(ctx, "SELECT 1 / 0").await;
                }
                Some("swallow, then go on") => {
                    let _ = run(ctx, "SELECT 1 / 0").await;
                    run(ctx, "SELECT 1").await?;
                }
                // In the middle of the transaction, as for an answer of somebody else's.
                Some("wait for long, once") if !HAS_WAITED.swap(true, Ordering::Relaxed) => {
                    tokio::time::sleep(Duration::from_secs(3)).await;
                }
                Some("wait for long, once") => {}
                Some("panic") => panics(),
                Some("reject") => {
                    return Err(HandlerError::terminal("not this one").at(&event));
                }
                Some("reject without a name") => {
                    return Err(HandlerError::terminal("one of them"));
                }
                Some("take its time") => run(ctx, "SELECT pg_sleep(15)").await?,
                Some("a missing table") => run(ctx, "SELECT * FROM nowhere").await?,
                Some("a missing row") => {
                    let none = sqlx::query("SELECT 1 WHERE false");
                    none.fetch_one(ctx.connection()).await?;
                }
                Some("what postgres does not do") => {
                    run(ctx, "SELECT DISTINCT part FROM effect FOR UPDATE").await?;
                }
                Some("take back") => take_back(ctx).await?,
                Some("fail in a savepoint") => self.fail_in_savepoint(ctx, &event).await?,
                Some("swallow in a savepoint") => {
                    let savepoint = ctx.savepoint().await?;
                    let _ = run(ctx, "SELECT 1 / 0").await;
                    let _ = ctx.release(savepoint).await;
                }
                Some("commit in a savepoint") => {
                    let savepoint = ctx.savepoint().await?;
                    let _ = run(ctx, "COMMIT").await;
                    let _ = ctx.roll_back_to(savepoint).await;
                }
                Some("roll back to a savepoint that is gone") => {
                    let outer = ctx.savepoint().await?;
                    let inner = ctx.savepoint().await?;
                    ctx.roll_back_to(outer).await?;
                    ctx.roll_back_to(inner).await?;
                }
                Some("rollback, then write and fail") => {
                    run(ctx, "ROLLBACK").await?;
                    run(ctx, "INSERT INTO misbehaving.effect VALUES (-1, -1)").await?;
                    return Err(HandlerError::transient("come back later"));
                }
                Some("come back later") => return Err(HandlerError::transient("come back later")),
                Some("emit too much") => {
                    let message = Message {
                        topic: self.outgoing.clone(),
                        payload: Some(vec![b'x'; 2_000_000]),
                        ..Message::default()
                    };
                    ctx.emit(&event, "huge", message)?;
                }
                Some(other) => return Err(HandlerError::terminal(format!("do what? {other}"))),
            }
        }
        Ok(())
    }
}

impl Misbehaving {
    /// What a handler may do: fail in a part, take it back with its messages, and go on.
    async fn fail_in_savepoint(
        &self,
        ctx: &mut Context<'_>,
        event: &Event<'_>,
    ) -> Result<(), HandlerError> {
        let message = |text: &str| Message {
            topic: self.outgoing.clone(),
            payload: Some(format!("\"{text}\"").into_bytes()),
            ..Message::default()
        };
        let outer = ctx.savepoint().await?;
        ctx.emit(event, "part", message("before"))?;
        let inner = ctx.savepoint().await?;
        ctx.emit(event, "part", message("never"))?;
        ctx.emit(event, "other", message("never"))?;
        run(ctx, "INSERT INTO effect VALUES (-1, -1)").await?;
        if run(ctx, "SELECT 1 / 0").await.is_ok() {
            return Err(HandlerError::terminal("it has not failed"));
        }
        ctx.roll_back_to(inner).await?;
        ctx.emit(event, "part", message("after"))?;
        ctx.emit(event, "other", message("after"))?;
        ctx.release(outer).await
    }
}

/// The same, event by event; what it can do wrong is what a record can be at fault for.
struct OneByOne(Misbehaving);

impl EventHandler for OneByOne {
    async fn apply(&self, ctx: &mut Context<'_>, event: &Event<'_>) -> Result<(), HandlerError> {
        sqlx::query("INSERT INTO effect VALUES ($1, $2)")
            .bind(event.partition().partition())
            .bind(event.record().offset())
            .execute(ctx.connection())
            .await?;
        ctx.emit(event, "copy", self.0.copy(event))?;
        let order: Order = event.json()?;
        match order.what.as_deref() {
            Some("divide") => run(ctx, "SELECT 1 / 0").await,
            what => at_fault(what),
        }
    }
}

/// The same as a fold, which keeps what it has seen of an entity.
struct Folding(Misbehaving);

#[derive(Default, sqlx::FromRow)]
struct Seen {
    events: i64,
    last: Option<String>,
    #[sqlx(json)]
    places: Vec<(i32, i64)>,
}

impl State for Seen {
    const TABLE: &'static str = "seen";
    const KEY: &'static str = "entity";

    fn columns(columns: &mut Columns<'_, Self>) {
        columns.column("events", |seen| seen.events);
        columns.column("last", |seen| seen.last.as_deref());
        columns.column("places", |seen| Json(&seen.places));
    }
}

impl Fold for Folding {
    type State = Seen;

    fn fold(
        &self,
        state: Option<Seen>,
        event: &Event<'_>,
        messages: &mut Messages,
    ) -> Result<Option<Seen>, HandlerError> {
        messages.emit("copy", self.0.copy(event));
        let order: Order = event.json()?;
        at_fault(order.what.as_deref())?;
        if order.what.as_deref() == Some("forget") {
            return Ok(None);
        }
        let mut seen = state.unwrap_or_default();
        seen.events += 1;
        seen.last = order.what;
        let (partition, offset) = (event.partition().partition(), event.record().offset());
        seen.places.push((partition, offset));
        Ok(Some(seen))
    }
}

fn at_fault(what: Option<&str>) -> Result<(), HandlerError> {
    match what {
        Some("panic") => panics(),
        Some("reject") => return Err(HandlerError::terminal("not this one")),
        _ => {}
    }
    Ok(())
}

async fn run(ctx: &mut Context<'_>, sql: &'static str) -> Result<(), HandlerError> {
    // Unprepared: transaction commands as a handler would send them.
    sqlx::raw_sql(sql).execute(ctx.connection()).await?;
    Ok(())
}

/// What a handler may do: a transaction of its own inside ours is a savepoint.
#[allow(clippy::disallowed_methods, reason = "that is what is tested")]
async fn take_back(ctx: &mut Context<'_>) -> Result<(), HandlerError> {
    let mut own = ctx.connection().begin().await?;
    sqlx::query("INSERT INTO effect VALUES (-1, -1)")
        .execute(&mut *own)
        .await?;
    own.rollback().await?;
    Ok(())
}

#[allow(clippy::panic, reason = "that is what is tested")]
fn panics() {
    panic!("out of cheese");
}

#[allow(clippy::print_stderr, reason = "this is a command line")]
fn main() -> ExitCode {
    let topic = |variable: &str| std::env::var(variable).unwrap_or_else(|_| "none".to_owned());
    let handler = Misbehaving {
        outgoing: topic("OUTGOING_TOPIC"),
    };
    let incoming = topic("INCOMING_TOPIC");
    let (name, topics) = ("misbehaving", [&*incoming]);
    let projection = match std::env::var("KIND").as_deref() {
        Ok("fold") => {
            Projection::fold(name, 1, &topics, Gate::None, Folding(handler)).entity(Source::Key)
        }
        Ok("event") => Projection::event(name, 1, &topics, Gate::None, OneByOne(handler)),
        _ => Projection::batch(name, 1, &topics, Gate::None, handler),
    };
    let on_failure = match std::env::var("ON_FAILURE").as_deref() {
        Ok("park") => OnFailure::Park,
        _ => OnFailure::Halt,
    };
    let attempts = std::env::var("ATTEMPTS_MAX").ok();
    let attempts = attempts.and_then(|max| max.parse().ok()).unwrap_or(0);
    let projection = projection
        .setup(SETUP)
        .on_failure(on_failure)
        .attempts_max(attempts);
    match Registry::new().register(projection) {
        Ok(registry) => tidegate::cli::main(registry),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
