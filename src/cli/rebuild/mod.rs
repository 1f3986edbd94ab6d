//! `tidegate rebuild`: a read model built beside the live one, which it replaces.

mod entity;
mod progress;
pub(super) mod show;

use std::sync::Arc;

use clap::Subcommand;

use super::log::{QUIET_LOG, log_text};
use super::output::{counted, number};
use super::run::stop_on_signals;
use super::{
    CODE_NEEDS_A_PERSON, CODE_TRY_AGAIN, ConfigArgument, Done, Failed, can_ask, confirmed,
    database_itself, projections, spelled, who,
};
use crate::projection::Registry;
use crate::runtime::{Aside, Builder, RebuildError, Rebuilder, Standing};
use crate::store::generation::{Beside, Detached};
use crate::types::TopicPartition;

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Run it with the configuration, or the binary, that the read model is to have afterwards: `version`
raised, another setup, other statements. The service goes on with what it has; processes that have
the new definition wait for the cut-over. A command that was interrupted goes on where it was when
it is repeated. docs/rebuild.md tells the whole story.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Says whether a rebuild can work and how much is to be read; changes nothing
    Plan(Named),
    /// Makes new tables beside the live ones and fills them from the log; goes on with what was begun
    Start(Start),
    /// Shows how far a rebuild is, and which former generations are kept
    Status(Status),
    /// Compares what was built with the live tables, both at the same positions
    Verify(Named),
    /// Compares, and has the new tables take the place of the live ones
    CutOver(CutOver),
    /// Brings a former generation up to date and has it take the place of the live one
    Rollback(Rollback),
    /// Makes the rows of one entity anew, and replaces them in the live tables
    Entity(entity::Arguments),
    /// Gives up what is being built; drops its tables
    Abandon(Abandon),
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The projection
    projection: String,
    #[command(flatten)]
    config: ConfigArgument,
    /// What to log to the standard error: a level, or targets with levels
    #[arg(
        long,
        env = "TIDEGATE_LOG",
        default_value = QUIET_LOG,
        value_name = "FILTER"
    )]
    log: String,
}

#[derive(Debug, clap::Args)]
struct Start {
    #[command(flatten)]
    named: Named,
    /// Begin although the log does not have the whole history any more; goes on record
    #[arg(long)]
    accept_truncated: bool,
    /// Go on with the cut-over once it has caught up
    #[arg(long)]
    cut_over: bool,
    /// Leave it to the service: a process of `tidegate run` with this configuration builds, and with --cut-over cuts over
    /// by itself if nothing differs
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    yes: Yes,
}

