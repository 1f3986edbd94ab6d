//! `tidegate dead-letters`: records that could not be applied.

use std::sync::Arc;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use sqlx::PgConnection;

use super::output::{counted, excerpt, number, shown, table, time};
use super::{
    CODE_NEEDS_A_PERSON, CODE_TRY_AGAIN, ConfigArgument, Done, Failed, confirmed, connect,
    database, projections, schema_registry, who,
};
use crate::codec::Decoder;
use crate::engine::Class;
use crate::engine::parking::Reason;
use crate::engine::redact::Secrets;
use crate::projection::{Gate, Projection, Registry};
use crate::registry::Registry as SchemaRegistry;
use crate::runtime::{self, LetterError, Operator, Queue, RedriveError, Redriven, Redriver, Role};
use crate::store::dead_letter::{self, Chosen, Filter, Listed};
use crate::store::{self, Database};

/// Letters that one command takes in hand, at most.
pub(super) const LETTERS_MAX: usize = 1_000_000;
/// Entities that are redriven together.
const ENTITIES_TOGETHER: usize = 100;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Counts them by reason, and lists the first ones
    List(List),
    /// Shows one with its bytes
    Show(Show),
    /// Applies them again, each entity's in order, also while the service runs
    Redrive(Redrive),
    /// Gives them up, for a reason that is recorded
    Discard(Discard),
}

#[derive(Debug, clap::Args)]
struct List {
    /// Only those of this projection
    projection: Option<String>,
    #[command(flatten)]
    which: Which,
    /// Those that are resolved too
    #[arg(long)]
    all: bool,
    /// How many lines at most
    #[arg(long, default_value_t = 20, value_name = "LINES")]
    limit: u32,
    /// One JSON object instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, Default, clap::Args)]
pub(super) struct Which {
    /// Only those of this entity
    #[arg(long)]
    pub(super) entity: Option<String>,
    /// Only those with this reason
    #[arg(long, value_parser = reason)]
    pub(super) reason: Option<Reason>,
    /// Only this one
    #[arg(long, value_name = "NUMBER")]
    pub(super) number: Option<i64>,
}

#[derive(Debug, clap::Args)]
struct Show {
    /// Its number, as `list` shows it
    number: i64,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, clap::Args)]
struct Redrive {
    /// The projection
    projection: String,
    #[command(flatten)]
    which: Which,
    /// Only say what would be applied again
    #[arg(long)]
    dry_run: bool,
    /// Letters in a second, at most
    #[arg(long, value_name = "LETTERS")]
    rate: Option<u32>,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, clap::Args)]
struct Discard {
    /// The projection
    projection: String,
    #[command(flatten)]
    which: Which,
    /// Why, for the record
    #[arg(long)]
    why: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

pub(super) fn reason(text: &str) -> Result<Reason, String> {
    let found = Reason::ALL.into_iter().find(|reason| reason.name() == text);
    found.ok_or_else(|| {
        let names: Vec<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        format!("there is no such reason; one of {}", names.join(", "))
    })
}

impl Which {
    pub(super) fn filter(&self, projection: Option<&str>, all: bool) -> Filter {
        Filter {
            projection: projection.map(str::to_owned),
            entity: self.entity.clone(),
            reason: self.reason,
            number: self.number,
            all,
        }
    }

