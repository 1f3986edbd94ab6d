//! `tidegate pause` and `tidegate resume`.

use super::{ConfigArgument, Done, connect, database, reposition_failed, who};
use crate::runtime::{self, Operator};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The projection
    projection: String,
    #[command(flatten)]
    config: ConfigArgument,
}

pub(super) async fn execute(arguments: Arguments, running: bool) -> Done {
    let config = arguments.config.load()?;
    let database = database(&config)?;
    let mut connection = connect(&database).await?;
    let who = who(if running { "resume" } else { "pause" });
    let operator = Operator::at_a_terminal(&who, &database.timeouts);
    let name = &arguments.projection;
    let done = runtime::set_running(&mut connection, name, running, operator).await;
    let operation = done.map_err(reposition_failed)?;
    match running {
        true => println!("{name} runs; what was halted is tried again (operation {operation})"),
        false => println!(
            "{name} is paused in all processes; `tidegate resume {name}` lets it go on (operation {operation})"
        ),
    }
    Ok(())
}
