//! `tidegate relay`.

use super::log::{LogArguments, log};
use super::run::{answer_questions, code, stop_on_signals};
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
    let board = Board::new(config.http.is_some());
    answer_questions(&config, &board, None).await?;
    runtime::run_relay(config, board, stop)
        .await
        .map_err(|error| Failed::new(code(&error), error))
}
