//! Tidegate applies Kafka events to Postgres **exactly once**.
//!
//! A consumer group stores the effects of events and its positions in Postgres in one transaction,
//! drops stale events with per-entity sequence gates, and sends downstream messages through an outbox.
//!
//! Projections are written in SQL, in a configuration file, for the `tidegate` binary; or in Rust, as a
//! [`projection::Fold`], [`projection::BatchHandler`] or [`projection::EventHandler`], and handed to
//! [`cli::main`], which gives your own binary the same commands:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use tidegate::projection::{
//!     Batch, BatchHandler, Context, Gate, HandlerError, Projection, Registry, Source,
//! };
//!
//! /// Counts events per topic, wherever they come from.
//! struct EventCount;
//!
//! impl BatchHandler for EventCount {
//!     async fn apply(&self, ctx: &mut Context<'_>, batch: &Batch<'_>) -> Result<(), HandlerError> {
//!         let topics: Vec<&str> = batch.iter().map(|event| event.partition().topic()).collect();
//!         sqlx::query(
//!             "INSERT INTO event_count AS c (topic, events)
//!              SELECT topic, count(*) FROM unnest($1::text[]) AS t (topic) GROUP BY topic ORDER BY topic
//!              ON CONFLICT (topic) DO UPDATE SET events = c.events + excluded.events",
//!         )
//!         .bind(&topics)
//!         .execute(ctx.connection())
//!         .await?;
//!         Ok(())
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     let projection = Projection::batch("event_count", 1, &["orders"], Gate::None, EventCount)
//!         .event_id(Source::Pointer("/id".to_owned()))
//!         .setup("CREATE TABLE event_count (topic text PRIMARY KEY, events bigint NOT NULL)");
//!     match Registry::new().register(projection) {
//!         Ok(registry) => tidegate::cli::main(registry),
//!         Err(error) => {
//!             eprintln!("{error}");
//!             ExitCode::FAILURE
//!         }
//!     }
//! }
//! ```

mod avro;
pub mod cli;
mod codec;
mod config;
mod engine;
mod failpoint;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod http;
mod kafka;
mod outbox;
pub mod projection;
mod registry;
mod relay;
mod runtime;
mod sql_projection;
mod store;
mod telemetry;
pub mod testing;
pub mod types;

pub use outbox::Outbox;
