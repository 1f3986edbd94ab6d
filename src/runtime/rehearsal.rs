//! Applies records without Kafka, for tests of projections: the same transaction, on positions of the test's own.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use uuid::Uuid;

use super::apply::{self, Applied, Applier, Failure, Generation, Part, Then};
use super::claim::Role;
use super::redrive::{LETTERS_MAX, Queue, RedriveError, Redriver};
use super::{claim, start};
use crate::codec::Decoder;
use crate::engine::parking::{Brake, Rejection};
use crate::engine::redact::Secrets;
use crate::projection::Projection;
use crate::store::position::Claim;
use crate::store::{self, Database, Timeouts};
use crate::types::{NextOffset, Record, TopicPartition};

const OWNER: &str = "test";

/// Why records could not be applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RehearsalError {
    #[error(transparent)]
    Start(#[from] start::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("the positions cannot be claimed: {0}")]
    Claim(claim::Waits),
    #[error("the projection halts: {0}")]
    Halts(String),
    #[error("what waited could not be applied: {0}")]
    Redrive(#[from] RedriveError),
}

/// A projection's tables in a database of the test's own, and a writer without a group.
pub(crate) struct Rehearsal<'p> {
    projection: &'p Projection,
    decoder: Decoder,
    database: Database,
    connection: Option<PgConnection>,
    generation: Generation,
    claims: BTreeMap<TopicPartition, (Claim, NextOffset)>,
    brake: Brake,
    secrets: Secrets,
}

/// Makes a projection's tables, with positions at the beginning of these partitions.
pub(crate) async fn make(
    connection: &mut PgConnection,
    projection: &Projection,
    partitions: &[TopicPartition],
    timeouts: &Timeouts,
) -> Result<(), RehearsalError> {
    let starts: Vec<_> = partitions
        .iter()
        .map(|p| start::left_out(p.clone(), 0, 0))
        .collect();
    start::make(connection, projection, &starts, timeouts).await?;
    Ok(())
}

impl<'p> Rehearsal<'p> {
    /// Claims all partitions.
    pub(crate) async fn begin(
        projection: &'p Projection,
        partitions: &[TopicPartition],
        database: Database,
    ) -> Result<Self, RehearsalError> {
        for outgoing in &projection.outgoing {
            outgoing.leave_as_json();
        }
        let mut connection = database.connect(OWNER).await?;
        let mut claims = BTreeMap::new();
        let mut generation = None;
        for partition in partitions {
            let timeouts = &database.timeouts;
            let claimed = claim::claim(
                &mut connection,
                projection,
                Role::Live,
                partition,
                None,
                OWNER,
                timeouts,
            );
            let (of, claimed) = claimed.await?.map_err(RehearsalError::Claim)?;
            claims.insert(partition.clone(), (claimed.claim, claimed.next));
            generation = Some(of);
        }
        let generation = generation
            .ok_or_else(|| RehearsalError::Halts("there are no partitions to read".to_owned()))?;
        Ok(Self {
            projection,
            decoder: Decoder::unframed(projection),
            database,
            connection: Some(connection),
            generation,
            claims,
            // A test that parks everything shows it.
            brake: Brake::new(u32::MAX, 100),
            secrets: Secrets::new([]),
        })
    }

    /// Applies records, in order within each partition, as one batch; with `crash` once more after a batch of
    /// them that did not commit.
    pub(crate) async fn apply(
        &mut self,
        records: &BTreeMap<TopicPartition, Vec<Record>>,
        crash: bool,
    ) -> Result<(), RehearsalError> {
        if crash {
            // Whoever lost the claim cannot commit.
            let lost = self.once(records, None, Some(Uuid::new_v4())).await?;
            drop(lost);
        }
        match self.once(records, None, None).await? {
            Ok(applied) => self.drain(applied).await,
            // As a writer does it, only straight away: alone until the one is known.
            Err(Failure::Rejected { .. }) => {
                for (partition, records) in records {
                    for record in records {
                        self.alone(partition, record).await?;
                    }
                }
                Ok(())
            }
            Err(failure) => Err(RehearsalError::Halts(why(failure))),
        }
    }

