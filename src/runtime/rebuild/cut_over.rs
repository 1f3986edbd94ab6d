//! The cut-over: in one transaction the generation that was built becomes the live one.
//!
//! First the live generation is held up: its generation lock is taken, which waits for open batches and keeps new ones
//! out, and the build applies what is left, in its own transactions under its own lock. It has fetched that already, or
//! is about to; if it does not get there within a second, the lock is let go, and it is tried again later. Nothing
//! hangs on this but the pause: the lock is that of an open transaction, so whatever happens to this process, the live
//! generation goes on.
//!
//! Then, still under that lock, everything else happens in the order in which all operator actions lock: the build's own
//! generation lock, projection and generation rows, what was held back, the outbox, the positions of both. Those are
//! compared as they are locked.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::builder::NEAR;
use super::{Builder, RebuildError, Rebuilder};
use crate::failpoint;
use crate::store::generation::{self, Detached, State};
use crate::store::operation::Operation;
use crate::store::position::{self, Stood};
use crate::store::projection::Live;
use crate::store::{self, Timeouts, held, operation, outbox, schema, swap, transaction};

/// How long the live generation is held up for the build to catch up, at most.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// So often that is tried.
const TRIES: u32 = 20;
/// How long a build may take to come near, before it is tried all the same.
const NEAR_WITHIN: Duration = Duration::from_secs(5);
/// How long the live generation has to itself after the first try; longer after each.
const LET_GO: Duration = Duration::from_millis(500);
const BETWEEN_LOOKS: Duration = Duration::from_millis(3);
const BETWEEN_FAR_LOOKS: Duration = Duration::from_millis(50);

/// The live generation, held up by an open transaction.
pub(super) struct Hold {
    pub(super) connection: PgConnection,
    pub(super) began: Instant,
}

/// What a cut-over did.
#[derive(Clone, Debug)]
pub(crate) struct CutOver {
    pub(crate) operation: Uuid,
    pub(crate) old: i32,
    pub(crate) old_schema: String,
    pub(crate) new: i32,
    /// Messages that were held back and are in the outbox now.
    pub(crate) messages: usize,
    /// How long nothing could be applied.
    pub(crate) pause: Duration,
}

impl Rebuilder {
    /// Holds the live generation up, with the build standing exactly where it stands.
    pub(super) async fn hold(&self, builder: &mut Builder) -> Result<Hold, RebuildError> {
        let mut connection = self.connect().await?;
        let (mut remaining, mut blocked) = (0, None);
        for attempt in 0..TRIES {
            // Batches have waited, and are to have their turn.
            tokio::time::sleep(LET_GO * attempt).await;
            let since = Instant::now();
            while builder.look().await?.remaining() > NEAR && since.elapsed() < NEAR_WITHIN {
                tokio::time::sleep(BETWEEN_FAR_LOOKS).await;
            }
            match self.hold_once(&mut connection, builder).await {
                Ok(Ok(began)) => return Ok(Hold { connection, began }),
                Ok(Err(left)) => (remaining, blocked) = (left, None),
                // A batch is taking its time.
                Err(RebuildError::Store(error))
                    if error.class() == crate::engine::Class::Transient
                        && error.connection_is_usable() =>
                {
                    blocked = Some(error);
                }
                Err(error) => return Err(error),
            }
            transaction::rollback(&mut connection).await?;
        }
        match blocked {
            Some(error) => Err(error.into()),
            None => Err(RebuildError::NotLevel {
                tries: TRIES,
                remaining,
            }),
        }
    }

