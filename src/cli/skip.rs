//! `tidegate skip`.

use super::output::number;
use super::{ConfigArgument, Done, Failed, confirmed, connect, database, reposition_failed, who};
use crate::kafka::Cluster;
use crate::runtime::{self, Of, Operator};
use crate::store;
use crate::types::TopicPartition;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The projection
    projection: String,
    /// The partition, as `topic/3`
    #[arg(value_parser = partition)]
    partition: TopicPartition,
    /// The first offset that is not skipped, or `start` for the oldest record the log still has
    #[arg(long, value_parser = to)]
    to: To,
    /// Skip it in the generation that is being built, not in the live one
    #[arg(long)]
    build: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Clone, Copy, Debug)]
enum To {
    Start,
    Offset(i64),
}

fn to(text: &str) -> Result<To, String> {
    match text.parse() {
        _ if text == "start" => Ok(To::Start),
        Ok(offset) if offset >= 0 => Ok(To::Offset(offset)),
        _ => Err("neither an offset nor `start`".to_owned()),
    }
}

/// `topic/3`, or `topic[3]` as in messages.
pub(super) fn partition(text: &str) -> Result<TopicPartition, String> {
    let inner = text
        .strip_suffix(']')
        .and_then(|text| text.rsplit_once('['));
    inner
        .or_else(|| text.rsplit_once('/'))
        .filter(|(topic, _)| !topic.is_empty())
        .and_then(|(topic, number)| {
            Some(TopicPartition::new(
                topic,
                number.parse().ok().filter(|n| *n >= 0)?,
            ))
        })
        .ok_or_else(|| "not a partition; write `topic/3`".to_owned())
}

pub(super) async fn execute(arguments: Arguments) -> Done {
    let config = arguments.config.load()?;
    let (projection, partition) = (&arguments.projection, &arguments.partition);
    let database = database(&config)?;
    let cluster = Cluster::new(&config.kafka)?;
    let to = match arguments.to {
        To::Offset(to) => to,
        To::Start => cluster.watermarks(partition).await?.low,
    };
    let of = if arguments.build { Of::Build } else { Of::Live };
    println!(
        "This leaves out the records of {partition} before offset {} in {}projection {projection}, in {}.",
        number(to),
        match of {
            Of::Live => "",
            Of::Build => "the build of ",
        },
        database.place()
    );
    println!(
        "Their effects and messages will be missing; under gate `next` their entities then wait at the gap."
    );
    if !arguments.yes && !confirmed()? {
        println!("nothing was changed");
        return Ok(());
    }
    let mut connection = connect(&database).await?;
    let who = who("skip");
    let operator = Operator::at_a_terminal(&who, &database.timeouts);
    let skip = runtime::skip(
        &mut connection,
        &cluster,
        projection,
        (of, partition, to),
        operator,
    );
    let done = store::within("the skip", database.timeouts.transaction(), skip)
        .await
        .map_err(reposition_failed)?;
    for (partition, from, to) in &done.moved {
        println!(
            "skipped: {partition} from {} to {} (operation {}); `tidegate verify` lists it",
            number(*from),
            number(*to),
            done.operation
        );
    }
    Ok::<(), Failed>(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_written_in_two_ways() {
        let expected = Ok(TopicPartition::new("a.b", 3));
        assert_eq!(partition("a.b/3"), expected);
        assert_eq!(partition("a.b[3]"), expected);
        for wrong in ["", "a", "a/", "/3", "a/x", "a/-1", "a[3", "[3]"] {
            assert!(partition(wrong).is_err(), "{wrong}");
        }
    }
}
