//! `tidegate accept-topic`.

use super::output::{number, table};
use super::{ConfigArgument, Done, Failed, confirmed, connect, database, reposition_failed, who};
use crate::kafka::Cluster;
use crate::runtime::{self, Operator};
use crate::store;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The projection
    projection: String,
    /// The topic
    topic: String,
    /// The log is the same, at the same offsets, such as in another cluster: go on where the positions stand
    #[arg(long)]
    same_log: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

pub(super) async fn execute(arguments: Arguments) -> Done {
    let config = arguments.config.load()?;
    let (projection, topic) = (&arguments.projection, &arguments.topic);
    let database = database(&config)?;
    if arguments.same_log {
        println!(
            "This takes {topic} for the log that projection {projection} in {} has read so far, at the same offsets.",
            database.place()
        );
        println!("If it is another log, what stands before the positions is never applied.");
    } else {
        println!(
            "This takes {topic} for a new log: projection {projection} in {} reads it from its beginning and keeps its tables.",
            database.place()
        );
        println!(
            "Events that were applied before are applied again unless the gate or the inbox drops them; their messages are new ones."
        );
    }
    if !arguments.yes && !confirmed()? {
        println!("nothing was changed");
        return Ok(());
    }
    let cluster = Cluster::new(&config.kafka)?;
    let mut connection = connect(&database).await?;
    let who = who("accept-topic");
    let operator = Operator::at_a_terminal(&who, &database.timeouts);
    let accept = runtime::accept_topic(
        &mut connection,
        &cluster,
        projection,
        topic,
        arguments.same_log,
        operator,
    );
    let done = store::within(
        "accepting the topic",
        database.timeouts.transaction(),
        accept,
    )
    .await
    .map_err(reposition_failed)?;
    let mut table = table(
        &["partition", "was at", "goes on at"],
        &["was at", "goes on at"],
    );
    for (partition, from, to) in &done.moved {
        table.add_row([partition.to_string(), number(*from), number(*to)]);
    }
    println!("{table}");
    println!(
        "accepted (operation {}); running workers go on by themselves",
        done.operation
    );
    Ok::<(), Failed>(())
}
