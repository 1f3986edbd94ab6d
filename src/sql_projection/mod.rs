//! Projections written in SQL: statements that see a batch's events as the relation `events`.
//!
//! A statement of the user's is prefixed with a CTE over arrays, one array per column that the
//! statement names, unnested in the SELECT list (measured three times as fast as in FROM). Only the
//! admitted events of the step are in them, by entity, then in arrival order. `latest` has the last
//! event of each entity.
//!
//! There is deliberately no SQL parser here: a lexer finds where the prefix goes and which columns
//! are named; everything else is for Postgres to say.

mod bind;
mod check;
mod lexer;
mod message;

use std::borrow::Cow;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::AssertSqlSafe;

use crate::engine::Class;
use crate::engine::steps;
use crate::projection::{
    Batch, Column, Context, EntityType, Handler, HandlerError, Outgoing, PREVIOUS, Ref,
};

pub(crate) use check::{StatementProblem, Unchecked, check};
use lexer::Lexed;
pub(crate) use lexer::{last_word, script_problem};

/// A statement of the user's, and where it stands, for messages.
#[derive(Clone, Debug)]
pub(crate) struct SqlText {
    pub(crate) sql: String,
    /// `apply 1` or `emit overdraft`.
    pub(crate) label: String,
    /// One event of an entity at a time: for statements that are not a fold.
    pub(crate) per_event: bool,
    /// The types of event that it sees, by their place among those the projection knows; none for all.
    pub(crate) types: Option<Vec<u16>>,
}

/// What a statement can name besides the declared columns, as it is sent. `_entity` becomes of the type that entities are of.
pub(crate) const OWN_COLUMNS: [(&str, &str); 10] = [
    ("_ref", "bigint"),
    ("_entity", "text"),
    ("_sequence", "bigint"),
    ("_topic", "text"),
    ("_partition", "integer"),
    ("_offset", "bigint"),
    ("_timestamp", "timestamptz"),
    ("_type", "text"),
    ("_tombstone", "boolean"),
    // With the gate in the row: what the entity's row carried before the batch; null for a new entity.
    (PREVIOUS, "bigint"),
];

/// One array that is sent with a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameter {
    /// Index into [`OWN_COLUMNS`].
    Own(usize),
    /// Index into the declared columns.
    Declared(usize),
}

/// A relation that a statement reads, with its arrays in order of their parameters.
#[derive(Clone, Debug)]
struct Relation {
    latest: bool,
    parameters: Vec<Parameter>,
}

/// A statement ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    text: SqlText,
    wrapped: Arc<str>,
    relations: Vec<Relation>,
    reads_one_relation: bool,
    /// Where the prefix was put, in characters of the user's text, and how long it is: for error positions.
    cut: usize,
    prefix: usize,
}

/// A message-producing statement.
#[derive(Clone, Debug)]
pub(crate) struct Emit {
    pub(crate) name: String,
    pub(crate) topic: String,
    pub(crate) statement: Statement,
    /// How payloads are written; as they are, if it is not said.
    pub(crate) outgoing: Option<Arc<Outgoing>>,
}

/// The handler of a SQL projection.
#[derive(Clone, Debug)]
pub(crate) struct SqlProjection {
    pub(crate) applies: Vec<Statement>,
    pub(crate) emits: Vec<Emit>,
}

