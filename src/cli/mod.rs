//! The command line: one file per command.

// Printing is what a command line is for; nowhere else is it allowed.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is the command line"
)]

/// As the standard one, but a reader that has had enough, such as `head`, ends the command without a word.
macro_rules! println {
    () => { println!("") };
    ($($text:tt)*) => {
        $crate::cli::output::line(format_args!($($text)*))
    };
}

mod accept_topic;
mod admin;
mod check;
mod completions;
mod config_show;
mod dead_letters;
mod demo;
mod discreet;
mod doctor;
mod explain;
mod gate;
mod log;
mod man;
mod migrate;
mod outbox;
mod output;
mod pause;
mod rebuild;
mod relay;
mod reset;
mod run;
mod skip;
mod status;
mod test;
mod verify;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};

use crate::config::{self, Config};
use crate::projection::{Projection, Registry};
use crate::registry::Registry as SchemaRegistry;
use crate::runtime::{self, RepositionError, RunError};
use crate::store::migration::{self, State};
use crate::store::{self, Database, server};

/// Applies Kafka events to Postgres exactly once.
///
/// A consumer group stores the effects of events and its positions in Postgres in one transaction,
/// drops stale events by per-entity sequences, and sends downstream messages through an outbox.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, after_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Settings come from the configuration file and from environment variables named
TIDEGATE__<SECTION>__<KEY>, such as TIDEGATE__POSTGRES__URL, which win.

Exit codes: 0 done, 64 wrong usage, 70 something needs a person, 75 try again later,
76 the consumer group is used in another way, 77 another process has this one's
group instance id, 78 wrong configuration.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the projections of the configuration file, and the relay
    Run(run::Arguments),
    /// Runs the relay alone: sends the outbox, with any number of others
    Relay(relay::Arguments),
    /// Creates or updates Tidegate's own tables in the database
    Migrate(ConfigArgument),
    /// Shows every setting as it counts, and where it comes from
    #[command(subcommand)]
    Config(config_show::Command),
    /// Looks at everything outside, and says which guarantee results and what weakens it
    Doctor(doctor::Arguments),
    /// Checks the configuration and every SQL statement, and reports all mistakes at once
    Check(check::Arguments),
    /// Runs the projections' own tests: given events, what is in their tables, however the events come
    Test(test::Arguments),
    /// Shows how far each partition and each outbox stream is
    Status(status::Arguments),
    /// Says what happened to a record, or what an entity waits for
    Explain(explain::Arguments),
    /// Proves from the tables that every record is accounted for
    Verify(verify::Arguments),
    /// Empties a projection's tables and fills them again from the log, also while it runs
    Reset(reset::Arguments),
    /// Builds a projection's tables anew beside the live ones, and has them take their place
    Rebuild(rebuild::Arguments),
    /// Leaves out records of one partition, on record: some that retention has removed, or that cannot be applied
    Skip(skip::Arguments),
    /// Goes on with a topic that was deleted and made again, or moved to another cluster
    AcceptTopic(accept_topic::Arguments),
    /// Lists, shows, applies again or gives up records that could not be applied
    DeadLetters(dead_letters::Arguments),
    /// Shows what is sent, and decides about messages that cannot be sent
    Outbox(outbox::Arguments),
    /// What an entity waits for
    Gate(gate::Arguments),
    /// Stops a projection in all processes
    Pause(pause::Arguments),
    /// Lets a projection go on, and tries again what was halted
    Resume(pause::Arguments),
    /// Runs a small ledger with two processes and a kill in the middle, and compares the totals
    Demo(demo::Arguments),
    /// Writes a completion script for a shell
    Completions(completions::Arguments),
    /// Writes manual pages: one for each command
    Man(man::Arguments),
}

/// The configuration file.
#[derive(Debug, clap::Args)]
struct ConfigArgument {
    /// Configuration file
    #[arg(
        long,
        short,
        env = "TIDEGATE_CONFIG",
        default_value = "tidegate.toml",
        value_name = "FILE"
    )]
    config: PathBuf,
}

/// How a command failed, and the exit code that says so to scripts.
#[derive(Debug)]
struct Failed {
    code: u8,
    error: anyhow::Error,
}

const CODE_NEEDS_A_PERSON: u8 = 70;
const CODE_TRY_AGAIN: u8 = 75;
/// Its members agree in another way, so this process cannot be one of them.
const CODE_GROUP: u8 = 76;
/// Whoever starts such a process again by itself makes two of them take turns.
const CODE_INSTANCE_ID: u8 = 77;
const CODE_CONFIGURATION: u8 = 78;

type Done = Result<(), Failed>;

impl Failed {
    fn new(code: u8, error: impl Into<anyhow::Error>) -> Self {
        Self {
            code,
            error: error.into(),
        }
    }
}

