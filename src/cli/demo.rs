//! `tidegate demo`.

use super::Done;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {}

pub(super) async fn execute(_arguments: Arguments) -> Done {
    Ok(())
}
