//! `tidegate status`.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use chrono::Utc;
use comfy_table::ContentArrangement;
use serde_json::{Value, json};

use super::outbox::{print_streams, streams_json};
use super::output::{number, table, time};
use super::rebuild::show::{waiting_json, waits};
use super::{ConfigArgument, Done, Failed, connect, database};
use crate::config::Config;
use crate::kafka::{Cluster, ClusterError, Connection, Watermarks};
use crate::store::generation::{self, UnderWay};
use crate::store::outbox::Status as Stream;
use crate::store::position::Status as Position;
use crate::store::{Database, outbox, position, transaction};
use crate::types::TopicPartition;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: ConfigArgument,
    /// One JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Shows it again and again, every so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", conflicts_with = "json",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
}

type Logs = BTreeMap<TopicPartition, Log>;

/// What a partition's log holds.
struct Log {
    committed: Watermarks,
    /// Records at the end that nobody may read yet: a producer's transaction is open.
    held_back: i64,
}

pub(super) async fn execute(arguments: Arguments) -> Done {
    let config = arguments.config.load()?;
    let Some(seconds) = arguments.watch else {
        return show(&config, arguments.json).await;
    };
    loop {
        if std::io::stdout().is_terminal() {
            // To the first line, and nothing below it.
            print!("\x1b[H\x1b[J");
        }
        println!("{}, every {seconds} s\n", time(Utc::now()));
        // What cannot be reached now may be there the next time.
        if let Err(failed) = show(&config, false).await {
            println!("{:#}", failed.error);
        }
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

/// What `--json` shows.
pub(super) async fn read(database: &Database, kafka: &Connection) -> Result<Value, Failed> {
    let Seen(positions, builds, streams, logs) = see(database, kafka).await?;
    Ok(as_json(&positions, &builds, &streams, &logs))
}

/// All that is shown.
struct Seen(Vec<Position>, Vec<UnderWay>, Vec<Stream>, Logs);

async fn see(database: &Database, kafka: &Connection) -> Result<Seen, Failed> {
    let mut connection = connect(database).await?;
    let positions = positions(database, &mut connection).await?;
    let streams = outbox::status(&mut connection).await?;
    let builds = generation::under_way(&mut connection).await?;
    let logs = logs(kafka, &positions).await;
    Ok(Seen(positions, builds, streams, logs))
}

async fn positions(
    database: &Database,
    connection: &mut sqlx::PgConnection,
) -> Result<Vec<Position>, Failed> {
    transaction::begin_alone(connection).await?;
    let positions = position::status(connection).await;
    let mut positions = transaction::end_alone(connection, positions).await?;
    if database.pooled {
        // Behind a pooler no session says whether an owner is there.
        positions.iter_mut().for_each(|row| row.connected = true);
    }
    Ok(positions)
}

async fn show(config: &Config, json: bool) -> Done {
    let database = database(config)?;
    if json {
        println!("{:#}", read(&database, &config.kafka).await?);
    } else {
        let Seen(positions, builds, streams, logs) = see(&database, &config.kafka).await?;
        print(&positions, &builds, &streams, &logs);
    }
    Ok(())
}

/// What the logs hold, as far as Kafka answers: without it the positions are still worth showing.
async fn logs(kafka: &Connection, positions: &[Position]) -> Logs {
    let mut logs = Logs::new();
    let clusters =
        Cluster::new(kafka).and_then(|cluster| Ok((cluster, Cluster::reading_uncommitted(kafka)?)));
    let (cluster, uncommitted) = match clusters {
        Ok(clusters) => clusters,
        Err(error) => {
            eprintln!("warning: no lag shown: {error}");
            return logs;
        }
    };
    for row in positions {
        let partition = TopicPartition::new(&*row.topic, row.partition);
        if logs.contains_key(&partition) {
            continue;
        }
        let asked = async {
            let committed = cluster.watermarks(&partition).await?;
            let all = uncommitted.watermarks(&partition).await?;
            Ok::<_, ClusterError>(Log {
                committed,
                held_back: all.high - committed.high,
            })
        };
        match asked.await {
            Ok(log) => {
                logs.insert(partition, log);
            }
            Err(error) => {
                eprintln!("warning: no lag shown: {error}");
                break;
            }
        }
    }
    logs
}

fn lag(row: &Position, logs: &Logs) -> Option<i64> {
    let high = log_of(row, logs)?.committed.high;
    (row.next_offset <= high).then_some(high - row.next_offset)
}

fn log_of<'a>(row: &Position, logs: &'a Logs) -> Option<&'a Log> {
    logs.get(&TopicPartition::new(&*row.topic, row.partition))
}

fn lag_text(row: &Position, logs: &Logs) -> String {
    match (lag(row, logs), log_of(row, logs)) {
        (Some(lag), _) => number(lag),
        (None, Some(_)) => "beyond the end".to_owned(),
        (None, None) => "?".to_owned(),
    }
}

/// How a partition fares; what a process says of itself counts only while it is there.
fn state(row: &Position) -> String {
    match &*row.condition {
        "running" | "retrying" if !row.connected => "unattended".to_owned(),
        condition => condition.to_owned(),
    }
}

