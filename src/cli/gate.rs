//! `tidegate gate`.

use clap::Subcommand;

use super::dead_letters::{find, letter_failed};
use super::{ConfigArgument, Done, confirmed, connect, database, projections, who};
use crate::projection::Registry;
use crate::runtime::{self, Operator};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Gate `next`: lets an entity go on without the events it waits for
    AcceptGap(AcceptGap),
}

#[derive(Debug, clap::Args)]
struct AcceptGap {
    /// The projection
    projection: String,
    /// The entity
    entity: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

pub(super) async fn execute(arguments: Arguments, registry: Registry) -> Done {
    let Command::AcceptGap(arguments) = arguments.command;
    let mut config = arguments.config.load()?;
    let all = projections(&mut config, registry)?;
    let database = database(&config)?;
    let (projection, entity) = (&arguments.projection, &arguments.entity);
    println!(
        "This lets entity `{entity}` of {projection} go on with the first event that waits. Should the missing ones come after all, they are stale."
    );
    if !arguments.yes && !confirmed()? {
        println!("nothing was changed");
        return Ok(());
    }
    let mut connection = connect(&database).await?;
    let who = who("gate accept-gap");
    let operator = Operator::at_a_terminal(&who, &database.timeouts);
    let done =
        runtime::accept_gap(&mut connection, find(&all, projection)?, entity, operator).await;
    let (operation, before, first) = done.map_err(letter_failed)?;
    println!(
        "accepted: after {before} comes {first} (operation {operation}); a running service goes on by itself"
    );
    Ok(())
}
