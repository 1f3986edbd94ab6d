//! `tidegate run`.

use std::io::IsTerminal as _;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use tracing_subscriber::EnvFilter;

use super::{
    CODE_GROUP, CODE_INSTANCE_ID, CODE_NEEDS_A_PERSON, CODE_TRY_AGAIN, ConfigArgument, Done,
    Failed, projections,
};
use crate::config::Config;
use crate::health::{Board, Verdict};
use crate::http;
use crate::kafka::MemberError;
use crate::projection::Registry;
use crate::runtime::{self, RunError};

/// librdkafka speaks for itself; what rdkafka logs of the same events is left out.
const DEFAULT_LOG: &str = "info,rdkafka=off";
/// The same for a command that shows by itself what it does.
pub(super) const QUIET_LOG: &str = "warn,rdkafka=off";

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: ConfigArgument,
    #[command(flatten)]
    log: LogArguments,
    /// Run only these projections (repeatable)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

/// What is logged, and how.
#[derive(Debug, clap::Args)]
pub(super) struct LogArguments {
    /// Log lines as JSON objects
    #[arg(long, env = "TIDEGATE_LOG_JSON")]
    log_json: bool,
    /// What to log: a level, or targets with levels, such as `info,tidegate=debug`
    #[arg(
        long,
        env = "TIDEGATE_LOG",
        default_value = DEFAULT_LOG,
        value_name = "FILTER"
    )]
    log: String,
}

pub(super) async fn execute(arguments: Arguments, registry: Registry) -> Done {
    let mut config = arguments.config.load()?;
    let mut projections = projections(&mut config, registry)?;
    for name in &arguments.only {
        if !projections
            .iter()
            .any(|projection| projection.name() == name)
        {
            return Err(Failed::new(
                64,
                anyhow::anyhow!("--only: there is no projection `{name}`"),
            ));
        }
    }
    projections
        .retain(|p| arguments.only.is_empty() || arguments.only.iter().any(|n| n == p.name()));
    log(&arguments.log)?;
    let stop = stop_on_signals().map_err(|error| Failed::new(CODE_TRY_AGAIN, error))?;
    let board = Board::new();
    answer_questions(&config, &board).await?;
    runtime::run(config, projections, board, stop)
        .await
        .map_err(|error| Failed::new(code(&error), error))
}

/// Serves HTTP from now on, if that is wanted.
pub(super) async fn answer_questions(config: &Config, board: &Board) -> Done {
    let Some(address) = config.http else {
        return Ok(());
    };
    let server = http::Server::bind(address).await.map_err(|error| {
        let error = anyhow::anyhow!("`http.listen`: {address} cannot be listened at: {error}");
        Failed::new(CODE_TRY_AGAIN, error)
    })?;
    server.serve(board.clone(), Verdict::new(config.timeouts.transaction()));
    Ok(())
}

/// What tells a supervisor whether to start the process again.
pub(super) fn code(error: &RunError) -> u8 {
    match error {
        RunError::Member(
            _,
            MemberError::InstanceIdTaken { .. } | MemberError::InstanceIdInUse { .. },
        ) => CODE_INSTANCE_ID,
        RunError::Member(
            _,
            MemberError::OtherProtocol { .. }
            | MemberError::OtherDatabase { .. }
            | MemberError::UnknownProtocol,
        ) => CODE_GROUP,
        error if error.is_temporary() => CODE_TRY_AGAIN,
        _ => CODE_NEEDS_A_PERSON,
    }
}

pub(super) fn log(arguments: &LogArguments) -> Done {
    let filter = EnvFilter::try_new(&arguments.log)
        .map_err(|error| Failed::new(64, anyhow::Error::new(error).context("--log")))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if arguments.log_json {
        log.json().flatten_event(true).init();
    } else {
        log.init();
    }
    Ok(())
}

/// The first SIGTERM or SIGINT stops in order; the second ends the process. Either is safe.
pub(super) fn stop_on_signals() -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let told = stop.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if told.is_cancelled() {
                warn!("second signal: ending at once; open batches are rolled back");
                std::process::exit(i32::from(CODE_TRY_AGAIN));
            }
            told.cancel();
        }
    });
    Ok(stop)
}
