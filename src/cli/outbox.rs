//! `tidegate outbox`: what is sent, and what cannot be.

use chrono::{DateTime, Utc};
use clap::Subcommand;
use serde_json::json;

use super::output::{counted, excerpt, number, shown, table, time};
use super::{
    CODE_NEEDS_A_PERSON, CODE_TRY_AGAIN, ConfigArgument, Done, Failed, confirmed, connect,
    database, who,
};
use crate::engine::Class;
use crate::runtime::{self, Operator, QuarantineError};
use crate::store::outbox::{self, Status};
use crate::store::quarantine::{self, Filter, Listed, Place};

/// Messages that one command takes in hand, at most.
const MESSAGES_MAX: i64 = 1_000_000;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows how far each stream is sent, by which relay, and what stands in its way
    Status(StatusArguments),
    /// Lists or shows messages that cannot be sent, and those that wait behind them
    #[command(subcommand)]
    Quarantine(Quarantine),
    /// Sends messages in quarantine again, in order, with all that waits of the same keys
    Release(Release),
    /// Gives messages in quarantine up, for a reason that is recorded; what waited behind is sent
    Discard(Discard),
}

#[derive(Debug, Subcommand)]
enum Quarantine {
    /// Lists them
    List(List),
    /// Shows one with its bytes
    Show(Show),
}