#[derive(Debug, clap::Args)]
struct CutOver {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    yes: Yes,
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct Yes {
    /// Do not ask before the cut-over
    #[arg(long, short)]
    yes: bool,
    /// Cut over although the tables differ: that is what the change was made for
    #[arg(long)]
    accept_differences: bool,
}

#[derive(Debug, clap::Args)]
struct Rollback {
    #[command(flatten)]
    named: Named,
    /// The generation to go back to; `rebuild status` has those that are kept
    #[arg(long, value_name = "GENERATION")]
    to: Option<i32>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct Abandon {
    #[command(flatten)]
    named: Named,
    /// Drop the former generations that are kept for a rollback, instead of what is being built
    #[arg(long)]
    former: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct Status {
    #[command(flatten)]
    named: Named,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) async fn execute(arguments: Arguments, registry: Registry) -> Done {
    match arguments.command {
        Command::Plan(named) => {
            let rebuilder = rebuilder(&named, registry).await?;
            let mut connection = rebuilder.connect().await.map_err(failed)?;
            let plan = rebuilder.plan(&mut connection).await.map_err(failed)?;
            show::plan(&named.projection, &plan);
            match plan.obstacles.is_empty() {
                true => Ok(()),
                false => Err(failed(RebuildError::Obstacles(plan.obstacles))),
            }
        }
        Command::Start(start) => begin(start, registry).await,
        Command::Status(status) => {
            let rebuilder = rebuilder(&status.named, registry).await?;
            let mut connection = rebuilder.connect().await.map_err(failed)?;
            let standing = rebuilder.standing(&mut connection).await.map_err(failed)?;
            show::status(&status.named.projection, &standing, status.json);
            Ok(())
        }
        Command::Verify(named) => {
            let rebuilder = rebuilder(&named, registry).await?;
            let mut builder = go_on(&rebuilder).await?;
            let done = compare(&rebuilder, &mut builder).await;
            builder.stop().await;
            match done? {
                true => Ok(()),
                false => Err(differ(&named.projection)),
            }
        }
        Command::CutOver(CutOver { named, yes }) => {
            if !yes.yes {
                can_ask()?;
            }
            let rebuilder = rebuilder(&named, registry).await?;
            let mut builder = go_on(&rebuilder).await?;
            let done = compare_and_cut_over(&rebuilder, &mut builder, &named.projection, yes).await;
            builder.stop().await;
            done
        }
        Command::Rollback(rollback) => roll_back(rollback, registry).await,
        Command::Entity(arguments) => entity::execute(arguments, registry).await,
        Command::Abandon(arguments) => abandon(arguments, registry).await,
    }
}

async fn begin(start: Start, registry: Registry) -> Done {
    let Start {
        named,
        accept_truncated,
        cut_over,
        detach,
        yes,
    } = start;
    if detach && yes.accept_differences && !cut_over {
        let error = anyhow::anyhow!(
            "--accept-differences is about a cut-over, and none was asked for: say --cut-over, or leave it out"
        );
        return Err(Failed::new(64, error));
    }
    if cut_over && !yes.yes {
        can_ask()?;
    }
    let name = &named.projection;
    let detached = detach.then_some(match (cut_over, yes.accept_differences) {
        (false, _) => Detached::Build,
        (true, false) => Detached::CutOverIfSame,
        (true, true) => Detached::CutOver,
    });
    let rebuilder = rebuilder(&named, registry).await?;
    let mut connection = rebuilder.connect().await.map_err(failed)?;
    let plan = rebuilder.plan(&mut connection).await.map_err(failed)?;
    show::plan(name, &plan);
    if detach && cut_over && !yes.yes {
        println!(
            "The service replaces the tables of schema `{name}` by those that it builds, {}.",
            match yes.accept_differences {
                true => "whatever differs",
                false => "if nothing differs",
            }
        );
        if !confirmed()? {
            println!("nothing was changed");
            return Ok(());
        }
    }
    let begun = rebuilder.begin(&mut connection, &plan, accept_truncated, detached);
    let (number, made) = begun.await.map_err(failed)?;
    match made {
        true => println!("generation {number} is begun; the live one goes on"),
        false => println!("generation {number} was begun before; going on with it"),
    }
    if detach {
        show::left_to_the_service(name);
        return Ok(());
    }
    drop(connection);
    let mut builder = follow(build(&rebuilder).await?, Some(&rebuilder)).await?;
    let done = match cut_over {
        true => compare_and_cut_over(&rebuilder, &mut builder, name, yes).await,
        false => {
            println!("Next: `tidegate rebuild verify {name}`, `tidegate rebuild cut-over {name}`.");
            Ok(())
        }
    };
    builder.stop().await;
    done
}

/// Builds until it has caught up with the live generation.
async fn go_on(rebuilder: &Rebuilder) -> Result<Builder, Failed> {
    follow(build(rebuilder).await?, None).await
}

/// Begins to work on what is being built.
async fn build(rebuilder: &Rebuilder) -> Result<Builder, Failed> {
    let mut connection = rebuilder.connect().await.map_err(failed)?;
    let building = rebuilder.building(&mut connection).await.map_err(failed)?;
    if building.detached().is_some() {
        println!("the service has been told to build it, and lets go of it");
    }
    rebuilder.build(building).await.map_err(failed)
}

async fn catch_up(rebuilder: &Rebuilder, generation: Beside) -> Result<Builder, Failed> {
    let builder = rebuilder.build(generation).await.map_err(failed)?;
    follow(builder, None).await
}

/// Until it has caught up; with a rebuilder takes it back from the service before.
async fn follow(mut builder: Builder, taken_by: Option<&Rebuilder>) -> Result<Builder, Failed> {
    let followed = async {
        if let Some(rebuilder) = taken_by {
            rebuilder.take_back(&mut builder).await?;
        }
        progress::follow(&mut builder).await
    };
    match followed.await {
        Ok(()) => Ok(builder),
        Err(error) => {
            builder.stop().await;
            Err(failed(error))
        }
    }
}

/// Whether nothing differs.
async fn compare(rebuilder: &Rebuilder, builder: &mut Builder) -> Result<bool, Failed> {
    let verified = rebuilder.verify(builder).await.map_err(failed)?;
    show::verified(&verified);
    Ok(verified.holds())
}

fn differ(projection: &str) -> Failed {
    let error = anyhow::anyhow!(
        "the tables differ. If that is what the change was made for, `tidegate rebuild cut-over {projection} --accept-differences`. Records that are parked in one of them only differ too: `tidegate dead-letters list {projection}`"
    );
    Failed::new(CODE_NEEDS_A_PERSON, error)
}

async fn compare_and_cut_over(
    rebuilder: &Rebuilder,
    builder: &mut Builder,
    name: &str,
    yes: Yes,
) -> Done {
    let same = compare(rebuilder, builder).await?;
    if !same && !yes.accept_differences {
        return Err(differ(name));
    }
    println!("The tables of schema `{name}` are replaced by those that were built.");
    cut_over(rebuilder, builder, name, yes.yes).await
}

async fn cut_over(rebuilder: &Rebuilder, builder: &mut Builder, name: &str, yes: bool) -> Done {
    if !yes && !progress::meanwhile(builder, confirmed).await? {
        println!("nothing was changed");
        return Ok(());
    }
    let done = rebuilder.cut_over(builder, None).await.map_err(failed)?;
    println!(
        "cut over: generation {} is live (operation {}); nothing was applied for {} ms",
        done.new,
        done.operation,
        done.pause.as_millis()
    );
    if done.messages > 0 {
        let messages = counted(done.messages, "message");
        println!("{messages} of records that had been parked are in the outbox now");
    }
    println!(
        "Generation {old} is kept in schema `{}`: `tidegate rebuild rollback {name} --to {old}` goes back to it, `tidegate rebuild abandon {name} --former` drops it.",
        done.old_schema,
        old = done.old
    );
    Ok(())
}

async fn roll_back(rollback: Rollback, registry: Registry) -> Done {
    let name = &rollback.named.projection;
    let rebuilder = rebuilder(&rollback.named, registry).await?;
    let mut connection = rebuilder.connect().await.map_err(failed)?;
    let Some(to) = rollback.to else {
        let standing = rebuilder.standing(&mut connection).await.map_err(failed)?;
        return Err(which(name, &standing));
    };
    if !rollback.yes {
        can_ask()?;
    }
    let former = rebuilder.go_back(&mut connection, to);
    let Some(former) = former.await.map_err(failed)? else {
        println!("generation {to} of `{name}` is live already; nothing was changed");
        return Ok(());
    };
    drop(connection);
    println!("going back to generation {to} ({})", former.definition);
    let mut builder = catch_up(&rebuilder, former).await?;
    println!(
        "The tables of schema `{name}` are replaced by the former ones, which have caught up."
    );
    let done = cut_over(&rebuilder, &mut builder, name, rollback.yes).await;
    builder.stop().await;
    done
}

/// What a rollback without a number is told. It is not guessed: the former generation of a rollback is what it led
/// away from, so repeating it, for an answer that was lost, would lead back.
fn which(name: &str, standing: &Standing) -> Failed {
    let former = standing.beside.iter().filter(|of| of.live_at.is_some());
    let way = |of: &Beside| {
        let number = of.number;
        format!(
            "\n  tidegate rebuild rollback {name} --to {number}    ({})",
            of.definition
        )
    };
    let ways: String = former.map(way).collect();
    Failed::new(
        64,
        match ways.is_empty() {
            true => anyhow::Error::new(RebuildError::NothingKept(name.to_owned())),
            false => anyhow::anyhow!(
                "generation {} is live; say which one to go back to:{ways}",
                standing.live
            ),
        },
    )
}

async fn abandon(arguments: Abandon, registry: Registry) -> Done {
    let rebuilder = rebuilder(&arguments.named, registry).await?;
    let name = &arguments.named.projection;
    match arguments.former {
        true => println!("This drops the former tables of `{name}`: there is no way back then."),
        false => println!("This gives up what is being built of `{name}`."),
    }
    if !arguments.yes && !confirmed()? {
        println!("nothing was changed");
        return Ok(());
    }
    let mut connection = rebuilder.connect().await.map_err(failed)?;
    let done = rebuilder.abandon(&mut connection, arguments.former);
    for aside in done.await.map_err(failed)? {
        match aside {
            Aside::Dropped(of) => println!(
                "generation {} is given up, schema `{}` is dropped",
                number(i64::from(of.number)),
                of.schema_name
            ),
            Aside::Kept(of) => println!(
                "generation {} was live before and stays in schema `{}`; `--former` drops it",
                number(i64::from(of.number)),
                of.schema_name
            ),
        }
    }
    Ok(())
}

async fn rebuilder(named: &Named, registry: Registry) -> Result<Rebuilder, Failed> {
    rebuilder_of(named, None, registry).await
}

/// With `only`, of that entity alone, and of these partitions if there are any.
async fn rebuilder_of(
    named: &Named,
    only: Option<(&str, Vec<TopicPartition>)>,
    registry: Registry,
) -> Result<Rebuilder, Failed> {
    let mut config = named.config.load()?;
    let all = projections(&mut config, registry)?;
    let name = &named.projection;
    let Some(projection) = all.iter().find(|projection| projection.name() == name) else {
        let known: Vec<&str> = all.iter().map(|p| p.name()).collect();
        let known = known.join(", ");
        let error = anyhow::anyhow!("there is no projection `{name}`; known are: {known}");
        return Err(Failed::new(64, error));
    };
    log_text(&named.log)?;
    let stop = stop_on_signals().map_err(|error| Failed::new(CODE_TRY_AGAIN, error))?;
    database_itself(&config).await?;
    let mut projection = Arc::clone(projection);
    if let Some((entity, mut partitions)) = only {
        partitions.sort();
        partitions.dedup();
        let projection = Arc::make_mut(&mut projection);
        projection.only = Some(spelled(projection, entity)?);
        projection.only_in = partitions;
    }
    let rebuilder = Rebuilder::new(config, projection, who("rebuild"), stop);
    rebuilder.await.map_err(|error| failed(error.into()))
}

fn failed(error: RebuildError) -> Failed {
    let code = match error.is_temporary() {
        true => CODE_TRY_AGAIN,
        false => CODE_NEEDS_A_PERSON,
    };
    Failed::new(code, error)
}
