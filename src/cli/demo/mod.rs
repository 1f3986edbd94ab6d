//! `tidegate demo`: a ledger, two processes, a kill in the middle, and the proof that nothing is lost or doubled.
//!
//! The stream is seeded, and its sequential fold is taken while it is made. The processes are this
//! program's own `run`, as a user would start it: nothing here reaches into them, and nothing is reset
//! by hand after the kill. Everything is made for the run and taken away after it.

mod folder;
mod ledger;
mod services;
mod stage;
mod tables;
mod topics;
mod verdict;
mod watch;
mod written;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use super::output::number;
use super::{CODE_NEEDS_A_PERSON, CODE_TRY_AGAIN, Done, Failed, database, reach};
use crate::store::migration;
use crate::store::position::Status as Position;
use crate::types::TopicPartition;
use folder::{PROJECTIONS, write_environment};
use ledger::Ledger;
use services::Services;
use stage::Stage;
use verdict::Verdict;
use watch::{Plan, Watch};
use written::{Format, Written};

/// The mock broker keeps about 5 MiB a partition; this much fits with room to spare.
const MOCK_EVENTS_PER_PARTITION_MAX: u64 = 40_000;
const KILL_AT: f64 = 0.4;
/// As shells count a program that Ctrl-C has ended.
const CODE_INTERRUPTED: u8 = 130;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It needs TIDEGATE__KAFKA__BOOTSTRAP_SERVERS and TIDEGATE__POSTGRES__URL, and with `--format avro`
TIDEGATE__SCHEMA_REGISTRY__URL; `deploy/local/demo` brings them up and runs it. It works in a database
and in topics of its own, removed at the end. Two schemas stay in the registry.")]
pub(super) struct Arguments {
    /// How many events, copies included
    #[arg(long, default_value_t = 200_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    events: u64,
    /// Another seed gives another stream
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Partitions of both topics
    #[arg(long, default_value_t = 6, value_name = "P", value_parser = clap::value_parser!(u16).range(1..=64))]
    partitions: u16,
    /// What events are written in
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Leave database, topics and two running processes, to play with
    #[arg(long)]
    keep: bool,
    /// Without Kafka: a mock broker inside this process, in memory
    #[arg(long)]
    mock: bool,
}

pub(super) async fn execute(arguments: Arguments) -> Done {
    let mut stage = None;
    let mut services = Services::default();
    let played = tokio::select! {
        biased;
        code = interrupted() => Err(code),
        played = Box::pin(play(&arguments, &mut stage, &mut services)) => Ok(played),
    };
    match (played, stage) {
        (Ok(Ok(())), Some(stage)) if arguments.keep => keep(stage, &mut services).await,
        (Ok(Ok(())), Some(stage)) => {
            tidy_up(stage).await;
            println!("EXACT");
            Ok(())
        }
        (Ok(Err(failed)), stage) => {
            services.kill_all().await;
            if let Some(stage) = stage
                && let Ok(path) = write_environment(&stage.launch)
            {
                println!("Left as it is, for a look: source {}", path.display());
            }
            Err(failed)
        }
        (Ok(Ok(())), None) => Ok(()),
        (Err(failed), stage) => {
            services.kill_all().await;
            if let Some(stage) = stage {
                tidy_up(stage).await;
            }
            Err(failed)
        }
    }
}

async fn play(
    arguments: &Arguments,
    stage: &mut Option<Stage>,
    services: &mut Services,
) -> Result<(), Failed> {
    let events = events(arguments);
    let stage = stage.insert(Stage::set(arguments, events).await?);
    announce(arguments, stage, events);
    migration::migrate(reach(&database(&stage.config)?).await?).await?;
    let written = Written::by(arguments.format, stage).await?;

    let began = Instant::now();
    let produced = Arc::new(AtomicU64::new(0));
    let plan = Plan {
        projections: PROJECTIONS.to_vec(),
        events,
        produced: Arc::clone(&produced),
    };
    let mut watch = Watch::new(&mut stage.connection, plan);
    for _ in 0..2 {
        services.start(&stage.launch).map_err(needs_a_person)?;
    }
    // With the topic still empty, so that neither has a start over the other when the events come.
    watch.until_shared(services).await?;
    let pids: Vec<String> = services
        .running()
        .iter()
        .map(|s| s.pid.to_string())
        .collect();
    let (pids, share) = (pids.join(" and "), began.elapsed().as_secs_f64());
    watch.say(&format!(
        "Processes {pids} share the partitions, {share:.1} s after their start\n"
    ));

    let began = Instant::now();
    let ledger = Ledger::new(arguments.seed, events);
    let topic = stage.names.entries.clone();
    let producing = tokio::spawn(topics::produce(
        stage.config.kafka.clone(),
        topic,
        ledger,
        written,
        produced,
    ));
    watch.begin();
    watch.until(KILL_AT, services).await?;
    let (killed, open) = watch.kill_in_the_middle(services).await?;
    let killed_at = Instant::now();
    let started = services.start(&stage.launch).map_err(needs_a_person)?;
    let what = match open {
        0 => "its work, between two transactions".to_owned(),
        1 => "1 open transaction".to_owned(),
        open => format!("{open} open transactions"),
    };
    let after = began.elapsed().as_secs_f64();
    watch.say(&format!(
        "{after:5.1} s  killed process {killed} (SIGKILL) in the middle of {what}"
    ));
    watch.say(&format!(
        "         started process {started}; the dead one's partitions are free in about 6 s"
    ));
    let fold = producing
        .await
        .context("producing")
        .map_err(needs_a_person)?;
    let fold = fold.map_err(|error| Failed::new(CODE_TRY_AGAIN, error))?;
    let logs = stage
        .cluster
        .logs(std::slice::from_ref(&stage.names.entries))
        .await?;
    if logs.iter().any(|(_, log)| log.low > 0) {
        let error = anyhow::anyhow!("the broker has dropped events already; use fewer --events");
        return Err(needs_a_person(error));
    }
    let end = |row: &Position| {
        let partition = TopicPartition::new(&*row.topic, row.partition);
        logs.iter()
            .find(|(of, _)| *of == partition)
            .map(|(_, log)| log.high)
    };
    let orphaned = watch
        .until_consumed((killed, killed_at), end, services)
        .await?;
    watch.until_sent(services).await?;
    let took = began.elapsed();
    watch.end();

    let messages = topics::messages(stage).await?;
    if !arguments.keep {
        services.stop().await;
    }
    let connection = &mut stage.connection;
    let verdict = Verdict::reach(connection, &fold, &messages, &services.ends);
    let verdict = verdict.await.map_err(needs_a_person)?;
    verdict.print();
    sum_up(&verdict, services, events, took, orphaned);
    match verdict.differences() {
        None => Ok(()),
        Some(differences) => Err(needs_a_person(anyhow::anyhow!(differences))),
    }
}