#[derive(Debug, clap::Args)]
struct StatusArguments {
    /// One JSON array instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Only those of this stream
    #[arg(long)]
    stream: Option<String>,
    /// Only this one of the stream
    #[arg(long, requires = "stream")]
    number: Option<i64>,
    /// Only those for this topic
    #[arg(long)]
    topic: Option<String>,
    /// Only those with this key
    #[arg(long)]
    key: Option<String>,
    /// Only those with this reason
    #[arg(long, value_parser = ["too_large", "unknown_topic", "no_permission", "refused", "behind"])]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    which: Which,
    /// Those that were sent or discarded since, too
    #[arg(long)]
    all: bool,
    /// How many lines at most
    #[arg(long, default_value_t = 20, value_name = "LINES")]
    limit: u32,
    /// One JSON array instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, clap::Args)]
struct Show {
    /// Its stream, as `list` shows it
    stream: String,
    /// Its number, as `list` shows it
    number: i64,
    #[command(flatten)]
    config: ConfigArgument,
}

/// Which ones: said, not assumed.
#[derive(Debug, clap::Args)]
struct Chosen {
    #[command(flatten)]
    which: Which,
    /// All there are
    #[arg(long, conflicts_with_all = ["stream", "topic", "key", "reason"])]
    all: bool,
}

#[derive(Debug, clap::Args)]
struct Release {
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, clap::Args)]
struct Discard {
    #[command(flatten)]
    chosen: Chosen,
    /// Why, for the record
    #[arg(long)]
    why: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

impl Which {
    fn filter(&self, all: bool) -> Filter {
        Filter {
            stream: self.stream.clone(),
            number: self.number,
            topic: self.topic.clone(),
            key: self.key.as_ref().map(|key| key.clone().into_bytes()),
            reason: self.reason.clone(),
            all,
        }
    }
}

impl Chosen {
    fn filter(&self) -> Result<Filter, Failed> {
        let Which {
            stream,
            topic,
            key,
            reason,
            number: _,
        } = &self.which;
        if !self.all && [stream, topic, key, reason].iter().all(|one| one.is_none()) {
            let error = anyhow::anyhow!(
                "say which messages: --stream with --number, --topic, --key or --reason, or --all"
            );
            return Err(Failed::new(64, error));
        }
        Ok(self.which.filter(false))
    }
}

pub(super) async fn execute(arguments: Arguments) -> Done {
    match arguments.command {
        Command::Status(status) => execute_status(status).await,
        Command::Quarantine(Quarantine::List(list)) => execute_list(list).await,
        Command::Quarantine(Quarantine::Show(show)) => execute_show(show).await,
        Command::Release(release) => execute_release(release).await,
        Command::Discard(discard) => execute_discard(discard).await,
    }
}

async fn execute_status(arguments: StatusArguments) -> Done {
    let config = arguments.config.load()?;
    let mut connection = connect(&database(&config)?).await?;
    let streams = outbox::status(&mut connection).await?;
    if arguments.json {
        println!("{:#}", streams_json(&streams));
    } else if streams.is_empty() {
        println!("no message has been emitted yet");
    } else {
        print_streams(&streams);
    }
    Ok(())
}

/// The streams, one line each, and what stands in the way of some.
pub(super) fn print_streams(streams: &[Status]) {
    let numbers = ["emitted", "sent", "unsent", "quarantined"];
    let quarantined = streams.iter().any(|row| row.quarantined() > 0);
    let mut header = vec!["stream", "emitted", "sent", "unsent", "oldest"];
    if quarantined {
        header.push("quarantined");
    }
    header.push("relay");
    let mut lines = table(&header, &numbers);
    for row in streams {
        let mut cells = vec![
            row.stream.clone(),
            number(row.emitted),
            number(row.sent_through),
            number(row.unsent()),
            row.oldest_unsent.map_or_else(|| "-".to_owned(), age),
        ];
        if quarantined {
            cells.push(number(row.quarantined()));
        }
        cells.push(match &*row.owner {
            "" => "-".to_owned(),
            owner => owner.to_owned(),
        });
        lines.add_row(cells);
    }
    println!("{lines}");
    for row in streams.iter().filter(|row| !row.last_error.is_empty()) {
        let attempts = match row.attempts {
            0 => String::new(),
            attempts => format!(" ({} so far)", counted_attempts(attempts)),
        };
        println!("{}{attempts}: {}", row.stream, row.last_error);
    }
    if quarantined {
        println!("`tidegate outbox quarantine list` shows what cannot be sent, and why");
    }
}

fn counted_attempts(attempts: i32) -> String {
    counted(usize::try_from(attempts).unwrap_or_default(), "attempt")
}

/// How long ago, in the largest unit that fits.
fn age(at: DateTime<Utc>) -> String {
    let seconds = (Utc::now() - at).num_seconds().max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// The same for programs.
pub(super) fn streams_json(streams: &[Status]) -> serde_json::Value {
    let stream = |row: &Status| {
        json!({
            "stream": row.stream, "emitted": row.emitted, "sent_through": row.sent_through,
            "unsent": row.unsent(), "oldest_unsent": row.oldest_unsent.map(|at| at.to_rfc3339()),
            "quarantined": row.waiting, "released": row.released, "relay": row.owner,
            "attempts": row.attempts, "retry_at": row.retry_at.map(|at| at.to_rfc3339()),
            "last_error": row.last_error,
        })
    };
    streams.iter().map(stream).collect()
}

async fn execute_list(arguments: List) -> Done {
    let config = arguments.config.load()?;
    let mut connection = connect(&database(&config)?).await?;
    let filter = arguments.which.filter(arguments.all);
    let messages = quarantine::list(&mut connection, &filter, i64::from(arguments.limit)).await?;
    if arguments.json {
        let all: serde_json::Value = messages.iter().map(as_json).collect();
        println!("{all:#}");
        return Ok(());
    }
    if messages.is_empty() {
        println!("no message is in quarantine");
        return Ok(());
    }
    let mut lines = table(
        &[
            "stream", "number", "topic", "key", "reason", "state", "tried", "detail",
        ],
        &["number", "tried"],
    );
    for message in &messages {
        lines.add_row([
            message.place.stream.clone(),
            message.place.number.to_string(),
            message.topic.clone(),
            excerpt(&shown(message.key.as_deref()), 40),
            message.reason.clone(),
            message.state.clone(),
            message.attempts.to_string(),
            excerpt(&message.detail, 120),
        ]);
    }
    println!("{lines}");
    if messages.len() as u64 == u64::from(arguments.limit) {
        println!("only the first {}; --limit shows more", arguments.limit);
    }
    Ok(())
}

fn as_json(message: &Listed) -> serde_json::Value {
    json!({
        "stream": message.place.stream, "number": message.place.number, "id": message.id.to_string(),
        "topic": message.topic, "key": message.key.as_ref().map(|key| shown(Some(key))),
        "payload_bytes": message.payload_bytes, "reason": message.reason, "detail": message.detail,
        "state": message.state, "attempts": message.attempts,
        "quarantined_at": message.quarantined_at.to_rfc3339(),
        "resolved_at": message.resolved_at.map(|at| at.to_rfc3339()),
    })
}

async fn execute_show(arguments: Show) -> Done {
    let config = arguments.config.load()?;
    let mut connection = connect(&database(&config)?).await?;
    let filter = Filter {
        stream: Some(arguments.stream.clone()),
        number: Some(arguments.number),
        all: true,
        ..Filter::default()
    };
    let found = quarantine::list(&mut connection, &filter, 1).await?;
    let Some(listed) = found.first() else {
        let error = anyhow::anyhow!(
            "message {} of {} is not in quarantine; `tidegate outbox quarantine list` shows those that are",
            arguments.number,
            arguments.stream
        );
        return Err(Failed::new(64, error));
    };
    let message = quarantine::message(&mut connection, &listed.place).await?;
    println!("message {} of {}", listed.place.number, listed.place.stream);
    println!("id           {}", listed.id);
    println!("state        {}", listed.state);
    println!("reason       {}", listed.reason);
    println!("detail       {}", listed.detail);
    println!(
        "quarantined  {}, after {}",
        time(listed.quarantined_at),
        counted_attempts(listed.attempts)
    );
    if let Some(at) = listed.resolved_at {
        println!("resolved     {}", time(at));
    }
    println!("emitted      {}", time(message.created_at));
    println!("topic        {}", listed.topic);
    if let Some(partition) = message.partition {
        println!("partition    {partition}");
    }
    println!("source       {}", message.source);
    println!("type         {}", message.kind);
    for (name, value) in message.header_names.iter().zip(&message.header_values) {
        println!("header       {name}: {}", shown(value.as_deref()));
    }
    println!("key          {}", shown(listed.key.as_deref()));
    println!("payload      {}", shown(message.payload.as_deref()));
    Ok(())
}

async fn execute_release(arguments: Release) -> Done {
    let config = arguments.config.load()?;
    let filter = arguments.chosen.filter()?;
    let database = database(&config)?;
    let mut connection = connect(&database).await?;
    let places = waiting(quarantine::list(&mut connection, &filter, MESSAGES_MAX).await?);
    if places.is_empty() {
        println!("no such message waits in quarantine");
        return Ok(());
    }
    let who = who("outbox release");
    let operator = Operator::at_a_terminal(&who, &database.timeouts);
    let done = runtime::release(&mut connection, &places, operator).await;
    let done = done.map_err(failed)?;
    println!(
        "released {} (operation {}); the relay sends them next, in order",
        counted(
            usize::try_from(done.released).unwrap_or(usize::MAX),
            "message"
        ),
        done.operation
    );
    if done.released < places.len() as u64 {
        println!("the others wait behind messages that were not released");
    }
    Ok(())
}

async fn execute_discard(arguments: Discard) -> Done {
    let config = arguments.config.load()?;
    let filter = arguments.chosen.filter()?;
    let database = database(&config)?;
    let mut connection = connect(&database).await?;
    let places = waiting(quarantine::list(&mut connection, &filter, MESSAGES_MAX).await?);
    let Some(first) = places.first() else {
        println!("no such message waits in quarantine");
        return Ok(());
    };
    println!(
        "This gives up {}, the first of them {} of {}: whoever reads the topic will never see them.",
        counted(places.len(), "message"),
        first.number,
        first.stream
    );
    if !arguments.yes && !confirmed()? {
        println!("nothing was changed");
        return Ok(());
    }
    let who = who("outbox discard");
    let operator = Operator::at_a_terminal(&who, &database.timeouts);
    let why = &arguments.why;
    let done = runtime::discard_messages(&mut connection, &places, why, operator).await;
    let done = done.map_err(failed)?;
    println!(
        "discarded {} (operation {}); {} waited behind and are sent next",
        places.len(),
        done.operation,
        done.released
    );
    Ok(())
}

/// What is released already is the relay's.
fn waiting(listed: Vec<Listed>) -> Vec<Place> {
    let waiting = listed.into_iter().filter(|one| one.state == "waiting");
    waiting.map(|one| one.place).collect()
}

fn failed(error: QuarantineError) -> Failed {
    let code = match &error {
        QuarantineError::Changed => CODE_TRY_AGAIN,
        QuarantineError::Store(error) if error.class() == Class::Transient => CODE_TRY_AGAIN,
        QuarantineError::Store(_) => CODE_NEEDS_A_PERSON,
    };
    Failed::new(code, error)
}
