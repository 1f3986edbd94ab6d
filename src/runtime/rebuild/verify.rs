//! Compares a build with the live generation, both standing at the same positions.

use super::{Builder, RebuildError, Rebuilder};
use crate::store::compare::{self, Compared, Schema};
use crate::store::position;
use crate::store::transaction;

use super::builder::Progress;

/// Two generations at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Verified {
    pub(crate) tables: Vec<Compared>,
    /// Offsets that both had passed then, summed up.
    pub(crate) at: i64,
}

impl Verified {
    pub(crate) fn holds(&self) -> bool {
        self.tables.iter().all(|table| table.same)
    }
}

/// The table that carries the gate of a generation of this definition.
fn gate_table(definition: &str) -> Option<&str> {
    let gate = definition
        .split("; ")
        .find(|part| part.starts_with("gate "))?;
    let (_, place) = gate.split_once(" in ")?;
    place.split_once('.').map(|(table, _)| table)
}

impl Rebuilder {
    /// Holds the live generation up until the build stands where it stands, takes a snapshot of both, lets it go on, and
    /// compares at leisure.
    pub(crate) async fn verify(&self, builder: &mut Builder) -> Result<Verified, RebuildError> {
        let mut snapshot = self.connect().await?;
        let mut held = self.hold(builder).await?;
        transaction::begin_snapshot(&mut snapshot).await?;
        // The first statement takes the snapshot.
        let generations = [builder.live, builder.generation.number];
        let marks = position::marks(&mut snapshot, self.name(), &generations).await?;
        transaction::rollback(&mut held.connection).await?;
        let progress = Progress::of(&marks, builder.generation.number, &self.projection.topics);
        if !progress.is_level() {
            return Err(RebuildError::NotLevel {
                tries: 1,
                remaining: progress.remaining(),
            });
        }
        let live = self.live(&mut snapshot).await?;
        let generation = builder.generation.clone();
        let (live, new) = (
            Schema {
                name: &live.schema_name,
                oid: live.schema_oid,
                gate_in: gate_table(&live.definition),
            },
            Schema {
                name: &generation.schema_name,
                oid: generation.schema_oid,
                gate_in: self
                    .projection
                    .gate_in
                    .as_ref()
                    .map(|gate_in| &*gate_in.table),
            },
        );
        let tables = self
            .meanwhile(builder, compare::compare(&mut snapshot, live, new))
            .await?;
        transaction::rollback(&mut snapshot).await?;
        Ok(Verified {
            tables,
            at: progress.shares.iter().map(|share| share.next).sum(),
        })
    }

    /// Lets the build follow the live generation while something else takes its time.
    async fn meanwhile<T>(
        &self,
        builder: &mut Builder,
        work: impl Future<Output = Result<T, crate::store::Error>>,
    ) -> Result<T, RebuildError> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done?),
                () = tokio::time::sleep(std::time::Duration::from_millis(100)) => {}
            }
            builder.look().await?;
        }
    }
}