/// As many events as were asked for, or as the mock broker can hold.
fn events(arguments: &Arguments) -> u64 {
    let most = MOCK_EVENTS_PER_PARTITION_MAX * u64::from(arguments.partitions);
    match arguments.mock {
        true => arguments.events.min(most),
        false => arguments.events,
    }
}

fn announce(arguments: &Arguments, stage: &Stage, events: u64) {
    let count = |count: u64| number(count.cast_signed());
    println!(
        "A ledger of {} events (seed {}); two processes, one of them killed\n",
        count(events),
        arguments.seed
    );
    if stage.is_mock() {
        println!(
            "Mock Kafka: a broker inside this process, in memory, gone at the end. It is no\n\
             real broker: no retention, no compaction, no transactions, and about 5 MiB of\n\
             records a partition."
        );
        if events < arguments.events {
            println!(
                "Of the {} events asked for it takes {}; more need a real Kafka.",
                count(arguments.events),
                count(events)
            );
        }
        println!();
    }
    let names = &stage.names;
    let format = match arguments.format {
        Format::Json => "JSON",
        Format::Avro => "Avro, by two versions of a schema",
    };
    println!(
        "  events    {}, {} partitions, in {format}",
        names.entries, arguments.partitions
    );
    println!("  messages  {}", names.overdrafts);
    println!("  database  {}", names.database);
    println!(
        "  logs      {}\n",
        stage.folder().join("service-*.log").display()
    );
}

fn sum_up(
    verdict: &Verdict,
    services: &Services,
    events: u64,
    took: Duration,
    orphaned: Option<Duration>,
) {
    let seconds = took.as_secs_f64();
    println!(
        "{} events in {seconds:.1} s, the kill included: {} a second",
        number(events.cast_signed()),
        number((events as f64 / seconds) as i64)
    );
    println!(
        "{} process killed, {} started again, nothing reset by hand",
        services.killed,
        services.started.saturating_sub(2)
    );
    if let Some(orphaned) = orphaned {
        println!(
            "{:.1} s until others worked on the killed one's partitions",
            orphaned.as_secs_f64()
        );
    }
    match verdict.repeats {
        0 => println!("The relay sent no message twice\n"),
        repeats => println!(
            "The relay sent {} messages twice, with the same ce_id: a receiver drops them\n",
            number(repeats)
        ),
    }
}

/// Leaves everything, and says how to go on.
async fn keep(stage: Stage, services: &mut Services) -> Done {
    let path = write_environment(&stage.launch).map_err(needs_a_person)?;
    let pids: Vec<String> = services
        .running()
        .iter()
        .map(|s| s.pid.to_string())
        .collect();
    println!("Still running, for you to play with:\n");
    println!("  source {}", path.display());
    for command in [
        "tidegate status",
        "tidegate verify",
        "tidegate reset balances --to earliest --yes; tidegate status",
        "psql \"$TIDEGATE__POSTGRES__URL\" -c 'TABLE turnover.turnover'",
        "psql \"$TIDEGATE__POSTGRES__URL\" -c 'TABLE balances.balance LIMIT 5'",
    ] {
        println!("  {command}");
    }
    if stage.is_mock() {
        println!("\nThe mock broker lives in this process: Ctrl-C ends all of it\n\nEXACT");
        let failed = interrupted().await;
        services.kill_all().await;
        tidy_up(stage).await;
        return match failed.code {
            CODE_INTERRUPTED => Ok(()), // as it was told to
            _ => Err(failed),
        };
    }
    println!("  kill {}", pids.join(" "));
    println!("\nThe next demo removes database and topics once nobody is connected\n\nEXACT");
    services.release();
    Ok(())
}

async fn tidy_up(stage: Stage) {
    let database = stage.names.database.clone();
    if let Err(error) = stage.strike().await {
        println!("Database {database} was not dropped ({error:#}); the next demo does it");
    }
}

/// Waits for a signal to end. The processes of the demo do not get it: they have groups of their own.
async fn interrupted() -> Failed {
    let wait = async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        std::io::Result::Ok(())
    };
    match wait.await {
        Ok(()) => Failed::new(
            CODE_INTERRUPTED,
            anyhow::anyhow!("interrupted; its processes were killed"),
        ),
        Err(error) => needs_a_person(error),
    }
}

fn needs_a_person(error: impl Into<anyhow::Error>) -> Failed {
    Failed::new(CODE_NEEDS_A_PERSON, error)
}
