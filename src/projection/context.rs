//! What a handler may do: use the transaction, emit messages. It cannot commit.

use std::fmt;
use std::sync::Arc;

use sqlx::{AssertSqlSafe, PgConnection};

use super::events::{Event, Ref};
use super::handler::HandlerError;
use super::problems::{TOPIC_CURE, is_topic};
use crate::types::{Header, Message};

/// The largest message that `emit` takes, in bytes of key, payload, type and headers.
///
/// The producer's `message.max.bytes` is 1,048,588, as is the brokers' default, and counts framing and
/// the CloudEvents headers too. These have the 48 KB in between and need a few hundred bytes of it: what
/// the emitter can make longer is counted here.
pub(crate) const MESSAGE_SIZE_MAX: usize = 1_000_000;

/// The lengths of a header's name and value, which are sent with it: up to three bytes each.
pub(crate) const HEADER_FRAMING: usize = 6;

/// A message with the record it comes from and its place among that record's messages.
#[derive(Clone, Debug)]
pub(crate) struct Emitted {
    pub(crate) reference: Ref,
    pub(crate) name: Arc<str>,
    /// Its place among those of the record and the name.
    pub(crate) index: i32,
    pub(crate) message: Message,
}

/// Where a part of a handler's work begins that can be taken back: see [`Context::savepoint`].
#[derive(Debug)]
#[must_use = "release it, or roll back to it"]
pub struct Savepoint {
    number: u64,
    /// How many messages there were.
    emitted: usize,
}

impl fmt::Display for Savepoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tidegate_savepoint_{}", self.number)
    }
}

/// A handler's view of the one transaction.
pub struct Context<'c> {
    connection: &'c mut PgConnection,
    /// The event that is being applied, where they are applied one by one.
    at: Option<Ref>,
    emitted: Vec<Emitted>,
    savepoints: u64,
    /// Of emits: few, and each of them in many messages.
    names: Vec<Arc<str>>,
}

impl<'c> Context<'c> {
    pub(crate) fn new(connection: &'c mut PgConnection) -> Self {
        Self {
            connection,
            at: None,
            emitted: Vec::new(),
            savepoints: 0,
            names: Vec::new(),
        }
    }

    /// The batch's transaction. `search_path` begins with the projection's schema.
    ///
    /// A COMMIT run through it fails, and rolls everything back; that, and a ROLLBACK, halts the partition.
    /// To take back a part, use [`savepoint`](Self::savepoint). sqlx's `begin` and the statement `SAVEPOINT`
    /// work too, but only on what is in the database: messages emitted inside stay.
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
    /// A terminal error when the message is too large, or when Kafka has no topic of that name.
    pub fn emit(
        &mut self,
        event: &Event<'_>,
        name: &str,
        message: Message,
    ) -> Result<(), HandlerError> {
        self.emit_ref(event.reference, name, message)
    }

    /// From here on, what is written and emitted can be taken back without the rest. Savepoints nest.
    ///
    /// ```
    /// # use tidegate::projection::{Context, Event, HandlerError, Message};
    /// async fn book(ctx: &mut Context<'_>, event: &Event<'_>) -> Result<(), HandlerError> {
    ///     ctx.emit(event, "booked", Message { topic: "bookings".to_owned(), ..Message::default() })?;
    ///     sqlx::query("INSERT INTO booking (entry) VALUES ($1)")
    ///         .bind(event.entity())
    ///         .execute(ctx.connection())
    ///         .await?;
    ///     Ok(())
    /// }
    ///
    /// # async fn apply(ctx: &mut Context<'_>, event: &Event<'_>) -> Result<(), HandlerError> {
    /// let savepoint = ctx.savepoint().await?;
    /// match book(ctx, event).await {
    ///     Ok(()) => ctx.release(savepoint).await?,
    ///     Err(_) => ctx.roll_back_to(savepoint).await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// An SQL error that nobody has rolled back is still there.
    pub async fn savepoint(&mut self) -> Result<Savepoint, HandlerError> {
        self.savepoints += 1;
        let savepoint = Savepoint {
            number: self.savepoints,
            emitted: self.emitted.len(),
        };
        let set = format!("SAVEPOINT {savepoint}");
        self.run(set).await?;
        Ok(savepoint)
    }

    /// Keeps what was done since the savepoint was set.
    ///
    /// # Errors
    /// An SQL error since then was swallowed: nothing of it can be kept.
    pub async fn release(&mut self, savepoint: Savepoint) -> Result<(), HandlerError> {
        self.run(format!("RELEASE SAVEPOINT {savepoint}")).await
    }