fn print(positions: &[Position], builds: &[UnderWay], streams: &[Stream], logs: &Logs) {
    if positions.is_empty() {
        println!("no projection has been started yet");
        return;
    }
    for rows in positions.chunk_by(|a, b| a.projection == b.projection) {
        let first = &rows[0];
        println!(
            "projection {} (generation {}, {}): {}",
            first.projection, first.generation, first.desired_state, first.definition
        );
        if let Some(building) = first.building {
            println!(
                "generation {building} is being built beside it: `tidegate rebuild status {}`",
                first.projection
            );
        }
        for build in of(builds, &first.projection) {
            if build.waits() {
                println!("the service is to build it; {}", waits(&build.waiting));
            } else if !build.trouble.is_empty() {
                println!("the build does not go on: {}", build.trouble);
            }
        }
        print_partitions(rows, logs);
        for row in rows {
            match log_of(row, logs).map(|log| log.held_back) {
                Some(held_back) if held_back > 0 => println!(
                    "{}[{}] has {} more, held back by a producer's open transaction",
                    row.topic,
                    row.partition,
                    number(held_back)
                ),
                _ => {}
            }
        }
        for row in rows.iter().filter(|row| !row.cause.is_empty()) {
            println!(
                "{}[{}] {} since {}: {}",
                row.topic,
                row.partition,
                row.condition,
                time(row.since),
                row.cause
            );
        }
        println!();
    }
    if !streams.is_empty() {
        println!("outbox");
        print_streams(streams);
    }
}

fn of<'b>(builds: &'b [UnderWay], projection: &str) -> impl Iterator<Item = &'b UnderWay> {
    builds
        .iter()
        .filter(move |build| build.projection == projection)
}

/// A column of counts: its name, and how many of a partition's records are meant.
type Outcome = (&'static str, fn(&Position) -> i64);

/// What became of records. What never occurred is left out, so that the rest fits on a terminal.
const OUTCOMES: [Outcome; 6] = [
    ("consumed", |p| p.consumed),
    ("applied", |p| p.applied),
    ("stale", |p| p.stale),
    ("duplicate", |p| p.duplicate),
    ("filtered", |p| p.filtered),
    ("parked", |p| p.waiting),
];

fn print_partitions(rows: &[Position], logs: &Logs) {
    let occurred = |(name, count): &&Outcome| {
        matches!(*name, "consumed" | "applied") || rows.iter().any(|row| count(row) > 0)
    };
    let outcomes: Vec<_> = OUTCOMES.iter().filter(occurred).collect();
    let mut numbers = vec!["next", "lag"];
    numbers.extend(outcomes.iter().map(|(name, _)| *name));
    let mut header = vec!["partition", "state"];
    header.extend(&numbers);
    header.push("owner");
    let mut table = table(&header, &numbers);
    // A broken number is hard to read; better a line that is too long.
    table.set_content_arrangement(ContentArrangement::Disabled);
    for row in rows {
        let mut cells = vec![
            format!("{}[{}]", row.topic, row.partition),
            state(row),
            number(row.next_offset),
            lag_text(row, logs),
        ];
        cells.extend(outcomes.iter().map(|(_, count)| number(count(row))));
        let owner = if row.owner.is_empty() {
            "-"
        } else {
            &row.owner
        };
        cells.push(owner.to_owned());
        table.add_row(cells);
    }
    if rows.len() > 1 {
        let lag: Option<i64> = rows.iter().map(|row| lag(row, logs)).sum();
        let mut cells = vec!["all".to_owned(), String::new(), String::new()];
        cells.push(lag.map_or_else(|| "?".to_owned(), number));
        let sum = |count: &fn(&Position) -> i64| rows.iter().map(count).sum::<i64>();
        cells.extend(outcomes.iter().map(|(_, count)| number(sum(count))));
        cells.push(String::new());
        table.add_row(cells);
    }
    println!("{table}");
}

fn as_json(positions: &[Position], builds: &[UnderWay], streams: &[Stream], logs: &Logs) -> Value {
    let partition = |row: &Position| {
        json!({
            "topic": row.topic, "partition": row.partition, "next_offset": row.next_offset,
            "lag": lag(row, logs), "held_back": log_of(row, logs).map(|log| log.held_back), "epoch": row.epoch, "owner": row.owner, "state": state(row),
            "consumed": row.consumed, "applied": row.applied, "stale": row.stale,
            "duplicate": row.duplicate, "filtered": row.filtered, "parked": row.parked, "waiting": row.waiting,
            "condition": row.condition, "cause": row.cause, "since": row.since.to_rfc3339(),
        })
    };
    let projection = |rows: &[Position]| {
        let build = of(builds, &rows[0].projection).find(|build| build.waits());
        json!({
            "name": rows[0].projection, "generation": rows[0].generation, "building": rows[0].building,
            "build_waits": build.map(|build| waiting_json(&build.waiting)),
            "desired_state": rows[0].desired_state, "definition": rows[0].definition,
            "partitions": rows.iter().map(partition).collect::<Vec<_>>(),
        })
    };
    json!({
        "projections": positions
            .chunk_by(|a, b| a.projection == b.projection)
            .map(projection)
            .collect::<Vec<_>>(),
        "outbox": streams_json(streams),
    })
}