impl From<store::Error> for Failed {
    fn from(error: store::Error) -> Self {
        let code = match error.class() {
            crate::engine::Class::Transient => CODE_TRY_AGAIN,
            _ => CODE_NEEDS_A_PERSON,
        };
        Self::new(code, error)
    }
}

impl From<crate::kafka::ClusterError> for Failed {
    fn from(error: crate::kafka::ClusterError) -> Self {
        Self::new(CODE_TRY_AGAIN, error)
    }
}

/// The whole program: every command of the service, for the projections of the configuration file and
/// those of `registry`.
///
/// ```no_run
/// # use std::process::ExitCode;
/// use tidegate::projection::Registry;
///
/// fn main() -> ExitCode {
///     tidegate::cli::main(Registry::new())
/// }
/// ```
pub fn main(registry: Registry) -> ExitCode {
    // Arms what the environment variable FAILPOINTS names, for as long as the program runs.
    #[cfg(feature = "failpoints")]
    let _armed = fail::FailScenario::setup();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return match error.use_stderr() {
                true => ExitCode::from(64),
                false => ExitCode::SUCCESS,
            };
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the async runtime cannot start: {error}");
            return ExitCode::from(CODE_TRY_AGAIN);
        }
    };
    let done = runtime.block_on(execute(arguments.command, registry));
    #[cfg(feature = "opentelemetry")]
    runtime.block_on(crate::telemetry::spans::flush());
    // Not waiting for a thread that waits for somebody's answer.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed { code, error }) => {
            let text = format!("{error:#}");
            if text.starts_with("error:") {
                eprintln!("{}", text.trim_end());
            } else {
                eprintln!("error: {text}");
            }
            ExitCode::from(code)
        }
    }
}

/// The command line as it is described: under the name that the program was started by, which need not be ours.
fn described() -> clap::Command {
    let started = std::env::args_os().next();
    let name = started
        .as_deref()
        .map(std::path::Path::new)
        .and_then(|path| path.file_name());
    let name = name.map_or("tidegate".to_owned(), |name| {
        name.to_string_lossy().into_owned()
    });
    // `name` of a command is kept for ever.
    <Arguments as clap::CommandFactory>::command().name(&*name.leak())
}

async fn execute(command: Command, registry: Registry) -> Done {
    match command {
        Command::Run(arguments) => run::execute(arguments, registry).await,
        Command::Relay(arguments) => relay::execute(arguments).await,
        Command::Migrate(arguments) => migrate::execute(arguments).await,
        Command::Config(command) => config_show::execute(&command, registry),
        Command::Doctor(arguments) => doctor::execute(arguments, registry).await,
        Command::Check(arguments) => check::execute(arguments, registry).await,
        Command::Test(arguments) => test::execute(arguments, registry).await,
        Command::Status(arguments) => status::execute(arguments).await,
        Command::Explain(arguments) => explain::execute(arguments, registry).await,
        Command::Verify(arguments) => verify::execute(arguments).await,
        Command::Reset(arguments) => reset::execute(arguments, registry).await,
        Command::Rebuild(arguments) => rebuild::execute(arguments, registry).await,
        Command::Skip(arguments) => skip::execute(arguments).await,
        Command::AcceptTopic(arguments) => accept_topic::execute(arguments).await,
        Command::DeadLetters(arguments) => dead_letters::execute(arguments, registry).await,
        Command::Outbox(arguments) => outbox::execute(arguments).await,
        Command::Gate(arguments) => gate::execute(arguments, registry).await,
        Command::Pause(arguments) => pause::execute(arguments, false).await,
        Command::Resume(arguments) => pause::execute(arguments, true).await,
        Command::Demo(arguments) => Box::pin(demo::execute(arguments)).await,
        Command::Completions(arguments) => completions::execute(&arguments),
        Command::Man(arguments) => man::execute(&arguments),
    }
}

impl ConfigArgument {
    fn load(&self) -> Result<Config, Failed> {
        let config = config::load(&self.config, environment())
            .map_err(|error| Failed::new(CODE_CONFIGURATION, error))?;
        discreet::hide(config.secrets());
        Ok(config)
    }
}

/// All environment variables. `vars` would panic at one that is not Unicode, even if it is not ours.
fn environment() -> impl Iterator<Item = (String, String)> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os().map(move |(name, value)| (text(name), text(value)))
}