    async fn hold_once(
        &self,
        connection: &mut PgConnection,
        builder: &mut Builder,
    ) -> Result<Result<Instant, i64>, RebuildError> {
        let own = self.service.database.timeouts;
        let timeouts = Timeouts {
            lock: own.lock.min(PAUSE_MAX),
            ..own
        };
        let application = format!("tidegate rebuild {}", self.name());
        let path = transaction::OWN_SEARCH_PATH;
        transaction::begin(connection, path, &application, &timeouts).await?;
        let began = Instant::now();
        transaction::lock_generation(connection, self.name()).await?;
        failpoint::reach(failpoint::REBUILD_HOLDING);
        loop {
            let progress = builder.look().await?;
            if progress.is_level() {
                return Ok(Ok(began));
            }
            if began.elapsed() > PAUSE_MAX {
                return Ok(Err(progress.remaining()));
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Makes the build the live generation. The service says what it was `ordered` to do when it decided so.
    pub(crate) async fn cut_over(
        &self,
        builder: &mut Builder,
        ordered: Option<Detached>,
    ) -> Result<CutOver, RebuildError> {
        let Hold {
            mut connection,
            began,
        } = self.hold(builder).await?;
        let done = self.in_transaction(&mut connection, builder, ordered).await;
        match done {
            Ok((operation, old_schema, messages)) => {
                failpoint::reach(failpoint::REBUILD_BEFORE_CUT_OVER);
                if let Err(error) = transaction::commit(&mut connection).await
                    && !self.has_become_live(builder.generation.number).await
                {
                    return Err(RebuildError::Unknown(error));
                }
                let pause = began.elapsed();
                failpoint::reach(failpoint::REBUILD_AFTER_CUT_OVER);
                Ok(CutOver {
                    operation,
                    old: builder.live,
                    old_schema,
                    new: builder.generation.number,
                    messages,
                    pause,
                })
            }
            Err(error) => {
                // What went wrong may have cost the connection, which rolls back too.
                let _ = transaction::rollback(&mut connection).await;
                Err(error)
            }
        }
    }

    /// Asks what has become of a COMMIT that was not answered: the row that it changes is waited for.
    async fn has_become_live(&self, generation: i32) -> bool {
        let ask = async {
            let mut connection = self.connect().await?;
            let live = store::projection::lock(&mut connection, self.name()).await?;
            Ok::<_, RebuildError>(live.is_some_and(|live| live.generation == generation))
        };
        ask.await.unwrap_or(false)
    }

    /// Locks the build's generation, the live one being held, and the rows of both; they must be what they were.
    pub(super) async fn lock_both(
        &self,
        connection: &mut PgConnection,
        builder: &Builder,
        ordered: Option<Detached>,
    ) -> Result<Live, RebuildError> {
        let (name, new) = (self.name(), &builder.generation);
        let gone = || RebuildError::Gone {
            generation: new.number,
        };
        transaction::lock_generation(connection, &new.schema_name).await?;
        let Some(live) = store::projection::lock(connection, name).await? else {
            return Err(RebuildError::NotStarted(name.to_owned()));
        };
        let building = generation::building(connection, name, new.number).await?;
        let building = building.ok_or_else(gone)?;
        if let Some(ordered) = ordered {
            if live.paused() {
                return Err(RebuildError::Withdrawn);
            }
            self.is_still_left(connection, new.number, ordered).await?;
        }
        match live.generation == builder.live && building.schema_oid == new.schema_oid {
            true => Ok(live),
            false => Err(gone()),
        }
    }

    /// What the service was to do when it decided to cut over is still what it is to do: an operator may have thought
    /// better of it. What the builder knows has been read again since.
    async fn is_still_left(
        &self,
        connection: &mut PgConnection,
        number: i32,
        ordered: Detached,
    ) -> Result<(), RebuildError> {
        let beside = generation::beside(connection, self.name()).await?;
        let mut same = beside.iter().filter(|now| now.number == number);
        match same.any(|now| now.detached() == Some(ordered)) {
            true => Ok(()),
            false => Err(RebuildError::Withdrawn),
        }
    }

    async fn in_transaction(
        &self,
        connection: &mut PgConnection,
        builder: &Builder,
        ordered: Option<Detached>,
    ) -> Result<(Uuid, String, usize), RebuildError> {
        let (name, new) = (self.name(), &builder.generation);
        let live = self.lock_both(connection, builder, ordered).await?;
        let mut obstacles = Vec::new();
        self.of_schema(connection, &live, &mut obstacles).await?;
        let marks = position::marks(connection, name, &[new.number]).await?;
        let begin: Vec<_> = marks
            .iter()
            .map(|mark| {
                let first = mark.first_offset.unwrap_or(0);
                (mark.of(), mark.incarnation, first)
            })
            .collect();
        let build = Some(new.number);
        self.of_letters(
            connection,
            live.generation,
            build,
            &begin,
            &[],
            &mut obstacles,
        )
        .await?;
        if !obstacles.is_empty() {
            return Err(RebuildError::Obstacles(obstacles));
        }
        let unprotected = swap::unprotected(connection, live.schema_oid, new.schema_oid).await?;
        if !unprotected.is_empty() {
            return Err(RebuildError::Unprotected(unprotected));
        }
        schema::all_permanent(connection, &new.schema_name).await?; // I1

        // I5: what was held back, as far as nobody has sent or given it up meanwhile.
        let path = transaction::search_path(&new.schema_name, &[]);
        transaction::set_search_path(connection, &path).await?;
        let messages = held::take(connection, name).await?;
        transaction::set_search_path(connection, transaction::OWN_SEARCH_PATH).await?;
        if !messages.is_empty() {
            outbox::insert(connection, &self.projection.source(), &messages).await?;
        }
        failpoint::reach(failpoint::REBUILD_AFTER_MESSAGES);

        // I3: from here on neither an owner of the old generation nor one of the build can commit.
        let stood = position::reset(connection, name, live.generation).await?;
        let stands = position::reset(connection, name, new.number).await?;
        level(&stood, &stands, &self.projection.topics, new.number)?;
        store::raise_emission(connection, name, &stood).await?;
        store::settle_rights_to_emit(connection, name, new.number).await?;

        let old_schema = format!("{name}__g{}", live.generation);
        swap::rename(connection, &live.schema_name, &old_schema).await?;
        swap::rename(connection, &new.schema_name, name).await?;
        generation::rename(connection, name, live.schema_oid, &old_schema).await?;
        generation::rename(connection, name, new.schema_oid, name).await?;
        generation::set_state(connection, name, live.generation, State::Retired).await?;
        generation::set_state(connection, name, new.number, State::Live).await?;
        store::projection::set_live(connection, name, new.number).await?;
        swap::carry_grants(connection, live.schema_oid, new.schema_oid).await?;

        let offsets = |rows: &[Stood]| {
            let row = |p: &Stood| {
                (
                    format!("{}[{}]", p.topic, p.partition),
                    p.next_offset.into(),
                )
            };
            rows.iter().map(row).collect::<serde_json::Map<_, _>>()
        };
        let record = Operation {
            id: Uuid::new_v4(),
            kind: "cut-over",
            projection: name,
            who: &self.who,
            arguments: json!({}),
            before: json!({ "generation": live.generation, "definition": live.definition, "next_offset": offsets(&stood) }),
            after: json!({ "generation": new.number, "definition": new.definition, "next_offset": offsets(&stands), "messages": messages.len() }),
        };
        operation::insert(connection, &record).await?; // I2
        Ok((record.id, old_schema, messages.len()))
    }
}

/// Both stand at the same offsets of the same logs, in every partition that the new definition reads.
pub(super) fn level(
    live: &[Stood],
    new: &[Stood],
    topics: &[String],
    generation: i32,
) -> Result<(), RebuildError> {
    let of = |stood: &Stood| (stood.topic.clone(), stood.partition);
    for there in live.iter().filter(|stood| topics.contains(&stood.topic)) {
        let here = new.iter().find(|here| of(here) == of(there));
        if here.is_some_and(|here| here.incarnation != there.incarnation) {
            return Err(RebuildError::OtherLog {
                topic: there.topic.clone(),
                generation,
            });
        }
        let next = here.map_or(0, |here| here.next_offset);
        if here.is_none() || next != there.next_offset {
            return Err(RebuildError::NotLevel {
                tries: 1,
                remaining: there.next_offset - next,
            });
        }
    }
    // A partition that the live generation has not seen: its records have not been decided.
    match new
        .iter()
        .find(|here| !live.iter().any(|there| of(there) == of(here)))
    {
        None => Ok(()),
        Some(here) => Err(RebuildError::NotLevel {
            tries: 1,
            remaining: here.next_offset,
        }),
    }
}