    /// Takes back what was written and emitted since the savepoint was set.
    ///
    /// # Errors
    /// The savepoint is gone, with one before it or with the transaction.
    pub async fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), HandlerError> {
        self.run(format!(
            "ROLLBACK TO SAVEPOINT {savepoint}; RELEASE SAVEPOINT {savepoint}"
        ))
        .await?;
        self.emitted.truncate(savepoint.emitted);
        Ok(())
    }

    async fn run(&mut self, sql: String) -> Result<(), HandlerError> {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut *self.connection)
            .await?;
        Ok(())
    }

    pub(crate) fn emit_ref(
        &mut self,
        reference: Ref,
        name: &str,
        message: Message,
    ) -> Result<(), HandlerError> {
        if let Some(why) = problem(name, &message) {
            return Err(HandlerError::terminal(format!("emit `{name}`: {why}")).at_ref(reference));
        }
        let name = match self.names.iter().find(|known| ***known == *name) {
            Some(known) => Arc::clone(known),
            None => {
                self.names.push(name.into());
                Arc::clone(&self.names[self.names.len() - 1])
            }
        };
        self.emitted.push(Emitted {
            reference,
            name,
            index: 0,
            message,
        });
        Ok(())
    }

    /// From here on, what goes wrong is this event's fault; with none, that of any of the batch.
    pub(crate) fn attribute_to(&mut self, event: Option<Ref>) {
        self.at = event;
    }

    /// Whose fault it is, if something has gone wrong.
    pub(crate) fn at(&self) -> Option<Ref> {
        self.at
    }

    /// The messages, in the order in which batches of one record would have emitted them.
    pub(crate) fn into_emitted(self) -> Vec<Emitted> {
        let mut emitted = self.emitted;
        // Stable: what one record emits stays in the handler's order.
        if !emitted.is_sorted_by_key(|emitted| emitted.reference) {
            emitted.sort_by_key(|emitted| emitted.reference);
        }
        for of_one in emitted.chunk_by_mut(|a, b| a.reference == b.reference) {
            for later in 1..of_one.len() {
                let (before, rest) = of_one.split_at_mut(later);
                let same = before.iter().rfind(|one| one.name == rest[0].name);
                rest[0].index = same.map_or(0, |one| one.index + 1);
            }
        }
        emitted
    }
}

/// Why a message could not be stored or sent: better refused with its record than stuck in the outbox,
/// where everything behind it would wait.
pub(super) fn problem(name: &str, message: &Message) -> Option<String> {
    let Message {
        topic,
        key,
        payload,
        kind,
        headers,
        partition,
    } = message;
    let kind = if kind.is_empty() { name } else { kind };
    if !is_topic(topic) {
        return Some(format!("`{topic}` cannot name a topic; {TOPIC_CURE}"));
    }
    if let Some(partition) = partition.filter(|partition| *partition < 0) {
        return Some(format!("partition {partition} is negative"));
    }
    if let Some(header) = headers.iter().find(|h| h.name.starts_with("ce_")) {
        return Some(format!("header `{}` is set by tidegate", header.name));
    }
    if kind.contains('\0') || headers.iter().any(|h| h.name.contains('\0')) {
        return Some("the type or a header's name holds a NUL character".to_owned());
    }
    let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
    let header = |h: &Header| h.name.len() + length(&h.value) + HEADER_FRAMING;
    let headers: usize = headers.iter().map(header).sum();
    let size = length(key) + length(payload) + kind.len() + headers;
    (size > MESSAGE_SIZE_MAX)
        .then(|| format!("the message has {size} bytes; {MESSAGE_SIZE_MAX} are allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message {
            topic: "out".to_owned(),
            ..Message::default()
        }
    }

    fn header(name: &str, value: usize) -> Header {
        Header {
            name: name.to_owned(),
            value: Some(vec![b'v'; value]),
        }
    }

    /// The beginning of the reason; empty if there is none.
    #[track_caller]
    fn check(message: &Message, expected: &str) {
        let found = problem("n", message).unwrap_or_default();
        assert!(found.starts_with(expected), "{found}");
        assert_eq!(found.is_empty(), expected.is_empty(), "{found}");
    }

    #[test]
    fn a_message_goes_to_a_topic_that_kafka_can_have() {
        check(&message(), "");
        for topic in ["", ".", "a b", "ä", "a\0", "^a", "a/b", &"a".repeat(250)] {
            let message = Message {
                topic: topic.to_owned(),
                ..Message::default()
            };
            check(
                &message,
                &format!("`{topic}` cannot name a topic; use up to"),
            );
        }
    }

    #[test]
    fn everything_that_the_emitter_can_make_longer_counts_as_size() {
        let longest = Message {
            key: Some(vec![b'k'; 1_000]),
            payload: Some(vec![b'p'; 998_000]),
            kind: "t".repeat(500),
            headers: vec![header("h", 243), header("hh", 242)],
            ..message()
        };
        check(&longest, "");
        let longer: [fn(&mut Message); 4] = [
            |m| m.key.as_mut().unwrap().push(b'k'),
            |m| m.payload.as_mut().unwrap().push(b'p'),
            |m| m.kind.push('t'),
            |m| m.headers[1].name.push('h'),
        ];
        for lengthen in longer {
            let mut message = longest.clone();
            lengthen(&mut message);
            check(
                &message,
                "the message has 1000001 bytes; 1000000 are allowed",
            );
        }
        // Hardly any bytes of their own, but too many on the wire.
        let many = Message {
            headers: vec![header("h", 0); 150_000],
            kind: "t".to_owned(),
            ..message()
        };
        check(&many, "the message has 1050001 bytes");
    }

    #[test]
    fn what_the_outbox_cannot_hold_is_refused_with_its_record() {
        let nul = "the type or a header's name holds a NUL character";
        let kind = Message {
            kind: "a\0".to_owned(),
            ..message()
        };
        check(&kind, nul);
        let name = Message {
            headers: vec![header("a\0", 1)],
            ..message()
        };
        check(&name, nul);
        let own = Message {
            headers: vec![header("ce_id", 1)],
            ..message()
        };
        check(&own, "header `ce_id` is set by tidegate");
    }

    #[test]
    fn a_partition_is_not_negative() {
        let to = |partition| Message {
            partition: Some(partition),
            ..message()
        };
        check(&to(0), "");
        check(&to(-1), "partition -1 is negative");
    }
}