fn confirmed() -> Result<bool, Failed> {
    can_ask()?;
    print!("Go on? [y/N] ");
    let mut answer = String::new();
    let read = std::io::stdout()
        .flush()
        .and_then(|()| std::io::stdin().read_line(&mut answer));
    read.map_err(|error| Failed::new(CODE_NEEDS_A_PERSON, error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// For whoever asks late: better told before anything is done.
fn can_ask() -> Done {
    match std::io::stdin().is_terminal() {
        true => Ok(()),
        false => Err(Failed::new(
            64,
            anyhow::anyhow!("not on a terminal: say --yes to go on"),
        )),
    }
}

/// Who acts, for the record. In a container there is often nobody's name.
fn who(command: &str) -> String {
    let mut names = ["USER", "LOGNAME"].into_iter();
    let user = names.find_map(|name| std::env::var(name).ok());
    let user = user.unwrap_or_else(|| format!("somebody at {}", runtime::host()));
    format!("{user} (tidegate {command})")
}

/// An entity that is named on the command line, as the projection spells it.
fn spelled(projection: &Projection, entity: &str) -> Result<String, Failed> {
    let spelled = projection.spelled(entity);
    spelled.map_err(|why| Failed::new(64, anyhow::anyhow!(why)))
}

fn reposition_failed(error: RepositionError) -> Failed {
    let temporary = match &error {
        RepositionError::Kafka(_) => true,
        RepositionError::Store(error) => error.class() == crate::engine::Class::Transient,
        _ => false,
    };
    let code = if temporary {
        CODE_TRY_AGAIN
    } else {
        CODE_NEEDS_A_PERSON
    };
    Failed::new(code, error)
}

fn database(config: &Config) -> Result<Database, Failed> {
    let database = Database::new(&config.postgres_url, config.timeouts).map_err(|error| {
        let error = anyhow::Error::new(error).context("`postgres.url` cannot be read");
        Failed::new(CODE_CONFIGURATION, error)
    })?;
    Ok(database.pooled(config.pooled))
}

/// The database for what needs a session of its own, which a pooler in transaction mode does not give: a lock of the
/// session's would stay with whoever comes next.
async fn database_itself(config: &Config) -> Result<Database, Failed> {
    let database = database(config)?;
    let refused = |why: &str| {
        let error = anyhow::anyhow!(
            "this needs a session of its own, and {why}: give it the server's own address, TIDEGATE__POSTGRES__URL=.. TIDEGATE__POSTGRES__POOLER=none"
        );
        Err(Failed::new(CODE_CONFIGURATION, error))
    };
    if database.pooled {
        return refused("`postgres.pooler` says that there are none");
    }
    // Nobody need have said so: a newer PgBouncer keeps prepared statements and works without.
    let (mut one, mut other) = (reach(&database).await?, reach(&database).await?);
    match server::is_shared(&mut one, &mut other).await? {
        true => refused("connections share sessions, as behind a pooler in transaction mode"),
        false => Ok(database),
    }
}

/// For what needs Tidegate's own tables: a name that is missing in them would not say what is the matter.
async fn connect(database: &Database) -> Result<sqlx::PgConnection, Failed> {
    let mut connection = reach(database).await?;
    match migration::state(&mut connection).await? {
        // Who is older than the schema goes on.
        State::Current | State::Ahead { .. } => Ok(connection),
        State::Behind { applied, known } => {
            let error = RunError::Behind { applied, known };
            Err(Failed::new(CODE_NEEDS_A_PERSON, error))
        }
    }
}

async fn reach(database: &Database) -> Result<sqlx::PgConnection, Failed> {
    let connected = database.connect("tidegate cli").await;
    connected.map_err(|error| {
        // As one text: the error's own says what its sources say.
        let place = database.place();
        let error = anyhow::anyhow!("postgres at {place} cannot be reached: {error}");
        Failed::new(CODE_TRY_AGAIN, error)
    })
}

/// The schema registry, if one is configured. A command does not wait for a schema that is not there.
fn schema_registry(
    config: &Config,
    database: &Database,
) -> Result<Option<Arc<SchemaRegistry>>, Failed> {
    let Some(mut settings) = config.schema_registry.clone() else {
        return Ok(None);
    };
    settings.unknown_grace = std::time::Duration::ZERO;
    // Nothing else waits with it.
    settings.patience = std::time::Duration::MAX;
    let registry = SchemaRegistry::new(settings, database.clone());
    let registry = registry.map_err(|why| Failed::new(CODE_CONFIGURATION, anyhow::anyhow!(why)))?;
    Ok(Some(registry))
}

/// The projections of the file and of the binary; their names differ.
fn projections(config: &mut Config, registry: Registry) -> Result<Vec<Arc<Projection>>, Failed> {
    let wrong = |why: String| Failed::new(CODE_CONFIGURATION, anyhow::anyhow!(why));
    let configured = config.projections.iter();
    let mut all: Vec<Arc<Projection>> = configured
        .map(|configured| Arc::new(configured.projection.clone()))
        .collect();
    for mut projection in registry.into_projections() {
        if all.iter().any(|known| known.name() == projection.name()) {
            return Err(wrong(format!(
                "projection `{}` is both in the configuration file and in the binary; rename one",
                projection.name()
            )));
        }
        if let Some(what) = projection.lacks(config.schema_registry.is_some()) {
            return Err(wrong(format!("{what}; say where it is")));
        }
        projection.limits = config.values;
        all.push(Arc::new(projection));
    }
    Ok(all)
}