    /// Of one projection: an entity is meant however it is spelled.
    pub(super) fn filter_of(&self, projection: &Projection) -> Filter {
        let spelled = |entity: String| projection.spelled(&entity).unwrap_or(entity);
        let filter = self.filter(Some(projection.name()), false);
        Filter {
            entity: filter.entity.map(spelled),
            ..filter
        }
    }
}

pub(super) async fn execute(arguments: Arguments, registry: Registry) -> Done {
    match arguments.command {
        Command::List(list) => execute_list(list).await,
        Command::Show(show) => execute_show(show).await,
        Command::Redrive(redrive) => execute_redrive(redrive, registry).await,
        Command::Discard(discard) => execute_discard(discard, registry).await,
    }
}

async fn execute_list(arguments: List) -> Done {
    let config = arguments.config.load()?;
    let mut connection = connect(&database(&config)?).await?;
    let filter = arguments
        .which
        .filter(arguments.projection.as_deref(), arguments.all);
    let letters = dead_letter::list(&mut connection, &filter, i64::from(arguments.limit)).await?;
    let mut summary = dead_letter::summary(&mut connection).await?;
    summary.retain(|row| {
        arguments
            .projection
            .as_ref()
            .is_none_or(|name| *name == row.projection)
    });
    if arguments.json {
        let counts = summary.iter().map(|row| {
            json!({
                "projection": row.projection, "reason": row.reason, "waiting": row.waiting,
                "entities": row.entities, "oldest": row.oldest.to_rfc3339(),
            })
        });
        let letters = letters.iter().map(as_json);
        let all = json!({ "waiting": counts.collect::<Vec<_>>(), "letters": letters.collect::<Vec<_>>() });
        println!("{all:#}");
        return Ok(());
    }
    if summary.is_empty() {
        println!("no record is parked");
    } else {
        let mut counts = table(
            &["projection", "reason", "waiting", "entities", "oldest"],
            &["waiting", "entities"],
        );
        for row in &summary {
            counts.add_row([
                row.projection.clone(),
                row.reason.clone(),
                number(row.waiting),
                number(row.entities),
                time(row.oldest),
            ]);
        }
        println!("{counts}\n");
    }
    if letters.is_empty() {
        return Ok(());
    }
    let mut lines = table(
        &[
            "number",
            "projection",
            "record",
            "entity",
            "sequence",
            "reason",
            "state",
            "tried",
            "detail",
        ],
        &["number", "sequence", "tried"],
    );
    for letter in &letters {
        lines.add_row([
            letter.number.to_string(),
            letter.projection.clone(),
            place(letter),
            letter.entity.clone().unwrap_or_else(|| "-".to_owned()),
            letter
                .sequence
                .map_or_else(|| "-".to_owned(), |sequence| sequence.to_string()),
            letter.reason.clone(),
            letter.state.clone(),
            letter.attempts.to_string(),
            excerpt(&letter.detail, 120),
        ]);
    }
    println!("{lines}");
    if letters.len() as u64 == u64::from(arguments.limit) {
        println!("only the first {}; --limit shows more", arguments.limit);
    }
    Ok(())
}

fn place(letter: &Listed) -> String {
    format!(
        "{}/{}@{}",
        letter.topic, letter.partition, letter.record_offset
    )
}

fn as_json(letter: &Listed) -> serde_json::Value {
    json!({
        "number": letter.number, "projection": letter.projection, "topic": letter.topic,
        "partition": letter.partition, "offset": letter.record_offset, "entity": letter.entity,
        "sequence": letter.sequence, "reason": letter.reason, "sqlstate": letter.sqlstate,
        "detail": letter.detail, "state": letter.state, "attempts": letter.attempts,
        "parked_at": letter.parked_at.to_rfc3339(), "tried_at": letter.tried_at.to_rfc3339(),
        "resolved_at": letter.resolved_at.map(|at| at.to_rfc3339()),
        "cleared_at": letter.cleared_at.map(|at| at.to_rfc3339()),
    })
}

async fn execute_show(arguments: Show) -> Done {
    let config = arguments.config.load()?;
    let mut connection = connect(&database(&config)?).await?;
    let filter = Filter {
        number: Some(arguments.number),
        all: true,
        ..Filter::default()
    };
    let letters = dead_letter::list(&mut connection, &filter, 1).await?;
    let Some(letter) = letters.first() else {
        let error = anyhow::anyhow!(
            "there is no dead letter {}; `tidegate dead-letters list` shows those there are",
            arguments.number
        );
        return Err(Failed::new(64, error));
    };
    println!("{} of projection {}", place(letter), letter.projection);
    println!("state      {}", letter.state);
    println!(
        "reason     {}{}",
        letter.reason,
        letter
            .sqlstate
            .as_ref()
            .map_or_else(String::new, |code| format!(" (SQLSTATE {code})"))
    );
    if letter.cleared_at.is_none() {
        println!("detail     {}", letter.detail);
    }
    let tried = match letter.attempts {
        1 => "once".to_owned(),
        attempts => format!("{attempts} times"),
    };
    println!(
        "parked     {}, tried {tried}, last {}",
        time(letter.parked_at),
        time(letter.tried_at)
    );
    if let Some(at) = letter.resolved_at {
        println!("resolved   {}", time(at));
    }
    println!("entity     {}", letter.entity.as_deref().unwrap_or("none"));
    println!(
        "sequence   {}",
        letter
            .sequence
            .map_or_else(|| "none".to_owned(), |sequence| sequence.to_string())
    );
    let written = letter
        .timestamp_ms
        .and_then(chrono::DateTime::from_timestamp_millis);
    println!(
        "written    {}",
        written.map_or_else(|| "at no time".to_owned(), time)
    );
    if let Some(at) = letter.cleared_at {
        println!(
            "removed    {}: key, value, headers and detail, `keep_days` after it was resolved",
            time(at)
        );
        return Ok(());
    }
    for (name, value) in letter.header_names.iter().zip(&letter.header_values) {
        println!(
            "header     {}: {}",
            shown(Some(name)),
            shown(value.as_deref())
        );
    }
    println!("key        {}", shown(letter.key.as_deref()));
    println!("value      {}", shown(letter.value.as_deref()));
    Ok(())
}

pub(super) fn find<'p>(
    all: &'p [std::sync::Arc<Projection>],
    name: &str,
) -> Result<&'p Projection, Failed> {
    let found = all.iter().find(|projection| projection.name() == name);
    found.map(|found| &**found).ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|p| p.name()).collect();
        let error = anyhow::anyhow!(
            "there is no projection `{name}`; known are: {}",
            known.join(", ")
        );
        Failed::new(64, error)
    })
}

