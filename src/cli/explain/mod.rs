//! `tidegate explain`: what happened to an event.

mod entity;
mod log;
mod record;

use serde_json::{Value, json};
use sqlx::PgConnection;

use super::dead_letters::find;
use super::output::time;
use super::skip::partition;
use super::{
    CODE_NEEDS_A_PERSON, ConfigArgument, Done, Failed, connect, database, projections,
    schema_registry, spelled,
};
use crate::projection::{Projection, Registry};
use crate::store::dead_letter::Kept;
use crate::store::history::Drop;
use crate::store::{self, gate, transaction};
use crate::types::TopicPartition;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The projection
    projection: String,
    /// The record, as `topic/3@17`
    #[arg(value_parser = record_place, required_unless_present = "entity", conflicts_with = "entity")]
    record: Option<(TopicPartition, i64)>,
    /// What is known of this entity, instead of a record
    #[arg(long)]
    entity: Option<String>,
    /// Do not ask Kafka
    #[arg(long)]
    offline: bool,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

/// `topic/3@17`, or `topic[3]@17`.
fn record_place(text: &str) -> Result<(TopicPartition, i64), String> {
    let wrong = || "not a record; write `topic/3@17`".to_owned();
    let (place, offset) = text.rsplit_once('@').ok_or_else(wrong)?;
    let offset = offset.parse().ok().filter(|offset| *offset >= 0);
    Ok((partition(place)?, offset.ok_or_else(wrong)?))
}

/// What was found, for people and for programs.
struct Answer {
    title: String,
    /// The answer in one sentence.
    says: String,
    /// What it rests on, by label.
    details: Vec<(&'static str, String)>,
    json: Value,
}

pub(super) async fn execute(arguments: Arguments, registry: Registry) -> Done {
    let mut config = arguments.config.load()?;
    let all = projections(&mut config, registry)?;
    let projection = find(&all, &arguments.projection)?;
    // Asked before the transaction: no question to Kafka while one is open.
    let in_log = match &arguments.record {
        Some((partition, offset)) if !arguments.offline => {
            log::ask(&config, partition, *offset).await
        }
        _ => log::InLog::default(),
    };
    let database = database(&config)?;
    let content = match &arguments.record {
        Some((partition, _)) => {
            let registry = schema_registry(&config, &database)?;
            record::content(projection, registry.as_ref(), partition, &in_log).await
        }
        None => record::Content::default(),
    };
    let mut connection = connect(&database).await?;
    let generation = begin(&mut connection, projection.name()).await?;
    let answer = match (&arguments.record, &arguments.entity) {
        (Some((partition, offset)), _) => {
            record::answer(
                &mut connection,
                projection,
                partition,
                *offset,
                in_log,
                content,
            )
            .await?
        }
        (None, Some(entity)) => {
            let entity = spelled(projection, entity)?;
            entity::answer(&mut connection, projection, generation, &entity).await?
        }
        (None, None) => return Err(Failed::new(64, anyhow::anyhow!("no record is named"))),
    };
    if arguments.json {
        println!("{:#}", answer.json);
        return Ok(());
    }
    println!("{}\n{}", answer.title, answer.says);
    for (label, text) in &answer.details {
        println!("{label:<12} {text}");
    }
    Ok(())
}

/// Everything that is read is of one moment, and the live generation's tables are those that names lead to.
async fn begin(connection: &mut PgConnection, projection: &str) -> Result<i32, Failed> {
    transaction::begin_snapshot(connection).await?;
    let Some((live, _)) = store::projection::read(connection, projection).await? else {
        let error = anyhow::anyhow!(
            "projection `{projection}` is not in the database: it has never been started"
        );
        return Err(Failed::new(CODE_NEEDS_A_PERSON, error));
    };
    let path = transaction::search_path(&live.schema_name, &[]);
    transaction::look_into(connection, &path).await?;
    Ok(live.generation)
}

fn times(count: i32) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

/// A dead letter in few words: where, which, why.
fn letter_text(letter: &Kept) -> String {
    let sequence = letter
        .sequence
        .map_or_else(String::new, |s| format!(", sequence {s}"));
    format!(
        "{}/{}@{}{sequence} (dead letter {}, {})",
        letter.topic, letter.partition, letter.record_offset, letter.number, letter.reason
    )
}

fn letter_json(letter: &Kept) -> Value {
    json!({
        "number": letter.number, "generation": letter.generation, "topic": letter.topic,
        "partition": letter.partition, "offset": letter.record_offset, "entity": letter.entity,
        "sequence": letter.sequence, "reason": letter.reason, "sqlstate": letter.sqlstate,
        "detail": letter.detail, "state": letter.state, "attempts": letter.attempts,
        "parked_at": letter.parked_at.to_rfc3339(), "tried_at": letter.tried_at.to_rfc3339(),
        "resolved_at": letter.resolved_at.map(|at| at.to_rfc3339()),
        "cleared_at": letter.cleared_at.map(|at| at.to_rfc3339()),
    })
}

/// Why a record was dropped, as the history has it.
fn drop_text(drop: &Drop) -> String {
    let sequence = |sequence: Option<i64>| {
        sequence.map_or_else(|| "unknown".to_owned(), |sequence| sequence.to_string())
    };
    match &*drop.outcome {
        "stale" => format!(
            "stale: its sequence is {}, and the gate of entity `{}` stood at {}",
            sequence(drop.sequence),
            drop.entity.as_deref().unwrap_or_default(),
            sequence(drop.gate_sequence)
        ),
        "duplicate" => "a duplicate: its event id had been applied already".to_owned(),
        outcome => format!("{outcome}: the projection does not want it"),
    }
}

fn drop_json(drop: &Drop) -> Value {
    json!({
        "generation": drop.generation, "topic": drop.topic, "partition": drop.partition,
        "offset": drop.record_offset, "entity": drop.entity, "sequence": drop.sequence,
        "outcome": drop.outcome, "gate_sequence": drop.gate_sequence, "at": drop.at.to_rfc3339(),
    })
}

/// Where the gate of an entity stands.
async fn stands(
    connection: &mut PgConnection,
    projection: &Projection,
    entity: &str,
) -> Result<Option<gate::Stands>, store::Error> {
    let apart = gate::read(connection, entity).await?;
    let Some(gate_in) = projection.gate_in.as_ref().filter(|_| apart.is_none()) else {
        return Ok(apart);
    };
    let rows = gate_in.read(connection, &[entity]).await;
    let rows = rows.map_err(|error| store::Error::Unexpected(error.to_string()))?;
    Ok(rows.walk().sequence(entity).map(|sequence| gate::Stands {
        sequence,
        previous: None,
        parked: false,
    }))
}

fn gate_text(stands: Option<&gate::Stands>) -> String {
    match stands {
        None => "has not met the entity".to_owned(),
        Some(stands) if stands.sequence == i64::MIN => "has admitted nothing of it".to_owned(),
        Some(stands) => format!("stands at sequence {}", stands.sequence),
    }
}

fn gate_json(stands: Option<&gate::Stands>) -> Value {
    match stands {
        None => Value::Null,
        Some(stands) => json!({
            "sequence": stands.sequence, "previous": stands.previous, "parked": stands.parked,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_written_in_two_ways() {
        let expected = Ok((TopicPartition::new("a.b", 3), 17));
        assert_eq!(record_place("a.b/3@17"), expected);
        assert_eq!(record_place("a.b[3]@17"), expected);
        for wrong in ["", "a/3", "a/3@", "a/3@-1", "a@1", "a/3@x", "@1"] {
            assert!(record_place(wrong).is_err(), "{wrong}");
        }
    }
}