impl Statement {
    /// Prepares a statement's text.
    ///
    /// # Errors
    /// What makes it impossible to wrap, and where, in characters of the text.
    pub(crate) fn new(
        text: SqlText,
        columns: &[Column],
        gate_in: bool,
        entity_type: EntityType,
    ) -> Result<Self, (String, usize)> {
        let lexed = Lexed::new(&text.sql)?;
        if let Some(at) = lexed.updates_from_events
            && !text.per_event
        {
            return Err((
                "`UPDATE .. FROM events` applies one of several events of a row, silently; read from a sub-select with GROUP BY, from `latest`, or set `per_event = true`".to_owned(),
                at,
            ));
        }
        let mut relations = Vec::new();
        let mut ctes = Vec::new();
        let mut number = 0;
        for (name, latest) in [("events", false), ("latest", true)] {
            if !lexed.names(name) {
                continue;
            }
            let mut parameters = Vec::new();
            let mut list = Vec::new();
            let declared = columns.iter().enumerate().map(|(i, c)| {
                (
                    Parameter::Declared(i),
                    &*c.name,
                    c.column_type.wire(),
                    c.column_type.sql(),
                )
            });
            let own = OWN_COLUMNS
                .iter()
                .enumerate()
                .filter(|(_, (name, _))| gate_in || *name != PREVIOUS)
                .map(|(i, (name, wire))| match *name {
                    "_entity" => (Parameter::Own(i), *name, *wire, entity_type.sql()),
                    _ => (Parameter::Own(i), *name, *wire, *wire),
                });
            for (parameter, column, wire, sql) in declared.chain(own) {
                // `_ref` at least, or the relation would have no rows.
                let first_of_none = column == "_ref" && parameters.is_empty();
                if lexed.names(column) || lexed.names_all || first_of_none {
                    number += 1;
                    let cast = if wire == sql {
                        String::new()
                    } else {
                        format!("::{sql}")
                    };
                    list.push(format!("unnest(${number}::{wire}[]){cast} AS {column}"));
                    parameters.push(parameter);
                }
            }
            ctes.push(format!("{name} AS (SELECT {})", list.join(", ")));
            relations.push(Relation { latest, parameters });
        }
        if relations.is_empty() {
            return Err((
                "the statement reads neither `events` nor `latest`, so what it does would depend on how events are batched".to_owned(),
                0,
            ));
        }
        let (head, tail) = (&text.sql[..lexed.cut], &text.sql[lexed.cut..lexed.end]);
        let prefix = match lexed.with {
            lexer::With::None => format!("WITH {} ", ctes.join(", ")),
            lexer::With::Plain => format!("WITH {}, ", ctes.join(", ")),
            lexer::With::Recursive => format!("WITH RECURSIVE {}, ", ctes.join(", ")),
        };
        let wrapped = format!("{prefix}{tail}");
        Ok(Self {
            cut: head.chars().count(),
            prefix: prefix.chars().count(),
            wrapped: wrapped.into(),
            relations,
            reads_one_relation: lexed.reads_one_relation,
            text,
        })
    }

    /// `apply 1` or `emit overdraft`.
    pub(crate) fn label(&self) -> &str {
        &self.text.label
    }

    pub(crate) fn reads_latest(&self) -> bool {
        self.relations.iter().any(|relation| relation.latest)
    }

    pub(crate) fn is_per_event(&self) -> bool {
        self.text.per_event
    }

    /// Whether it sees events of some types only.
    pub(crate) fn has_types(&self) -> bool {
        self.text.types.is_some()
    }

    /// As the user wrote it.
    pub(crate) fn user_text(&self) -> &str {
        &self.text.sql
    }

    /// Whether it sees an event of this type.
    fn sees(&self, of: Option<u16>) -> bool {
        match &self.text.types {
            None => true,
            Some(types) => of.is_some_and(|of| types.contains(&of)),
        }
    }

    /// The whole statement, as it is sent.
    pub(crate) fn sql(&self) -> AssertSqlSafe<Arc<str>> {
        AssertSqlSafe(Arc::clone(&self.wrapped))
    }

    /// Turns a position in the statement sent (characters, from 1) into one in the user's text (from 0).
    fn position(&self, sent: usize) -> Option<usize> {
        Some(sent.checked_sub(self.prefix + 1)? + self.cut)
    }

    fn failed(&self, error: sqlx::Error) -> HandlerError {
        if crate::store::sqlstate(&error).as_deref() == Some("21000") {
            // Smaller batches may pass; isolation finds that out.
            return HandlerError::terminal(format!(
                "{}: {}; two events of the batch meet in one row: use GROUP BY, or read from `latest`",
                self.text.label,
                crate::store::describe(&error)
            ));
        }
        HandlerError::from(error).within(&self.text.label)
    }
}

impl SqlProjection {
    fn all_statements(&self) -> impl Iterator<Item = &Statement> {
        let emits = self.emits.iter().map(|emit| &emit.statement);
        self.applies.iter().chain(emits)
    }

