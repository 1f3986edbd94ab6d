//! `tidegate rebuild entity`.

use super::super::skip::partition;
use super::{Named, Registry, catch_up, failed, progress, rebuilder_of, show};
use crate::cli::output::{counted, number};
use crate::cli::{Done, confirmed};
use crate::types::TopicPartition;

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Arguments {
    #[command(flatten)]
    named: Named,
    /// The entity, as `tidegate explain` shows it
    entity: String,
    /// Read it from this partition alone, as `topic/3`; may be repeated. All are read otherwise. Under gate `next` alone,
    /// whose `first` is a number
    #[arg(long = "partition", value_parser = partition, value_name = "PARTITION")]
    partitions: Vec<TopicPartition>,
    /// Begin although the log does not have the whole history any more; goes on record
    #[arg(long)]
    accept_truncated: bool,
    /// Replace its rows also where fewer were built than there are; goes on record
    #[arg(long)]
    accept_fewer: bool,
    /// Do not ask before the rows are replaced
    #[arg(long, short)]
    yes: bool,
}

const AFTER_HELP: &str = "\
Run it with the configuration, or the binary, of the service, which goes on meanwhile. The projection
says with `entity_rows` which rows are the entity's. Gate `next` tells whether all of the entity's events
were met: naming a partition that has only some of them changes nothing.";

pub(super) async fn execute(arguments: Arguments, registry: Registry) -> Done {
    let Arguments {
        named,
        entity,
        partitions,
        accept_truncated,
        accept_fewer,
        yes,
    } = arguments;
    let name = &named.projection;
    let rebuilder = rebuilder_of(&named, Some((&entity, partitions)), registry).await?;
    let mut connection = rebuilder.connect().await.map_err(failed)?;
    let plan = rebuilder.plan(&mut connection);
    let plan = plan.await.map_err(failed)?;
    show::partitions(&plan);
    let begun = rebuilder.begin(&mut connection, &plan, accept_truncated, None);
    let (generation, made) = begun.await.map_err(failed)?;
    match made {
        true => println!("generation {generation} is begun, of entity `{entity}` alone"),
        false => println!("generation {generation} was begun before; going on with it"),
    }
    let building = rebuilder.building(&mut connection).await.map_err(failed)?;
    drop(connection);
    let mut builder = catch_up(&rebuilder, building).await?;
    println!(
        "The rows of entity `{entity}` in schema `{name}` are replaced by those that were built."
    );
    let confirmed = yes || progress::meanwhile(&mut builder, confirmed).await?;
    let done = match confirmed {
        true => Some(rebuilder.replace_entity(&mut builder, accept_fewer).await),
        false => None,
    };
    builder.stop().await;
    let Some(done) = done else {
        println!(
            "nothing was changed; what was built waits: the same command goes on, `tidegate rebuild abandon {name}` drops it"
        );
        return Ok(());
    };
    let done = done.map_err(failed)?;
    for (table, before, after) in &done.tables {
        let before = usize::try_from(*before).unwrap_or(usize::MAX);
        let after = i64::try_from(*after).unwrap_or(i64::MAX);
        println!(
            "{table}: {} before, {} now",
            counted(before, "row"),
            number(after)
        );
    }
    println!(
        "replaced (operation {}); nothing was applied for {} ms",
        done.operation,
        done.pause.as_millis()
    );
    if done.letters > 0 {
        println!(
            "{} of it are applied now, {} of theirs in the outbox",
            counted(done.letters, "parked record"),
            counted(done.messages, "message")
        );
    }
    Ok(())
}
