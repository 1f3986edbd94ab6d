//! `tidegate config show`.

use comfy_table::ContentArrangement;
use serde_json::json;

use super::output::{counted, excerpt, table};
use super::{CODE_CONFIGURATION, ConfigArgument, Done, Failed, environment};
use crate::config::{self, Shown};
use crate::engine::redact::{Secrets, is_secret, passwords_of_url};
use crate::projection::Registry;

/// A longer value is cut in the table; SQL, say.
const VALUE_MAX: usize = 60;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Shows every setting as it counts, with where it comes from; secrets are hidden
    ///
    /// Settings of projections that are not set are left out: docs/configuration.md has their defaults.
    Show(Arguments),
}

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: ConfigArgument,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) fn execute(command: &Command, registry: Registry) -> Done {
    let Command::Show(arguments) = command;
    let mut draft = config::draft(&arguments.config.config, environment());
    let shown = std::mem::take(&mut draft.shown);
    // What is wrong is said first: what is shown of it would not count.
    let config = draft
        .into_config()
        .map_err(|error| Failed::new(CODE_CONFIGURATION, error))?;
    let secrets = config.secrets();
    let projections = config.projections.len() + registry.into_projections().len();
    let memory = config.memory.shown(projections, config.apply.writers);
    let rows = shown.iter().map(|setting| {
        let place = setting.place.as_ref();
        let from = place.map_or("default".to_owned(), ToString::to_string);
        (&*setting.path, value(setting, &secrets), from)
    });
    if arguments.json {
        let settings = rows
            .map(|(path, value, from)| json!({ "setting": path, "value": value, "from": from }));
        let memory = memory
            .iter()
            .map(|(what, bytes, _)| ((*what).to_owned(), json!(bytes)));
        let json = json!({
            "settings": settings.collect::<Vec<_>>(),
            "memory": memory.collect::<serde_json::Map<_, _>>(),
        });
        println!("{json:#}");
        return Ok(());
    }
    let mut table = table(&["setting", "value", "from"], &[]);
    // A name or an address that is broken cannot be copied.
    table.set_content_arrangement(ContentArrangement::Disabled);
    for (path, value, from) in rows {
        let line = value.split_whitespace().collect::<Vec<_>>().join(" ");
        table.add_row([path, &excerpt(&line, VALUE_MAX), &from]);
    }
    println!("{table}");
    println!(
        "\nof `memory.budget`, with {}:",
        counted(projections, "projection")
    );
    for (_, _, text) in memory {
        println!("  {text}");
    }
    Ok(())
}

/// A value without what must not be shown.
fn value(setting: &Shown, secrets: &Secrets) -> String {
    if is_secret(&setting.path) {
        return "(hidden)".to_owned();
    }
    let mut text = setting.text.clone();
    if text.contains("://") {
        // Also short ones, which the texts of errors may show.
        for password in passwords_of_url(&text) {
            text = text.replace(&format!(":{password}@"), ":***@");
        }
    }
    secrets.cleaned(&text)
}