    fn per_event(&self) -> bool {
        self.all_statements().any(|s| s.text.per_event)
    }

    /// Whether statements see only some types of event.
    fn has_types(&self) -> bool {
        self.all_statements().any(|s| s.text.types.is_some())
    }

    async fn apply_steps(
        &self,
        ctx: &mut Context<'_>,
        batch: &Batch<'_>,
    ) -> Result<(), HandlerError> {
        let events = batch.events;
        let same = |a: Ref, b: Ref| events.entity(a) == events.entity(b);
        let steps = match (self.per_event(), self.has_types()) {
            (false, false) => return self.apply_step(ctx, batch, batch.by_entity).await,
            (true, _) => steps::one_event_per_entity(batch.by_entity, same),
            // An entity's events reach their statements in the order in which they came.
            (false, true) => {
                let of = |event: Ref| events.types[event as usize];
                steps::runs(batch.by_entity, same, |a, b| of(a) == of(b))
            }
        };
        for step in steps {
            self.apply_step(ctx, batch, &step).await?;
        }
        Ok(())
    }

    async fn apply_step(
        &self,
        ctx: &mut Context<'_>,
        batch: &Batch<'_>,
        step: &[Ref],
    ) -> Result<(), HandlerError> {
        for statement in &self.applies {
            let step = seen(statement, batch, step);
            if step.is_empty() {
                continue;
            }
            let done = bind::query(statement, batch, &step)
                .map_err(|error| HandlerError::new(Class::Halt, error.to_string()))?
                .execute(ctx.connection())
                .await
                .map_err(|error| statement.failed(error))?;
            if batch.gate_rows.is_some() {
                let entities = step
                    .chunk_by(|a, b| batch.events.entity(*a) == batch.events.entity(*b))
                    .count();
                if done.rows_affected() != entities as u64 {
                    let (what, written) = (statement.label(), done.rows_affected());
                    return Err(HandlerError::rows_missed(format!(
                        "{what} has written {written} rows for {entities} entities; with `gate_in` it has to write the row of each of them, once, where `_sequence` is the `_previous` of its events"
                    ))); // I4
                }
            }
        }
        for emit in &self.emits {
            let step = seen(&emit.statement, batch, step);
            if step.is_empty() {
                continue;
            }
            let rows = bind::query(&emit.statement, batch, &step)
                .map_err(|error| HandlerError::new(Class::Halt, error.to_string()))?
                .fetch_all(ctx.connection())
                .await
                .map_err(|error| emit.statement.failed(error))?;
            for (reference, message) in message::read(emit, &rows, &step)? {
                ctx.emit_ref(reference, &emit.name, message)?;
            }
        }
        Ok(())
    }
}

/// The events of a step that a statement sees.
fn seen<'s>(statement: &Statement, batch: &Batch<'_>, step: &'s [Ref]) -> Cow<'s, [Ref]> {
    if statement.text.types.is_none() {
        return Cow::Borrowed(step);
    }
    let types = &batch.events.types;
    let seen = step.iter().copied();
    Cow::Owned(
        seen.filter(|event| statement.sees(types[*event as usize]))
            .collect(),
    )
}

impl Handler for SqlProjection {
    fn sees_records(&self) -> bool {
        false
    }

    fn emits(&self) -> bool {
        !self.emits.is_empty()
    }

    fn statements(&self) -> String {
        let applies = self.applies.iter().map(|apply| ("", "", apply));
        let emits = self
            .emits
            .iter()
            .map(|e| (&*e.name, &*e.topic, &e.statement));
        let text = |(name, topic, statement): (&str, &str, &Statement)| {
            let SqlText {
                sql,
                per_event,
                types,
                ..
            } = &statement.text;
            format!("{name:?} {topic:?} {per_event} {types:?} {sql:?}; ")
        };
        applies.chain(emits).map(text).collect()
    }

    fn any_plan_will_do(&self) -> bool {
        self.all_statements()
            .all(|statement| statement.reads_one_relation)
    }

    fn apply<'a>(
        &'a self,
        ctx: &'a mut Context<'_>,
        batch: &'a Batch<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(self.apply_steps(ctx, batch))
    }
}

#[cfg(test)]
mod tests;
