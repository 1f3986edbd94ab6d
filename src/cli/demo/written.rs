//! How the demo's entries are written: in JSON, or in Avro with a schema registry, and there by turns with the first
//! version of the schema and with the one that the projections read by.

use std::sync::Arc;

use super::ledger::Entry;
use super::stage::{REGISTRY, Stage};
use crate::avro::Schema;
use crate::cli::{CODE_TRY_AGAIN, Failed, database, schema_registry};
use crate::projection::{Frame, Outgoing};

/// What an entry is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    #[default]
    Json,
    Avro,
}

const VERSIONS: [&str; 2] = [
    include_str!("../../../schemas/entry.v1.avsc"),
    include_str!("../../../schemas/entry.avsc"),
];
/// Always the same, so that a registry has two schemas of the demo's, however often it is run.
const SUBJECT: &str = "ledger.entries-value";

/// Writes entries.
pub(super) enum Written {
    Json,
    Avro(Box<[Outgoing; 2]>),
}

impl Written {
    /// Registers the schemas, if there are any.
    pub(super) async fn by(format: Format, stage: &Stage) -> Result<Self, Failed> {
        let failed =
            |why: String| Failed::new(CODE_TRY_AGAIN, anyhow::anyhow!("{REGISTRY}: {why}"));
        let registry = match format {
            Format::Json => None,
            Format::Avro => schema_registry(&stage.config, &database(&stage.config)?)?,
        };
        let Some(registry) = registry else {
            return Ok(Self::Json);
        };
        let mut versions = Vec::new();
        for text in VERSIONS {
            let schema = Arc::new(Schema::parse(text, &[]).map_err(failed)?);
            let frame = Frame::Confluent {
                subject: SUBJECT.to_owned(),
                register: true,
            };
            let id = registry.id_of(SUBJECT, text, true).await.map_err(failed)?;
            let version = Outgoing::new(schema, text.to_owned(), frame);
            version.settle(Some(id));
            versions.push(version);
        }
        let versions = versions.into_boxed_slice().try_into();
        Ok(Self::Avro(
            versions.map_err(|_| failed("no schema".to_owned()))?,
        ))
    }

    /// An entry's value; `number` counts entries.
    pub(super) fn value(&self, entry: &Entry, number: usize) -> anyhow::Result<Vec<u8>> {
        let Self::Avro(versions) = self else {
            return Ok(entry.json("booked_at").into_bytes());
        };
        let json = entry.json(["booked", "booked_at"][number % 2]);
        let written = versions[number % 2].write(json.as_bytes());
        let written = written.unwrap_or_else(|| Err("no schema id".to_owned()));
        written.map_err(|why| anyhow::anyhow!("an entry does not fit its schema: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Ledger;
    use super::*;

    #[test]
    fn an_entry_fits_both_versions_of_its_schema() {
        let versions = VERSIONS.map(|text| {
            let schema = Arc::new(Schema::parse(text, &[]).unwrap());
            let outgoing = Outgoing::new(schema, text.to_owned(), Frame::Raw);
            outgoing.settle(None);
            outgoing
        });
        let written = Written::Avro(Box::new(versions));
        for (number, entry) in Ledger::new(1, 100).enumerate() {
            let value = written.value(&entry, number).unwrap();
            assert!(value.len() < entry.json("booked_at").len(), "{value:?}");
        }
    }
}
