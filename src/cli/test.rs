//! `tidegate test`: the projections' own tests.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::output::counted;
use super::{
    CODE_CONFIGURATION, CODE_NEEDS_A_PERSON, CODE_TRY_AGAIN, ConfigArgument, Done, Failed,
    database, projections,
};
use crate::projection::Registry;
use crate::testing::{self, Case};

/// What the names of tests' files end with.
const ENDING: &str = ".test.toml";

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Files with tests; all `*.test.toml` beside the configuration file if none is named
    files: Vec<PathBuf>,
    /// Only tests with this in their name
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    #[command(flatten)]
    config: ConfigArgument,
}

pub(super) async fn execute(arguments: Arguments, registry: Registry) -> Done {
    let mut config = arguments.config.load()?;
    let all = projections(&mut config, registry)?;
    let server = database(&config)?;
    let files = match arguments.files.is_empty() {
        true => beside(&arguments.config.config)?,
        false => arguments.files,
    };
    let mut cases: Vec<Case> = Vec::new();
    for file in &files {
        let read = testing::read(file);
        cases.extend(read.map_err(|why| Failed::new(CODE_CONFIGURATION, anyhow::anyhow!(why)))?);
    }
    if let Some(text) = &arguments.only {
        cases.retain(|case| case.name.contains(text));
    }
    if cases.is_empty() {
        let error = anyhow::anyhow!("there is no test; write one, and see docs/testing.md");
        return Err(Failed::new(64, error));
    }
    let mut failed = 0;
    for case in &cases {
        let projection = super::dead_letters::find(&all, &case.projection)?;
        let began = Instant::now();
        let test = case.of(projection);
        let test = test.map_err(|why| Failed::new(CODE_CONFIGURATION, anyhow::anyhow!(why)))?;
        let done = test.run_at(&server).await;
        let seconds = began.elapsed().as_secs_f64();
        match done {
            Ok(()) => println!(
                "ok      {} ({}, {seconds:.1} s)",
                case.name, case.projection
            ),
            // Nothing is known of the others either.
            Err(error @ testing::Failed::Database(_)) => {
                return Err(Failed::new(CODE_TRY_AGAIN, error));
            }
            Err(error) => {
                failed += 1;
                println!("FAILED  {}\n{error}\n", case.name);
            }
        }
    }
    match failed {
        0 => {
            println!("{} passed", counted(cases.len(), "test"));
            Ok(())
        }
        failed => Err(Failed::new(
            CODE_NEEDS_A_PERSON,
            anyhow::anyhow!("{failed} of {} failed", counted(cases.len(), "test")),
        )),
    }
}

/// The files of tests in the configuration file's folder, by name.
fn beside(config: &Path) -> Result<Vec<PathBuf>, Failed> {
    let folder = match config.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let entries = std::fs::read_dir(folder).map_err(|error| {
        let error = anyhow::anyhow!("{} cannot be read: {error}", folder.display());
        Failed::new(CODE_CONFIGURATION, error)
    })?;
    let is_test = |path: &PathBuf| path.to_string_lossy().ends_with(ENDING);
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = paths.filter(is_test).collect();
    files.sort_unstable();
    Ok(files)
}
