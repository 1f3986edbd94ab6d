//! `tidegate reset`.

use std::path::Path;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::output::{bytes, number, table};
use super::skip::partition;
use super::{
    CODE_NEEDS_A_PERSON, CODE_TRY_AGAIN, ConfigArgument, Done, Failed, confirmed, connect,
    database, projections, who,
};
use crate::engine::Class;
use crate::kafka::Cluster;
use crate::projection::{Projection, Registry};
use crate::runtime::{self, BeforeReset, Move, Operator, ResetError, ResetPlan, Target};
use crate::store;
use crate::store::schema::Problem;
use crate::types::TopicPartition;

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Arguments {
    /// The projection to reset
    projection: String,
    /// Where to begin again: `earliest`, `latest`, a time, or offsets
    #[arg(long, value_name = "POINT")]
    to: String,
    /// Send all messages of this topic under new ids, if it is found to be another log than was read; can be
    /// repeated
    #[arg(long, value_name = "TOPIC")]
    new_log: Vec<String>,
    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

const AFTER_HELP: &str = "\
POINT is one of
  earliest                         the oldest records that the log still has
  latest                           behind the newest records
  2026-03-01T08:00:00+01:00        the first record of each partition that is not older, by its
                                   timestamp; the end where all are older
  orders/0=1200,orders/1=980       an offset for each partition, or 0=1200,1=980 for one topic
  @offsets.txt                     a file of such offsets, one in a line; # begins a comment

Any other point than the beginning leaves out what is older, and is only for projections that say
that their tables are right without it: `begins_anywhere`, or `start = \"latest\"`.";

pub(super) async fn execute(arguments: Arguments, registry: Registry) -> Done {
    let mut config = arguments.config.load()?;
    let all = projections(&mut config, registry)?;
    let name = &arguments.projection;
    let Some(projection) = all.iter().find(|projection| projection.name() == name) else {
        let known: Vec<&str> = all.iter().map(|p| p.name()).collect();
        let known = known.join(", ");
        let error = anyhow::anyhow!("there is no projection `{name}`; known are: {known}");
        return Err(Failed::new(64, error));
    };
    let target = target_or_file(&arguments.to, &projection.topics)
        .map_err(|why| Failed::new(64, anyhow::anyhow!("--to: {why}")))?;
    let database = database(&config)?;
    let mut connection = connect(&database).await?;
    let cluster = Cluster::new(&config.kafka)?;
    // Whoever says it has chosen the configuration, a new definition included.
    let before = BeforeReset::Any;
    let plan = runtime::plan_reset(&mut connection, &cluster, projection, before, &target);
    let plan = plan.await.map_err(failed)?;
    show(&plan, projection, &database.place());
    if arguments.dry_run {
        println!("nothing was changed");
        return Ok(());
    }
    plan.all_said(projection, &arguments.new_log)
        .map_err(failed)?;
    if !arguments.yes && !confirmed()? {
        println!("nothing was changed");
        return Ok(());
    }
    let who = who("reset");
    let operator = Operator::at_a_terminal(&who, &database.timeouts);
    let reset = runtime::reset(
        &mut connection,
        &cluster,
        projection,
        before,
        (&target, &arguments.new_log),
        operator,
    );
    let limit = database.timeouts.transaction();
    let done = store::within("the reset", limit, reset)
        .await
        .map_err(failed)?;
    let shown = |it: &Move| (it.partition.clone(), it.stands, it.to);
    let planned: Vec<_> = plan.moves.iter().map(shown).collect();
    for (partition, from, to) in &done.moved {
        if !planned.contains(&(partition.clone(), Some(*from), *to)) {
            // The service has gone on, or the log.
            println!(
                "{partition} stood at {} and begins at {}",
                number(*from),
                number(*to)
            );
        }
    }
    for topic in &done.made_anew {
        println!(
            "topic {topic} was made anew since: its records are new ones, and their messages are sent"
        );
    }
    println!(
        "reset: generation {} begins (operation {}); running workers go on by themselves, `tidegate status` shows how far",
        done.generation, done.operation
    );
    Ok(())
}

fn show(plan: &ResetPlan, projection: &Projection, place: &str) {
    let name = projection.name();
    let mut moves = table(
        &["partition", "stands at", "begins at", "to read", ""],
        &["stands at", "begins at", "to read"],
    );
    for it in &plan.moves {
        moves.add_row([
            it.partition.to_string(),
            it.stands.map_or_else(|| "none".to_owned(), number),
            number(it.to),
            number(it.log.high - it.to),
            told(it),
        ]);
    }
    println!("{moves}");
    let tables = plan.tables.iter();
    let tables: Vec<String> = tables
        .map(|(table, size)| format!("{table} ({})", bytes(*size)))
        .collect();
    println!(
        "This empties all tables of schema `{name}` in {place}, generation {}: {}; and its gates.",
        plan.generation,
        match tables.is_empty() {
            true => "it has none".to_owned(),
            false => tables.join(", "),
        }
    );
    println!(
        "Readers see empty tables, then growing ones. Messages sent before are not sent again."
    );
    for (topic, why) in &plan.made_anew {
        println!(
            "But topic {topic} is taken for a new log ({why}): all its records send their messages under new ids, sent before or not. That has to be asked for: `--new-log {topic}`. If it is the log that was read so far, `tidegate accept-topic {name} {topic} --same-log` first."
        );
    }
    if plan.left_behind > 0 {
        println!(
            "{} parked records are not read again: they stay in generation {}, and wait there no more. `tidegate dead-letters redrive {name}` or `discard` them first, if they matter.",
            number(plan.left_behind),
            plan.generation
        );
    }
}

/// The same for a program.
pub(super) fn planned(plan: &ResetPlan) -> Value {
    let moves = plan.moves.iter().map(|it| {
        json!({
            "topic": it.partition.topic(), "partition": it.partition.partition(), "stands_at": it.stands,
            "begins_at": it.to, "to_read": it.log.high - it.to, "note": told(it),
        })
    });
    let tables = plan.tables.iter();
    let tables = tables.map(|(table, size)| json!({ "table": table, "bytes": size }));
    json!({
        "dry_run": true, "generation": plan.generation, "partitions": moves.collect::<Vec<_>>(),
        "empties": tables.collect::<Vec<_>>(), "new_log": plan.made_anew, "parked_left_behind": plan.left_behind,
    })
}

/// What is worth knowing of a move.
fn told(it: &Move) -> String {
    let stands = it.stands.unwrap_or(it.log.low).max(it.log.low);
    if it.is_truncated {
        "older records are gone".to_owned()
    } else if it.to > stands {
        format!("{} never read are left out", number(it.to - stands))
    } else if it.to > it.log.low {
        format!("{} older ones are left out", number(it.to - it.log.low))
    } else {
        String::new()
    }
}

/// Reads where to begin, also from a file: only where whoever asks may read it.
fn target_or_file(text: &str, topics: &[String]) -> Result<Target, String> {
    let Some(path) = text.strip_prefix('@') else {
        return target(text, topics);
    };
    let read = std::fs::read_to_string(Path::new(path));
    let read = read.map_err(|error| format!("{path} cannot be read: {error}"))?;
    let lines = (1..).zip(read.lines());
    let lines = lines.map(|(number, line)| {
        let line = line.split_once('#').map_or(line, |(before, _)| before);
        (format!("{path}:{number}: "), line.trim())
    });
    offsets(lines.filter(|(_, line)| !line.is_empty()), topics)
}

/// Reads where to begin.
pub(super) fn target(text: &str, topics: &[String]) -> Result<Target, String> {
    match text {
        "earliest" => return Ok(Target::Earliest),
        "latest" => return Ok(Target::Latest),
        _ => {}
    }
    if text.contains('=') {
        let items = text.split(',').map(|item| (String::new(), item.trim()));
        return offsets(items, topics);
    }
    match DateTime::parse_from_rfc3339(text) {
        Ok(at) => Ok(Target::Time(at.with_timezone(&Utc))),
        Err(_) if text.contains(':') || text.parse::<chrono::NaiveDate>().is_ok() => Err(format!(
            "`{text}` is no time; write it with its zone, such as 2026-03-01T08:00:00Z or 2026-03-01T08:00:00+01:00"
        )),
        Err(_) => Err(format!(
            "`{text}` is neither `earliest`, `latest`, a time such as 2026-03-01T08:00:00Z, nor offsets such as 0=1200,1=980; `--help` has more"
        )),
    }
}

fn offsets<'t>(
    items: impl Iterator<Item = (String, &'t str)>,
    topics: &[String],
) -> Result<Target, String> {
    let mut offsets: Vec<(TopicPartition, i64)> = Vec::new();
    for (place, item) in items {
        let read = one_offset(item, topics).map_err(|why| format!("{place}{why}"))?;
        if offsets.iter().any(|(known, _)| *known == read.0) {
            return Err(format!("{place}{} is named twice", read.0));
        }
        offsets.push(read);
    }
    Ok(Target::Offsets(offsets))
}

fn one_offset(item: &str, topics: &[String]) -> Result<(TopicPartition, i64), String> {
    let (name, offset) = item
        .split_once('=')
        .ok_or_else(|| format!("`{item}` has no offset; write `topic/0=1200`"))?;
    let (name, offset) = (name.trim(), offset.trim());
    let read = offset.parse().ok().filter(|offset| *offset >= 0);
    let offset = read.ok_or_else(|| format!("`{offset}` is no offset"))?;
    match (name.parse::<i32>(), topics) {
        (Ok(number), [topic]) if number >= 0 => Ok((TopicPartition::new(&**topic, number), offset)),
        (Ok(_), [_, _, ..]) => Err(format!(
            "partition {name} of which topic? Write `topic/{name}={offset}`"
        )),
        _ => Ok((partition(name)?, offset)),
    }
}

pub(super) fn failed(error: ResetError) -> Failed {
    let temporary = match &error {
        ResetError::Kafka(_) | ResetError::Meanwhile(_) => true,
        ResetError::Store(error) | ResetError::Schema(Problem::Store(error)) => {
            error.class() == Class::Transient
        }
        ResetError::Schema(Problem::UserSql { error, .. }) => {
            store::class_of_own_error(error) == Class::Transient
        }
        _ => false,
    };
    let code = if temporary {
        CODE_TRY_AGAIN
    } else {
        CODE_NEEDS_A_PERSON
    };
    Failed::new(code, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Target, String> {
        target_or_file(text, &["orders".to_owned()])
    }

    fn at(offsets: &[(&str, i32, i64)]) -> Target {
        let offset = |(topic, number, offset): &(&str, i32, i64)| {
            (TopicPartition::new(*topic, *number), *offset)
        };
        Target::Offsets(offsets.iter().map(offset).collect())
    }

    #[test]
    fn a_point_is_a_word_a_time_or_offsets() {
        assert_eq!(read("earliest"), Ok(Target::Earliest));
        assert_eq!(read("latest"), Ok(Target::Latest));
        let time = Target::Time(DateTime::from_timestamp(1_772_348_400, 0).unwrap());
        for same in ["2026-03-01T07:00:00Z", "2026-03-01T08:00:00+01:00"] {
            assert_eq!(read(same), Ok(time.clone()));
        }
        let offsets = at(&[("orders", 0, 1200), ("orders", 1, 0)]);
        for same in [
            "0=1200,1=0",
            "orders/0=1200, orders[1]=0",
            "orders[0]=1200,1 = 0",
        ] {
            assert_eq!(read(same), Ok(offsets.clone()), "{same}");
        }
    }

    #[test]
    fn a_time_without_a_zone_and_a_partition_without_a_topic_are_refused() {
        for (text, words) in [
            ("2026-03-01T08:00:00", "with its zone"),
            ("2026-03-01", "with its zone"),
            ("08:00:00Z", "with its zone"),
            ("oldest", "neither `earliest`"),
            ("0=-1", "`-1` is no offset"),
            ("x=1", "not a partition"),
            ("0=1,orders/0=2", "named twice"),
            ("0=1,2", "`2` has no offset"),
            ("@no-such-file", "no-such-file cannot be read"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
        let two = ["a".to_owned(), "b".to_owned()];
        let why = target("0=1", &two).unwrap_err();
        assert!(why.contains("of which topic"), "{why}");
        assert_eq!(target("b/0=1", &two), Ok(at(&[("b", 0, 1)])));
    }

    #[test]
    fn a_file_has_an_offset_in_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("offsets");
        let name = format!("@{}", path.display());
        std::fs::write(&path, "# before the release\n0=7 # seen\n\norders/1 = 8\n").unwrap();
        assert_eq!(read(&name), Ok(at(&[("orders", 0, 7), ("orders", 1, 8)])));
        std::fs::write(&path, "0=7\n\nnothing\n").unwrap();
        let why = read(&name).unwrap_err();
        assert!(why.contains("offsets:3: `nothing` has no offset"), "{why}");
    }
}
