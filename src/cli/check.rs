//! `tidegate check`.

use sqlx::postgres::PgDatabaseError;

use super::{CODE_CONFIGURATION, ConfigArgument, Done, Failed, environment, reach};
use crate::config::{self, Configured, Draft, File, Place, Problems};
use crate::projection::Registry;
use crate::sql_projection::{self, Unchecked};
use crate::store::Database;
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
    let file = arguments.config.config.display().to_string();
    let mut draft = config::draft(&arguments.config.config, environment());
    let names = names(&mut draft, &file, registry);
    let asked = match arguments.offline {
        true => Ok(()),
        false => ask_database(&mut draft, &file).await,
    };
    if draft.problems.is_empty() {
        asked?;
        let what = match arguments.offline {
            true => "configuration is well-formed (statements were not checked: --offline)",
            false => "configuration and statements are good",
        };
        println!("{file}: {what}");
        println!(
            "projections: {}",
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            }
        );
        return Ok(());
    }
    let mut text = draft.problems.to_string();
    text.push('\n');
    text += &match draft.problems.len() {
        1 => "1 mistake found".to_owned(),
        count => format!("{count} mistakes found"),
    };
    if let Err(failed) = asked {
        text += &format!("; {:#}", failed.error);
    }
    Err(Failed::new(CODE_CONFIGURATION, anyhow::anyhow!(text)))
}

/// The names of all projections, of the file and of the binary; no two are the same.
fn names(draft: &mut Draft, file: &str, registry: Registry) -> Vec<String> {
    let name = |configured: &Configured| configured.projection.name().to_owned();
    let mut names: Vec<String> = draft.projections.iter().map(name).collect();
    let has_registry = draft.schema_registry.is_some();
    for projection in registry.into_projections() {
        if let Some(what) = projection.lacks(has_registry) {
            let place = Place::Name(file.to_owned());
            draft.problems.add(place, what, "say where it is");
        }
        let same = |configured: &&Configured| configured.projection.name() == projection.name();
        match draft.projections.iter().find(same) {
            None => names.push(projection.name().to_owned()),
            Some(configured) => draft.problems.add(
                configured.place.clone(),
                format!("projection `{}` is in the binary too", projection.name()),
                "rename one of them",
            ),
        }
    }
    names
}

/// Adds what the database finds. Statements are checked although the file has other mistakes.
async fn ask_database(draft: &mut Draft, file: &str) -> Done {
    // Without a URL there is nobody to ask, which is among the problems.
    let Some((url, timeouts, pooled)) = &draft.postgres else {
        return Ok(());
    };
    let unchecked = |failed: Failed| Failed {
        error: failed.error.context("statements were not checked"),
        ..failed
    };
    let database = Database::new(url, *timeouts)?.pooled(*pooled);
    let mut connection = reach(&database).await.map_err(unchecked)?;
    let file = File::new(file, &draft.text);
    for configured in &draft.projections {
        let checked = sql_projection::check(
            &mut connection,
            &configured.projection,
            &configured.sql,
            timeouts,
        );
        match checked.await {
            Ok(found) => {
                for problem in found {
                    add(configured, problem, &file, &mut draft.problems);
                }
            }
            Err(Unchecked {
                problem: Problem::Store(error),
                ..
            }) => return Err(unchecked(error.into())),
            Err(found) => add_setup(configured, &found, &mut draft.problems),
        }
    }
    Ok(())
}

fn add(
    configured: &Configured,
    problem: sql_projection::StatementProblem,
    file: &File<'_>,
    problems: &mut Problems,
) {
    let (places, statement) = match problem.emit {
        true => {
            let emit = &configured.sql.emits[problem.index];
            (&configured.emits, &emit.statement)
        }
        false => (&configured.applies, &configured.sql.applies[problem.index]),
    };
    let sql = &places[problem.index];
    let place = match problem.position {
        Some(position) => sql.at(position, file),
        None => sql.place.clone(),
    };
    let what = format!(
        "projection `{}`, {}: {}",
        configured.projection.name(),
        statement.label(),
        problem.message
    );
    problems.add(place, what, problem.hint.unwrap_or_default());
}

/// Adds what is wrong with `setup` or `seed`, at its line if that is known.
fn add_setup(configured: &Configured, found: &Unchecked, problems: &mut Problems) {
    let projection = &configured.projection;
    let of_seed = matches!(
        found.problem,
        Problem::UserSql { what: "seed", .. } | Problem::EndsTransaction("seed")
    );
    let (script, text) = match of_seed {
        true => (&configured.seed_file, &projection.seed),
        false => (&configured.setup_file, &projection.setup),
    };
    let place = match (script, found.position) {
        (Some(name), Some(position)) => File::new(name, text).place_of_char(position),
        (Some(name), None) => Place::Name(name.clone()),
        (None, _) => configured.place.clone(),
    };
    let mut hint = None;
    let what = match &found.problem {
        Problem::UserSql { what, error } => match database_error(error) {
            Some(error) => {
                hint = error.hint();
                format!("{what}: {} (SQLSTATE {})", error.message(), error.code())
            }
            None => found.problem.to_string(),
        },
        problem => problem.to_string(),
    };
    problems.add(
        place,
        format!("projection `{}`, {what}", projection.name()),
        hint.unwrap_or("the projection's statements are checked once this passes"),
    );
}

fn database_error(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}