async fn execute_redrive(arguments: Redrive, registry: Registry) -> Done {
    let mut config = arguments.config.load()?;
    let all = projections(&mut config, registry)?;
    let projection = find(&all, &arguments.projection)?;
    let database = database(&config)?;
    let mut connection = connect(&database).await?;
    let filter = arguments.which.filter_of(projection);
    let letters = dead_letter::choose(&mut connection, &filter, LETTERS_MAX).await?;
    println!(
        "{}; with an entity goes all that waits of it, in order",
        counted(letters.len(), "parked record")
    );
    if arguments.dry_run || letters.is_empty() {
        if arguments.dry_run {
            println!("nothing was changed (--dry-run)");
        }
        return Ok(());
    }
    let schemas = schema_registry(&config, &database)?;
    let who = who("dead-letters redrive");
    let operator = Operator::at_a_terminal(&who, &database.timeouts);
    let name = &arguments.projection;
    let begun = runtime::begin_redrive(&mut connection, name, letters.len(), operator).await;
    begun.map_err(letter_failed)?;
    let redriving = Redriving {
        projection,
        database: &database,
        schemas: schemas.as_ref(),
        secrets: &config.secrets(),
        rate: arguments.rate,
    };
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len} entities, {elapsed}, {eta} left")
    {
        bar.set_style(style);
    }
    let tell = |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let total = redriving.redrive(&letters, tell).await?;
    bar.finish_and_clear();
    println!(
        "applied {}, stale {}, duplicate {}, filtered {}; {} messages",
        total.applied, total.stale, total.duplicate, total.filtered, total.messages
    );
    if total.failed.is_empty() {
        return Ok(());
    }
    for (letter, detail) in total.failed.iter().take(20) {
        println!(
            "{letter} failed again, and what is behind it waits: {}",
            excerpt(detail, 200)
        );
    }
    let error = anyhow::anyhow!("{} failed again; they keep their place", total.failed.len());
    Err(Failed::new(CODE_NEEDS_A_PERSON, error))
}

/// How letters are applied again, for whoever asks for it.
pub(super) struct Redriving<'a> {
    pub(super) projection: &'a Projection,
    pub(super) database: &'a Database,
    pub(super) schemas: Option<&'a Arc<SchemaRegistry>>,
    pub(super) secrets: &'a Secrets,
    /// Letters in a second, at most.
    pub(super) rate: Option<u32>,
}

impl Redriving<'_> {
    /// Applies letters again, each entity's in order. `tell` hears how many entities are done, and of how many.
    pub(super) async fn redrive(
        &self,
        letters: &[Chosen],
        tell: impl Fn(u64, u64),
    ) -> Result<Redriven, Failed> {
        let (projection, database) = (self.projection, self.database);
        let owner = format!("cli-{}", std::process::id());
        let settled = runtime::settle_outgoing(projection, self.schemas).await;
        settled.map_err(|why| Failed::new(CODE_TRY_AGAIN, anyhow::anyhow!(why)))?;
        let decoder = Decoder::new(projection, self.schemas);
        let mut redriver = Redriver {
            role: Role::Live,
            projection,
            decoder: &decoder,
            timeouts: database.timeouts,
            owner: &owner,
            secrets: self.secrets,
            letters_max: runtime::LETTERS_MAX,
        };
        let mut connection = connect(database).await?;
        let queues = queues(&redriver, &mut connection, letters).await?;
        let length = |queue: &Queue| match queue {
            Queue::Entities(entities) => entities.len() as u64,
            Queue::Letter(_) => 1,
        };
        let (mut done, all) = (0, queues.iter().map(length).sum());
        let mut total = Redriven::default();
        for queue in &queues {
            let began = std::time::Instant::now();
            let redriven = loop {
                match redriver.redrive(&mut connection, queue).await {
                    // What was committed is not tried again; fewer at once may do.
                    Err(RedriveError::Store(store::Error::Deadline(..)))
                        if redriver.letters_max > 1 =>
                    {
                        redriver.letters_max = runtime::fewer(redriver.letters_max);
                        connection = connect(database).await?;
                    }
                    done => break done.map_err(redrive_failed)?,
                }
            };
            done += length(queue);
            tell(done, all);
            if let Some(rate) = self.rate.filter(|rate| *rate > 0) {
                let due = std::time::Duration::from_secs_f64(
                    redriven.resolved() as f64 / f64::from(rate),
                );
                tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
            }
            total.add(redriven);
        }
        Ok(total)
    }
}

