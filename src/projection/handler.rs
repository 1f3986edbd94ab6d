//! The handler traits and their error.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;

use futures_util::future::BoxFuture;

use super::bulk::Bulk;
use super::context::Context;
use super::definition::Gate;
use super::entity_type::EntityType;
use super::events::{Batch, Event, Ref};
use crate::engine::Class;

/// Applies the admitted events of a batch at once, in the batch's transaction.
///
/// ```
/// # use tidegate::projection::{Batch, BatchHandler, Context, HandlerError};
/// struct EventCount;
///
/// impl BatchHandler for EventCount {
///     async fn apply(&self, ctx: &mut Context<'_>, batch: &Batch<'_>) -> Result<(), HandlerError> {
///         sqlx::query("UPDATE event_count SET count = count + $1")
///             .bind(i64::try_from(batch.len()).unwrap_or(i64::MAX))
///             .execute(ctx.connection())
///             .await?;
///         Ok(())
///     }
/// }
/// ```
pub trait BatchHandler: Send + Sync + 'static {
    /// Writes what the events mean. Either all of it commits, with the position, or nothing.
    ///
    /// Called again with the same events after a failure, and with other cuts of the same events
    /// after a restart: keep no state that outlives the call.
    fn apply(
        &self,
        ctx: &mut Context<'_>,
        batch: &Batch<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// Applies the admitted events one at a time, in the order of their partition, in the transaction of their batch.
///
/// The simplest kind, and the slowest: each event costs its own round trips. An event that fails is known at
/// once, and need not be searched for.
///
/// ```
/// # use tidegate::projection::{Context, Event, EventHandler, HandlerError};
/// struct EventCount;
///
/// impl EventHandler for EventCount {
///     async fn apply(&self, ctx: &mut Context<'_>, event: &Event<'_>) -> Result<(), HandlerError> {
///         sqlx::query("UPDATE event_count SET count = count + 1 WHERE topic = $1")
///             .bind(event.partition().topic())
///             .execute(ctx.connection())
///             .await?;
///         Ok(())
///     }
/// }
/// ```
pub trait EventHandler: Send + Sync + 'static {
    /// Writes what the event means. It commits with the rest of its batch and the position, or nothing does.
    ///
    /// Called again with the same event after a failure of another one: keep no state that outlives the call.
    fn apply(
        &self,
        ctx: &mut Context<'_>,
        event: &Event<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// Any kind of handler, as the runtime calls it.
pub(crate) trait Handler: Send + Sync {
    /// Whether the handler may look at records themselves, and so at their headers.
    fn sees_records(&self) -> bool;

    /// Whether it may emit although it does not see records.
    fn emits(&self) -> bool {
        false
    }

    /// Whether its statements are so plain that planning them anew for each batch buys nothing.
    fn any_plan_will_do(&self) -> bool {
        false
    }

    /// Its statements, if it is nothing but statements. Code has its projection's `version` alone.
    fn statements(&self) -> String {
        String::new()
    }

    /// Whether it keeps a state for each entity, which it reads and writes back: then there must be entities, and
    /// they are locked also where there is no gate.
    fn keeps_states(&self) -> bool {
        false
    }

    /// The table of these states, and the column that has their entity.
    fn entity_rows(&self) -> Option<(String, String)> {
        None
    }

    /// Which type that column is of.
    fn entity_type(&self) -> EntityType {
        EntityType::Text
    }

    /// For what is built beside the live tables: the same effects, from memory. None if it cannot.
    fn bulk(&self, _: Gate) -> Option<Box<dyn Bulk>> {
        None
    }

    fn apply<'a>(
        &'a self,
        ctx: &'a mut Context<'_>,
        batch: &'a Batch<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>>;
}

/// A [`BatchHandler`] behind a pointer.
pub(crate) struct Erased<H>(pub(crate) H);

impl<H: BatchHandler> Handler for Erased<H> {
    fn sees_records(&self) -> bool {
        true
    }

    fn apply<'a>(
        &'a self,
        ctx: &'a mut Context<'_>,
        batch: &'a Batch<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(self.0.apply(ctx, batch))
    }
}

/// An [`EventHandler`] behind a pointer.
pub(crate) struct OneByOne<H>(pub(crate) H);

impl<H: EventHandler> Handler for OneByOne<H> {
    fn sees_records(&self) -> bool {
        true
    }

    /// A statement has one event, however many the batch has.
    fn any_plan_will_do(&self) -> bool {
        true
    }

    fn apply<'a>(
        &'a self,
        ctx: &'a mut Context<'_>,
        batch: &'a Batch<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            for event in batch.iter() {
                ctx.attribute_to(Some(event.reference));
                self.0.apply(ctx, &event).await?;
            }
            ctx.attribute_to(None);
            Ok(())
        })
    }
}

/// Why a handler could not apply a batch.
///
/// An SQL error is classified by its SQLSTATE; anything else is terminal unless it says otherwise.
#[derive(Debug)]
pub struct HandlerError {
    class: Class,
    at: Option<Ref>,
    /// With the gate in the row: not all rows could be written, since one has moved or was left out.
    row_missed: bool,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl HandlerError {
    /// The record can never be applied, however often it is tried.
    pub fn terminal(why: impl Into<String>) -> Self {
        Self::new(Class::Terminal, why)
    }

    /// The same batch may pass later.
    pub fn transient(why: impl Into<String>) -> Self {
        Self::new(Class::Transient, why)
    }

    pub(crate) fn new(class: Class, why: impl Into<String>) -> Self {
        Self {
            class,
            at: None,
            row_missed: false,
            message: why.into(),
            source: None,
        }
    }

    /// With the gate in the row: fewer or more rows were written than entities were admitted.
    pub(crate) fn rows_missed(why: String) -> Self {
        Self {
            row_missed: true,
            ..Self::new(Class::Halt, why)
        }
    }

    pub(crate) fn at_ref(mut self, event: Ref) -> Self {
        self.at = Some(event);
        self
    }

    /// Names the event at fault, so that it need not be searched for.
    #[must_use]
    pub fn at(self, event: &Event<'_>) -> Self {
        self.at_ref(event.reference)
    }

    /// The same for one that names none, if it is known whose fault it is.
    pub(crate) fn or_at(self, event: Option<Ref>) -> Self {
        let at = self.at.or(event);
        Self { at, ..self }
    }

    /// Says where it happened.
    pub(crate) fn within(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// Another class than usual.
    pub(crate) fn with_class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    pub(crate) fn class(&self) -> Class {
        self.class
    }

    pub(crate) fn is_row_missed(&self) -> bool {
        self.row_missed
    }

    pub(crate) fn place(&self) -> Option<Ref> {
        self.at
    }

    /// The SQL error behind it, if it was one.
    pub(crate) fn sql(&self) -> Option<&sqlx::Error> {
        self.source.as_ref()?.downcast_ref()
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for HandlerError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_ref()
            .map(|source| source.as_ref() as &(dyn StdError + 'static))
    }
}

impl From<sqlx::Error> for HandlerError {
    fn from(error: sqlx::Error) -> Self {
        Self {
            class: crate::store::class_of_handler_error(&error),
            at: None,
            row_missed: false,
            message: crate::store::describe(&error),
            source: Some(Box::new(error)),
        }
    }
}
