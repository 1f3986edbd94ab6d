//! A run's names and its folder: the example's files, rewritten, and the logs.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::services::Launch;
use super::tables;
use super::written::Format;

const EXAMPLE: [(&str, &str); 4] = [
    (
        "tidegate.toml",
        include_str!("../../../examples/ledger/tidegate.toml"),
    ),
    (
        "balances.sql",
        include_str!("../../../examples/ledger/balances.sql"),
    ),
    (
        "turnover.sql",
        include_str!("../../../examples/ledger/turnover.sql"),
    ),
    ("entry.avsc", include_str!("../../../schemas/entry.avsc")),
];
const BATCH_RECORDS_MAX: u64 = 2_000;

pub(super) const PROJECTIONS: [&str; 2] = ["balances", "turnover"];

/// What everything of one run is called.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) database: String,
    pub(super) entries: String,
    pub(super) overdrafts: String,
    group_prefix: String,
    pub(super) folder: PathBuf,
}

impl Names {
    pub(super) fn new() -> Self {
        let letters = "abcdefghjkmnpqrstuvwxyz23456789".as_bytes();
        let letter = |_| char::from(letters[fastrand::usize(..letters.len())]);
        let suffix: String = (0..6).map(letter).collect();
        Self {
            database: format!("{}{suffix}", tables::DATABASE_PREFIX),
            entries: format!("ledger.entries.{suffix}"),
            overdrafts: format!("ledger.overdrafts.{suffix}"),
            group_prefix: format!("ledger-{suffix}"),
            folder: std::env::temp_dir().join(format!("tidegate-demo-{suffix}")),
        }
    }

    pub(super) fn groups(&self) -> Vec<String> {
        let group = |projection| format!("{}.{projection}", self.group_prefix);
        PROJECTIONS.iter().map(group).collect()
    }
}

/// The example as it is, with this run's topics and with settings that make a kill worth watching.
fn configuration(example: &str, names: &Names, events: u64, format: Format) -> String {
    let batch = (events / 100).clamp(20, BATCH_RECORDS_MAX);
    let group = format!(
        "group_prefix = \"{}\"\n\
         # A killed process's partitions are free again after this time; Kafka's default is 45 s.\n\
         options = {{ \"session.timeout.ms\" = \"6000\", \"heartbeat.interval.ms\" = \"1000\" }}",
        names.group_prefix
    );
    let text = example
        .replace("ledger.entries", &names.entries)
        .replace("ledger.overdrafts", &names.overdrafts)
        .replace("group_prefix = \"ledger\"", &group);
    let text = match format {
        Format::Json => text,
        Format::Avro => text.replace(
            "\nsetup ",
            "\nformat   = \"avro\"\nschema   = \"entry.avsc\"\nsetup ",
        ),
    };
    format!(
        "{text}\n\
         # Small batches, so that there is much to interrupt.\n\
         [apply]\nwriters = 2\nbatch_records_max = {batch}\n\n\
         # A killed relay's streams are free again after this time.\n\
         [relay]\nlease = \"3s\"\n"
    )
}

pub(super) fn write_example(names: &Names, events: u64, format: Format) -> anyhow::Result<PathBuf> {
    let folder = &names.folder;
    let made = DirBuilder::new().mode(0o700).create(folder);
    made.with_context(|| folder.display().to_string())?;
    for (name, text) in EXAMPLE {
        let text = match name.ends_with(".toml") {
            true => configuration(text, names, events, format),
            false => text.to_owned(),
        };
        write(&folder.join(name), &text)?;
    }
    Ok(folder.join("tidegate.toml"))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options
        .open(path)
        .with_context(|| path.display().to_string())?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    Ok(())
}

/// Writes a file to `source`, after which the program and `psql` work on this run. Only its owner may
/// read it: the URL may hold a password.
pub(super) fn write_environment(launch: &Launch) -> anyhow::Result<PathBuf> {
    let path = launch.folder.join("env");
    let mut text = String::from("# To look at this run of `tidegate demo`: source this file.\n");
    let config = launch.config.display().to_string();
    let variables = launch.environment.iter().cloned();
    for (name, value) in variables.chain([("TIDEGATE_CONFIG", config)]) {
        text.push_str(&format!("export {name}={}\n", quoted(&value)));
    }
    if let Some(folder) = std::env::current_exe()?.parent() {
        let folder = quoted(&folder.display().to_string());
        text.push_str(&format!("export PATH={folder}:\"$PATH\"\n"));
    }
    write(&path, &text)?;
    Ok(path)
}

/// For a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config;

    #[test]
    fn the_example_becomes_a_configuration_with_the_runs_own_names() {
        let folder = tempfile::tempdir().unwrap();
        let names = Names {
            folder: folder.path().join("demo"),
            ..Names::new()
        };
        let path = write_example(&names, 20_000, Format::Json).unwrap();
        let config = config::load(&path, std::iter::empty()).unwrap();
        assert_eq!(config.group_prefix, names.group_prefix);
        assert_eq!(config.kafka.options["session.timeout.ms"], "6000");
        assert_eq!(config.apply.writers, 2);
        assert_eq!(config.apply.batch_records_max, 200);
        assert_eq!(config.relay.lease, Duration::from_secs(3));
        let found: Vec<&str> = config
            .projections
            .iter()
            .map(|p| p.projection.name())
            .collect();
        assert_eq!(found, PROJECTIONS);
        for configured in &config.projections {
            assert_eq!(configured.projection.topics, [&*names.entries]);
        }
        assert_eq!(config.projections[0].sql.emits[0].topic, names.overdrafts);
    }

    #[test]
    fn in_avro_the_example_reads_by_its_schema() {
        let folder = tempfile::tempdir().unwrap();
        let names = Names {
            folder: folder.path().join("demo"),
            ..Names::new()
        };
        let path = write_example(&names, 20_000, Format::Avro).unwrap();
        let registry = ("TIDEGATE__SCHEMA_REGISTRY__URL", "http://localhost:8081");
        let registry = [registry].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = config::load(&path, registry.into_iter()).unwrap();
        for configured in &config.projections {
            assert!(configured.projection.format.avro().is_some());
        }
    }
}
