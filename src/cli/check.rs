//! `tidegate check`.

use super::{CODE_CONFIGURATION, ConfigArgument, Done, Failed, connect, database, projections};
use crate::config::{Config, Configured, Place, Problems};
use crate::projection::Registry;
use crate::sql_projection;
use crate::store::schema::Problem;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: ConfigArgument,
    /// Check without the database: names and types in SQL are then not checked
    #[arg(long)]
    offline: bool,
}

pub(super) async fn execute(arguments: Arguments, registry: Registry) -> Done {
    let path = &arguments.config.config;
    let mut config = arguments.config.load().map_err(counted)?;
    let projections = projections(&mut config, registry)?;
    if !arguments.offline {
        let text = std::fs::read_to_string(path).map_err(|e| Failed::new(CODE_CONFIGURATION, e))?;
        let mut problems = Problems::of(&text);
        check_statements(&config, &path.display().to_string(), &text, &mut problems).await?;
        if !problems.is_empty() {
            let error = anyhow::anyhow!("{problems}");
            return Err(counted(Failed::new(CODE_CONFIGURATION, error)));
        }
    }
    let names: Vec<&str> = projections.iter().map(|p| p.name()).collect();
    let what = match arguments.offline {
        true => "configuration is well-formed (statements were not checked: --offline)",
        false => "configuration and statements are good",
    };
    println!("{}: {what}", path.display());
    println!(
        "projections: {}",
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    );
    Ok(())
}

/// Ends the list of problems with how many there are.
fn counted(failed: Failed) -> Failed {
    let text = format!("{:#}", failed.error);
    let count = text
        .lines()
        .filter(|line| line.starts_with("error: "))
        .count();
    let mistakes = if count == 1 {
        "1 mistake".to_owned()
    } else {
        format!("{count} mistakes")
    };
    Failed {
        error: anyhow::anyhow!("{}\n\n{mistakes} found", text.trim_end()),
        ..failed
    }
}

async fn check_statements(
    config: &Config,
    file: &str,
    text: &str,
    problems: &mut Problems,
) -> Done {
    let database = database(config)?;
    let mut connection = connect(&database).await.map_err(|failed| Failed {
        error: failed
            .error
            .context("statements cannot be checked (--offline leaves them out)"),
        ..failed
    })?;
    for configured in &config.projections {
        let checked = sql_projection::check(
            &mut connection,
            &configured.projection,
            &configured.sql,
            &database.timeouts,
        );
        match checked.await {
            Ok(found) => {
                for problem in found {
                    add(configured, problem, file, text, problems);
                }
            }
            Err(Problem::Store(error)) => return Err(error.into()),
            Err(error) => {
                let what = format!("projection `{}`: {error}", configured.projection.name());
                problems.add(configured.place.clone(), what, "");
            }
        }
    }
    Ok(())
}

fn add(
    configured: &Configured,
    problem: sql_projection::StatementProblem,
    file: &str,
    text: &str,
    problems: &mut Problems,
) {
    let (places, label) = match problem.emit {
        true => (
            &configured.emits,
            format!("emit {}", configured.sql.emits[problem.index].name),
        ),
        false => (&configured.applies, format!("apply {}", problem.index + 1)),
    };
    let statement = &places[problem.index];
    let place: Place = match problem.position {
        Some(position) => statement.in_text(position, file, text),
        None => statement.place.clone(),
    };
    let what = format!(
        "projection `{}`, {label}: {}",
        configured.projection.name(),
        problem.message
    );
    problems.add(place, what, problem.hint.unwrap_or_default());
}
