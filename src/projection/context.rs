//! What a handler may do: use the transaction, emit messages. It cannot commit.

use std::collections::HashMap;

use sqlx::PgConnection;

use super::events::{Event, Ref};
use super::handler::HandlerError;
use crate::types::Header;

/// The largest message that `emit` takes, in bytes of key, payload and headers: Kafka's default limit
/// for a record, less what framing and CloudEvents headers need.
const MESSAGE_SIZE_MAX: usize = 1_000_000;

/// A downstream message. It leaves only if the batch commits, and then at least once, always with
/// the same id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The topic it goes to.
    pub topic: String,
    /// Its key: decides the partition, and the order among messages of the same key.
    pub key: Option<Vec<u8>>,
    /// Its value; none is a tombstone.
    pub payload: Option<Vec<u8>>,
    /// CloudEvents type (`ce_type`); the name of the emit if empty.
    pub kind: String,
    /// Further headers. Names that begin with `ce_` are Tidegate's.
    pub headers: Vec<Header>,
}

/// A message with the record it comes from and its place among that record's messages.
#[derive(Clone, Debug)]
pub(crate) struct Emitted {
    pub(crate) reference: Ref,
    pub(crate) name: String,
    pub(crate) index: i32,
    pub(crate) message: Message,
}

/// A handler's view of the one transaction.
pub struct Context<'c> {
    connection: &'c mut PgConnection,
    emitted: Vec<Emitted>,
    counts: HashMap<Ref, Vec<(String, i32)>>,
}

impl<'c> Context<'c> {
    pub(crate) fn new(connection: &'c mut PgConnection) -> Self {
        Self {
            connection,
            emitted: Vec::new(),
            counts: HashMap::new(),
        }
    }

    /// The batch's transaction. `search_path` begins with the projection's schema.
    ///
    /// A COMMIT run through it fails, and rolls everything back; that, and a ROLLBACK, halts the partition.
    pub fn connection(&mut self) -> &mut PgConnection {
        self.connection
    }

    /// Puts a message in the outbox, in the name of `event`.
    ///
    /// `name` distinguishes the messages that one event may cause: the message's id is made from the
    /// projection, the event's record, this name and the count under it, so a retry, a redelivery or
    /// a rebuild makes the same id again and never a second message (I5).
    ///
    /// # Errors
    /// A terminal error when the message is too large or names no topic.
    pub fn emit(
        &mut self,
        event: &Event<'_>,
        name: &str,
        message: Message,
    ) -> Result<(), HandlerError> {
        self.emit_ref(event.reference, name, message)
    }

    pub(crate) fn emit_ref(
        &mut self,
        reference: Ref,
        name: &str,
        message: Message,
    ) -> Result<(), HandlerError> {
        let refuse =
            |why: String| HandlerError::terminal(format!("emit `{name}`: {why}")).at_ref(reference);
        if message.topic.is_empty() {
            return Err(refuse("the message names no topic".to_owned()));
        }
        if let Some(header) = message.headers.iter().find(|h| h.name.starts_with("ce_")) {
            return Err(refuse(format!(
                "header `{}` is set by tidegate",
                header.name
            )));
        }
        let size = message.key.as_ref().map_or(0, Vec::len)
            + message.payload.as_ref().map_or(0, Vec::len)
            + message
                .headers
                .iter()
                .map(|h| h.name.len() + h.value.as_ref().map_or(0, Vec::len))
                .sum::<usize>();
        if size > MESSAGE_SIZE_MAX {
            return Err(refuse(format!(
                "the message has {size} bytes; {MESSAGE_SIZE_MAX} are allowed"
            )));
        }
        let counts = self.counts.entry(reference).or_default();
        let index = match counts.iter_mut().find(|(known, _)| known == name) {
            Some((_, count)) => {
                *count += 1;
                *count
            }
            None => {
                counts.push((name.to_owned(), 0));
                0
            }
        };
        self.emitted.push(Emitted {
            reference,
            name: name.to_owned(),
            index,
            message,
        });
        Ok(())
    }

    /// The messages, in the order in which batches of one record would have emitted them.
    pub(crate) fn into_emitted(mut self) -> Vec<Emitted> {
        // Stable: what one record emits stays in the handler's order.
        self.emitted.sort_by_key(|emitted| emitted.reference);
        self.emitted
    }
}
