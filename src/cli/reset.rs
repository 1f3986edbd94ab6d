//! `tidegate reset`.

use super::output::{number, table};
use super::{
    CODE_NEEDS_A_PERSON, CODE_TRY_AGAIN, ConfigArgument, Done, Failed, confirmed, connect,
    database, projections, who,
};
use crate::engine::Class;
use crate::kafka::Cluster;
use crate::projection::Registry;
use crate::runtime::{self, ResetError};
use crate::store;
use crate::store::schema::Problem;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The projection to reset
    projection: String,
    /// Where to begin again
    #[arg(long, value_enum)]
    to: To,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum To {
    /// The oldest records the log still has
    Earliest,
}

pub(super) async fn execute(arguments: Arguments, registry: Registry) -> Done {
    let mut config = arguments.config.load()?;
    let all = projections(&mut config, registry)?;
    let name = &arguments.projection;
    let Some(projection) = all.iter().find(|projection| projection.name() == name) else {
        let known: Vec<&str> = all.iter().map(|p| p.name()).collect();
        let known = known.join(", ");
        let error = anyhow::anyhow!("there is no projection `{name}`; known are: {known}");
        return Err(Failed::new(64, error));
    };
    let To::Earliest = arguments.to;
    let database = database(&config)?;
    let mut connection = connect(&database).await?;
    println!(
        "This empties all tables of schema `{name}` in {} and fills them again from the oldest records of {}.",
        database.place(),
        projection.topics.join(", ")
    );
    println!(
        "Readers see empty tables, then growing ones. Messages sent before are not sent again."
    );
    if !arguments.yes && !confirmed()? {
        println!("nothing was changed");
        return Ok(());
    }
    let cluster = Cluster::new(&config.kafka)?;
    let who = who("reset");
    let reset = runtime::reset(
        &mut connection,
        &cluster,
        projection,
        &who,
        &database.timeouts,
    );
    let limit = database.timeouts.transaction();
    let done = store::within("the reset", limit, reset)
        .await
        .map_err(failed)?;
    let mut table = table(
        &["partition", "was at", "begins at"],
        &["was at", "begins at"],
    );
    for (partition, from, to) in &done.moved {
        table.add_row([partition.to_string(), number(*from), number(*to)]);
    }
    println!("{table}");
    for topic in &done.made_anew {
        println!(
            "topic {topic} was made anew since: its records are new ones, and their messages are sent"
        );
    }
    println!(
        "reset: generation {} begins (operation {}); running workers go on by themselves, `tidegate status` shows how far",
        done.generation, done.operation
    );
    Ok(())
}

fn failed(error: ResetError) -> Failed {
    let temporary = match &error {
        ResetError::Kafka(_) => true,
        ResetError::Store(error) | ResetError::Schema(Problem::Store(error)) => {
            error.class() == Class::Transient
        }
        ResetError::Schema(Problem::UserSql { error, .. }) => {
            store::class_of_own_error(error) == Class::Transient
        }
        _ => false,
    };
    let code = if temporary {
        CODE_TRY_AGAIN
    } else {
        CODE_NEEDS_A_PERSON
    };
    Failed::new(code, error)
}
