//! `tidegate run`.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use std::sync::Arc;

use super::admin::Remote;
use super::log::{LogArguments, log};
use super::{
    CODE_GROUP, CODE_INSTANCE_ID, CODE_NEEDS_A_PERSON, CODE_TRY_AGAIN, ConfigArgument, Done,
    Failed, projections,
};
use crate::config::Config;
use crate::health::{Board, Verdict};
use crate::http::{self, Admin};
use crate::kafka::MemberError;
use crate::projection::Registry;
use crate::runtime::{self, RunError};

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
    let board = Board::new(config.http.is_some());
    let admin = match &config.http {
        Some(http) if http.admin => Some(Admin {
            token: http.admin_token.clone(),
            operations: Arc::new(Remote::new(&config, &projections)?),
        }),
        _ => None,
    };
    answer_questions(&config, &board, admin).await?;
    runtime::run(config, projections, board, stop)
        .await
        .map_err(|error| Failed::new(code(&error), error))
}

/// Serves HTTP from now on, if that is wanted.
pub(super) async fn answer_questions(config: &Config, board: &Board, admin: Option<Admin>) -> Done {
    let Some(address) = config.http.as_ref().map(|http| http.listen) else {
        return Ok(());
    };
    let server = http::Server::bind(address).await.map_err(|error| {
        let error = anyhow::anyhow!("`http.listen`: {address} cannot be listened at: {error}");
        Failed::new(CODE_TRY_AGAIN, error)
    })?;
    let verdict = Verdict::new(config.timeouts.transaction());
    server.serve(board.clone(), verdict, admin);
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