    async fn alone(
        &mut self,
        partition: &TopicPartition,
        record: &Record,
    ) -> Result<(), RehearsalError> {
        let one = BTreeMap::from([(partition.clone(), vec![record.clone()])]);
        let failure = match self.once(&one, None, None).await? {
            Ok(applied) => return self.drain(applied).await,
            Err(failure) => failure,
        };
        let Failure::Rejected {
            rejection,
            then: Then::Park,
            ..
        } = failure
        else {
            return Err(RehearsalError::Halts(why(failure)));
        };
        match self.once(&one, Some(rejection), None).await? {
            Ok(applied) => self.drain(applied).await,
            Err(failure) => Err(RehearsalError::Halts(why(failure))),
        }
    }

    async fn once(
        &mut self,
        records: &BTreeMap<TopicPartition, Vec<Record>>,
        found: Option<Rejection>,
        other_token: Option<Uuid>,
    ) -> Result<Result<Applied, Failure>, RehearsalError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.database.connect(OWNER).await?,
        };
        let mut claims = self.claims.clone();
        if let Some(token) = other_token {
            claims
                .values_mut()
                .for_each(|(claim, _)| claim.token = token);
        }
        let parts: Vec<Part<'_>> = records
            .iter()
            .filter_map(|(partition, records)| {
                let (claim, from) = claims.get(partition)?;
                Some(Part {
                    partition,
                    claim,
                    from: *from,
                    records,
                    to: NextOffset::after(records.last()?.offset()),
                })
            })
            .collect();
        let applier = Applier {
            projection: self.projection,
            decoder: &self.decoder,
            generation: &self.generation,
            timeouts: self.database.timeouts,
            owner: OWNER,
            synchronous_commit: false,
            secrets: &self.secrets,
            with_headers: true,
            brake: &self.brake,
        };
        let (connection, result) =
            apply::apply(&applier, connection, Uuid::new_v4(), &parts, found).await;
        if result.is_ok() {
            for part in &parts {
                if let Some((_, next)) = self.claims.get_mut(part.partition) {
                    *next = part.to;
                }
            }
        }
        self.connection = connection;
        Ok(result)
    }

    /// Applies what waited for what has just been applied.
    async fn drain(&mut self, applied: Applied) -> Result<(), RehearsalError> {
        let mut entities = applied.to_drain;
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        if entities.is_empty() {
            return Ok(());
        }
        entities.sort_unstable();
        entities.dedup();
        let redriver = Redriver {
            projection: self.projection,
            role: Role::Live,
            decoder: &self.decoder,
            timeouts: self.database.timeouts,
            owner: OWNER,
            secrets: &self.secrets,
            letters_max: LETTERS_MAX,
        };
        redriver
            .redrive(connection, &Queue::Entities(entities))
            .await?;
        Ok(())
    }

    /// The connection, for looking at what there is now.
    pub(crate) async fn into_connection(self) -> Result<PgConnection, RehearsalError> {
        match self.connection {
            Some(connection) => Ok(connection),
            None => Ok(self.database.connect(OWNER).await?),
        }
    }
}

fn why(failure: Failure) -> String {
    match failure {
        Failure::Rejected { rejection, .. } => rejection.detail,
        Failure::NeedsHeaders => "headers are needed".to_owned(),
        Failure::NeedsToBeAlone(why) => why,
        Failure::Handler { why, .. } | Failure::Waits { why, .. } | Failure::Slow(why) => why,
        Failure::Store(error) | Failure::Unknown(error) => error.to_string(),
        Failure::Refused => {
            "the handler has ended the transaction: a COMMIT or ROLLBACK is not its to run"
                .to_owned()
        }
    }
}
