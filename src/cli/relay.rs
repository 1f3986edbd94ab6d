//! `tidegate relay`.

use super::run::{LogArguments, answer_questions, code, log, stop_on_signals};
use super::{CODE_TRY_AGAIN, ConfigArgument, Done, Failed};
use crate::health::Board;
use crate::runtime;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: ConfigArgument,
    #[command(flatten)]
    log: LogArguments,
}

pub(super) async fn execute(arguments: Arguments) -> Done {
    let config = arguments.config.load()?;
    log(&arguments.log)?;
    let stop = stop_on_signals().map_err(|error| Failed::new(CODE_TRY_AGAIN, error))?;
    let board = Board::new();
    answer_questions(&config, &board).await?;
    runtime::run_relay(config, board, stop)
        .await
        .map_err(|error| Failed::new(code(&error), error))
}