/// What to redrive together: whole entities, and letters that have none.
async fn queues(
    redriver: &Redriver<'_>,
    connection: &mut PgConnection,
    letters: &[Chosen],
) -> Result<Vec<Queue>, Failed> {
    let (of_entities, alone): (Vec<&Chosen>, Vec<&Chosen>) =
        letters.iter().partition(|letter| letter.entity.is_some());
    let alone: Vec<i64> = alone.into_iter().map(|letter| letter.number).collect();
    let adopted = redriver.adopt(connection, &alone).await;
    let (mut entities, alone) = adopted.map_err(redrive_failed)?;
    entities.extend(
        of_entities
            .iter()
            .filter_map(|letter| letter.entity.clone()),
    );
    let entities: Vec<String> = entities.into_iter().collect();
    let together = entities
        .chunks(ENTITIES_TOGETHER)
        .map(|chunk| Queue::Entities(chunk.to_vec()));
    Ok(together
        .chain(alone.into_iter().map(Queue::Letter))
        .collect())
}

fn redrive_failed(error: RedriveError) -> Failed {
    let code = match &error {
        RedriveError::Store(error) if error.class() != Class::Transient => CODE_NEEDS_A_PERSON,
        RedriveError::Unavailable(error) if error.class != Class::Transient => CODE_NEEDS_A_PERSON,
        RedriveError::Store(_)
        | RedriveError::Refused
        | RedriveError::Handler(_)
        | RedriveError::Schemas(_)
        | RedriveError::Unavailable(_) => CODE_TRY_AGAIN,
        _ => CODE_NEEDS_A_PERSON,
    };
    Failed::new(code, error)
}

async fn execute_discard(arguments: Discard, registry: Registry) -> Done {
    let mut config = arguments.config.load()?;
    let all = projections(&mut config, registry)?;
    let projection = find(&all, &arguments.projection)?;
    let database = database(&config)?;
    let mut connection = connect(&database).await?;
    let filter = arguments.which.filter_of(projection);
    let letters = dead_letter::choose(&mut connection, &filter, LETTERS_MAX).await?;
    let first = dead_letter::list(&mut connection, &filter, 1).await?;
    let (Some(first), false) = (first.first(), letters.is_empty()) else {
        println!("no such record is parked");
        return Ok(());
    };
    println!(
        "This gives up {} of {}, the first of them {}: effects and messages will be missing.",
        counted(letters.len(), "parked record"),
        arguments.projection,
        place(first)
    );
    if !arguments.yes && !confirmed()? {
        println!("nothing was changed");
        return Ok(());
    }
    let who = who("dead-letters discard");
    let operator = Operator::at_a_terminal(&who, &database.timeouts);
    let moves_gates = matches!(projection.gate, Gate::Next { .. });
    let (name, why) = (&arguments.projection, &arguments.why);
    let done = runtime::discard(&mut connection, projection, &letters, why, operator).await;
    let operation = done.map_err(letter_failed)?;
    let behind = match moves_gates {
        true => "what waited behind goes on by itself".to_owned(),
        false => format!("`tidegate dead-letters redrive {name}` applies what waited behind"),
    };
    println!(
        "discarded {} (operation {operation}); {behind}",
        letters.len()
    );
    Ok(())
}

pub(super) fn letter_failed(error: LetterError) -> Failed {
    let code = match &error {
        LetterError::Changed => CODE_TRY_AGAIN,
        LetterError::Store(error) if error.class() == Class::Transient => CODE_TRY_AGAIN,
        _ => CODE_NEEDS_A_PERSON,
    };
    Failed::new(code, error)
}
