//! Folds behind each gate that a build takes in from memory. For the tests only: see `tests/it/bulk.rs`.
//!
//! A record's key is its entity, its header `sequence` its number. A tombstone deletes; a value that is no JSON, or asks
//! for it, is refused; every seventh amount is told of in a message.

use std::process::ExitCode;

use chrono::{NaiveDateTime, TimeDelta};
use serde::Deserialize;
use sqlx::types::Json;
use tidegate::projection::{
    Columns, EntityType, Event, Fold, Gate, HandlerError, Message, Messages, Projection, Registry,
    Source, State, Tombstones,
};

const SETUP: &str = "
    CREATE TABLE sum (entity text PRIMARY KEY, amount bigint NOT NULL CHECK (amount <> 4711), note text,
                      offsets jsonb NOT NULL, events integer NOT NULL, at timestamp NOT NULL)";
/// Rows that carry the gate, and move whenever another one comes.
const GATE: &str = "
    ALTER TABLE sum ADD _sequence bigint NOT NULL, ADD moved bigint NOT NULL DEFAULT 0;
    CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE sum SET moved = moved + 1 WHERE entity < NEW.entity; RETURN NULL; END $$;
    CREATE TRIGGER move AFTER INSERT ON sum FOR EACH ROW EXECUTE FUNCTION move()";
/// Half a second and less is nothing.
const ROUNDED: &str = "ALTER TABLE sum ALTER COLUMN at TYPE timestamp(0)";
const NUMBERED: &str = "
    ALTER TABLE sum ALTER COLUMN entity TYPE bigint USING entity::bigint, ADD _sequence bigint NOT NULL DEFAULT 0";
const TRIGGER: &str = "
    CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.note := 'noted'; RETURN NEW; END $$;
    CREATE TRIGGER noted BEFORE INSERT OR UPDATE ON sum FOR EACH ROW EXECUTE FUNCTION noted()";

/// Of entities that are numbers, or of any text.
#[derive(Default, sqlx::FromRow)]
struct Sum<const NUMBERED: bool> {
    amount: i64,
    note: Option<String>,
    #[sqlx(json)]
    offsets: Vec<i64>,
    events: i32,
    /// 400 ms later with every event.
    at: NaiveDateTime,
}

impl<const NUMBERED: bool> State for Sum<NUMBERED> {
    const TABLE: &'static str = "sum";
    const KEY: &'static str = "entity";
    const KEY_TYPE: EntityType = match NUMBERED {
        true => EntityType::Bigint,
        false => EntityType::Text,
    };

    fn columns(columns: &mut Columns<'_, Self>) {
        columns.column("amount", |sum| sum.amount);
        columns.column("note", |sum| sum.note.as_deref());
        columns.column("offsets", |sum| Json(&sum.offsets));
        columns.column("events", |sum| sum.events);
        columns.column("at", |sum| sum.at);
    }
}

#[derive(Deserialize)]
struct Added {
    amount: i64,
    note: Option<String>,
}

struct Adding<const NUMBERED: bool> {
    outgoing: String,
    /// Refuses nothing: what another version of it could not apply, this one can.
    is_lenient: bool,
}

impl<const NUMBERED: bool> Fold for Adding<NUMBERED> {
    type State = Sum<NUMBERED>;

    fn fold(
        &self,
        state: Option<Self::State>,
        event: &Event<'_>,
        messages: &mut Messages,
    ) -> Result<Option<Self::State>, HandlerError> {
        if event.record().value().is_none() {
            return Ok(None);
        }
        let added: Added = event.json()?;
        match added.note.as_deref() {
            Some("reject") if !self.is_lenient => {
                return Err(HandlerError::terminal("not this one"));
            }
            Some("panic") if !self.is_lenient => panics(),
            _ => {}
        }
        let mut sum = state.unwrap_or_default();
        sum.amount += added.amount;
        sum.note = added.note.or(sum.note);
        sum.events += 1;
        sum.at += TimeDelta::milliseconds(400);
        sum.offsets.push(event.record().offset());
        if added.amount % 7 == 0 {
            let message = Message {
                topic: self.outgoing.clone(),
                payload: Some(sum.amount.to_string().into_bytes()),
                ..Message::default()
            };
            messages.emit("seventh", message);
        }
        Ok(Some(sum))
    }
}

#[allow(clippy::panic, reason = "that is what is tested")]
fn panics() {
    panic!("out of cheese");
}

fn folded<const NUMBERED: bool>(
    name: &str,
    incoming: &str,
    gate: Gate,
    gate_in_row: bool,
    adding: Adding<NUMBERED>,
) -> Projection {
    let version = if adding.is_lenient { 2 } else { 1 };
    match gate_in_row {
        true => Projection::fold_with_gate(name, version, &[incoming], gate, adding),
        false => Projection::fold(name, version, &[incoming], gate, adding),
    }
}

#[allow(clippy::print_stderr, reason = "this is a command line")]
fn main() -> ExitCode {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| "none".to_owned());
    let (incoming, outgoing) = (variable("INCOMING_TOPIC"), variable("OUTGOING_TOPIC"));
    let is_lenient = variable("VERSION") == "2";
    let table = variable("TABLE");
    let setup = match &*table {
        "with a trigger" => format!("{SETUP};{TRIGGER}"),
        "with the gate" => format!("{SETUP};{GATE}"),
        "that rounds" => format!("{SETUP};{ROUNDED}"),
        "of numbers" => format!("{SETUP};{NUMBERED}"),
        _ => SETUP.to_owned(),
    };
    let mut registry = Ok(Registry::new());
    for (name, gate) in [("newest", Gate::Newest), ("next", Gate::NEXT)] {
        let gate_in_row =
            gate == Gate::Newest && ["with the gate", "of numbers"].contains(&&*table);
        let outgoing = outgoing.clone();
        let projection = match &*table {
            "with the gate" if !gate_in_row => continue,
            "of numbers" => {
                let adding = Adding::<true> {
                    outgoing,
                    is_lenient,
                };
                folded(name, &incoming, gate, gate_in_row, adding)
            }
            _ => {
                let adding = Adding::<false> {
                    outgoing,
                    is_lenient,
                };
                folded(name, &incoming, gate, gate_in_row, adding)
            }
        };
        let projection = projection
            .entity(Source::Key)
            .sequence(Source::Header("sequence".to_owned()))
            .tombstones(Tombstones::Event)
            .setup(&setup);
        registry = registry.and_then(|registry| registry.register(projection));
    }
    match registry {
        Ok(registry) => tidegate::cli::main(registry),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
