//! Redrive: parked records are applied again, in the order of their entity, through the same handler, gate,
//! inbox and transaction as a batch.
//!
//! The entities' gate rows are locked first and the queue is read after that, so nothing can be parked
//! behind a queue that has just been emptied, and no two redrives take one entity. The last statement says
//! what became of the letters: a compare-and-set, as the position's is. No position moves, since the
//! positions have passed these records; so no worker need be fenced.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlx::{Connection as _, PgConnection};

use super::admission::decide;
use super::adoption::refuse_strangers;
use super::apply::{Failure, Generation, MessageStream, effects, failure_of, stays_inside};
use super::claim::Role;
use crate::codec::{Decoder, UnknownSchemas};
use crate::engine::gate::{Admission, Standing};
use crate::engine::parking::Rejection;
use crate::engine::redact::Secrets;
use crate::failpoint;
use crate::projection::{Emitted, Events, Gate, HandlerError, Outcome, Projection, Ref};
use crate::registry::Unavailable;
use crate::store::dead_letter::{self, Waits};
use crate::store::position::Expected;
use crate::store::{self, Offsets, Timeouts, held, inbox, outbox, transaction};

/// Letters in one transaction, at most.
pub(crate) const LETTERS_MAX: usize = 1_000;

/// What a redrive works with.
#[derive(Clone, Copy)]
pub(crate) struct Redriver<'a> {
    pub(crate) projection: &'a Projection,
    pub(crate) role: Role,
    pub(crate) decoder: &'a Decoder,
    pub(crate) timeouts: Timeouts,
    pub(crate) owner: &'a str,
    pub(crate) secrets: &'a Secrets,
    /// Letters in one transaction, at most.
    pub(crate) letters_max: usize,
}

/// How many letters to try when so many took so long that the connection was given up.
pub(crate) fn fewer(letters: usize) -> usize {
    (letters / 4).max(1)
}

/// What is to be applied again.
#[derive(Clone, Debug)]
pub(crate) enum Queue {
    /// All that waits of these entities, sorted, each once.
    Entities(Vec<String>),
    /// One letter whose entity cannot be read.
    Letter(i64),
}

/// What became of letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Redriven {
    pub(crate) applied: usize,
    pub(crate) stale: usize,
    pub(crate) duplicate: usize,
    pub(crate) filtered: usize,
    /// Failed again: they and what is behind them wait.
    pub(crate) failed: Vec<(i64, String)>,
    pub(crate) messages: usize,
}

impl Redriven {
    pub(crate) fn resolved(&self) -> usize {
        self.applied + self.stale + self.duplicate + self.filtered
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.applied += other.applied;
        self.stale += other.stale;
        self.duplicate += other.duplicate;
        self.filtered += other.filtered;
        self.messages += other.messages;
        self.failed.extend(other.failed);
    }
}

/// Why nothing could be redriven.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RedriveError {
    #[error("projection `{0}` is not in the database: it has never been started")]
    NotStarted(String),
    #[error("projection `{0}` is paused; `tidegate resume {0}` first")]
    Paused(String),
    #[error(
        "the tables of `{projection}` were built by another definition ({stored}) than this one ({mine})"
    )]
    OtherDefinition {
        projection: String,
        stored: String,
        mine: String,
    },
    #[error(
        "the projection was reset or changed meanwhile; nothing of this was applied. Try again"
    )]
    Refused,
    #[error("{0}")]
    Handler(String),
    /// Its schemas must be asked for, outside of the transaction; then again.
    #[error("a record was written with a schema that is not known here")]
    Schemas(UnknownSchemas),
    #[error("{}", .0.why)]
    Unavailable(Unavailable),
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// One step's result.
#[derive(Default)]
struct Step {
    redriven: Redriven,
    /// Letters that cannot be read, as before.
    failed: Vec<(i64, Rejection)>,
    /// More waits behind what was taken.
    more: bool,
}

enum Stopped {
    /// A letter failed: this one, if `before` is 0. Otherwise look for it among fewer.
    Rejected {
        number: i64,
        before: usize,
        rejection: Rejection,
    },
    /// All of it took too long: so many letters may do.
    Slow(usize),
    Error(RedriveError),
}

impl<E: Into<RedriveError>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

impl Redriver<'_> {
    /// Applies what waits, as far as it goes: to the first letter of an entity that fails again, or to a gap.
    pub(crate) async fn redrive(
        &self,
        connection: &mut PgConnection,
        queue: &Queue,
    ) -> Result<Redriven, RedriveError> {
        let mut all = Redriven::default();
        let Queue::Entities(entities) = queue else {
            self.alone(connection, queue, &mut all).await?;
            return Ok(all);
        };
        // Together, as long as nothing fails and all fits; then one by one.
        if entities.len() > 1 {
            match self.step(connection, queue, self.letters_max).await {
                Ok(step) => {
                    let more = step.more;
                    self.take(connection, step, &mut all).await?;
                    if !more {
                        return Ok(all);
                    }
                }
                Err(Stopped::Rejected { .. } | Stopped::Slow(_)) => {}
                Err(Stopped::Error(error)) => return Err(error),
            }
        }
        for entity in entities {
            let one = Queue::Entities(vec![entity.clone()]);
            self.alone(connection, &one, &mut all).await?;
        }
        Ok(all)
    }

    /// One queue, in smaller and smaller steps once something fails, until the letter is known.
    async fn alone(
        &self,
        connection: &mut PgConnection,
        queue: &Queue,
        all: &mut Redriven,
    ) -> Result<(), RedriveError> {
        let mut max = self.letters_max;
        loop {
            match self.step(connection, queue, max).await {
                Ok(step) => {
                    let goes_on =
                        step.more && step.redriven.resolved() > 0 && step.failed.is_empty();
                    self.take(connection, step, all).await?;
                    if !goes_on {
                        return Ok(());
                    }
                }
                Err(Stopped::Rejected { before, .. }) if before > 0 => max = before,
                Err(Stopped::Slow(fewer)) => max = fewer,
                Err(Stopped::Rejected {
                    number, rejection, ..
                }) => {
                    let step = Step {
                        failed: vec![(number, rejection)],
                        ..Step::default()
                    };
                    return self.take(connection, step, all).await;
                }
                Err(Stopped::Error(error)) => return Err(error),
            }
        }
    }

    /// Counts a step, and writes down what has failed again.
    async fn take(
        &self,
        connection: &mut PgConnection,
        step: Step,
        all: &mut Redriven,
    ) -> Result<(), RedriveError> {
        all.add(step.redriven);
        for (number, rejection) in step.failed {
            self.failed_again(connection, number, &rejection).await?;
            let detail = self.secrets.cleaned(&rejection.detail);
            // Tried together and then alone: once is enough.
            if all.failed.iter().all(|(known, _)| *known != number) {
                all.failed.push((number, detail));
            }
        }
        Ok(())
    }

    async fn failed_again(
        &self,
        connection: &mut PgConnection,
        number: i64,
        rejection: &Rejection,
    ) -> Result<(), store::Error> {
        let rejection = Rejection {
            detail: self.secrets.cleaned(&rejection.detail),
            ..rejection.clone()
        };
        dead_letter::failed(connection, number, &rejection).await
    }

    /// The generation, as it is before a transaction.
    pub(super) async fn generation(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Generation, RedriveError> {
        let name = &self.projection.name;
        transaction::begin_alone(connection).await?;
        let read = self.role.share(connection, name).await;
        let Some(read) = transaction::end_alone(connection, read).await? else {
            return Err(RedriveError::NotStarted(name.clone()));
        };
        Ok(Generation::of(read, self.role))
    }

    /// One transaction; an error leaves the connection usable or is one that says it is not.
    async fn step(
        &self,
        connection: &mut PgConnection,
        queue: &Queue,
        max: usize,
    ) -> Result<Step, Stopped> {
        let limit = self.timeouts.transaction();
        loop {
            let generation = self.generation(connection).await?;
            let done = tokio::time::timeout(
                limit,
                self.in_transaction(connection, &generation, queue, max),
            )
            .await;
            let stopped = match done {
                Ok(Ok(step)) => return Ok(step),
                Ok(Err(stopped)) => stopped,
                Err(_) => return Err(store::Error::Deadline("a redrive", limit).into()),
            };
            // The dropped transaction's ROLLBACK goes out with the next word.
            let _ = tokio::time::timeout(limit, connection.ping()).await;
            match stopped {
                Stopped::Error(RedriveError::Schemas(schemas)) => self.learn(&schemas).await?,
                stopped => return Err(stopped),
            }
        }
    }

    /// From BEGIN to COMMIT. Whoever leaves in between rolls back.
    async fn in_transaction(
        &self,
        connection: &mut PgConnection,
        generation: &Generation,
        queue: &Queue,
        max: usize,
    ) -> Result<Step, Stopped> {
        let (projection, number) = (self.projection, generation.number);
        let name = &projection.name;
        let search_path =
            transaction::search_path(&generation.schema_name, &projection.search_path);
        let application = format!("tidegate {} redrive {name}", self.owner);
        let mut transaction =
            transaction::begin_guarded(connection, &search_path, &application, &self.timeouts)
                .await?;
        let connection = &mut *transaction;
        let schema = &generation.schema_name;
        let alone = projection.gate_in.is_some();
        let xact_id =
            transaction::open_apply(connection, schema, "force_custom_plan", alone).await?;
        self.check(connection, generation).await?;

        // Gate rows first, the queue after them.
        let entities: Vec<&str> = match queue {
            Queue::Entities(entities) => entities.iter().map(String::as_str).collect(),
            Queue::Letter(_) => Vec::new(),
        };
        let initial = vec![0; entities.len()];
        let stands = store::gate::lock(connection, &entities, &initial).await?;
        let letters = match queue {
            Queue::Letter(letter) => {
                dead_letter::by_number(connection, name, number, &[*letter]).await?
            }
            Queue::Entities(_) => {
                let max = i64::try_from(max).unwrap_or(i64::MAX);
                let by_sequence = matches!(projection.gate, Gate::Next { .. });
                dead_letter::queue(connection, name, number, &entities, max, by_sequence).await?
            }
        };
        let mut events = self.decode(&letters)?;
        refuse_strangers(&letters, &mut events); // I4
        let order = events.by_entity();
        let given_up = match projection.gate {
            Gate::Next { .. } => dead_letter::given_up(connection, name, number, &entities).await?,
            _ => HashMap::new(),
        };
        let (mut outcomes, moved) = self.admit(&letters, &events, &entities, &stands, &given_up);
        if projection.event_id.is_some() {
            drop_duplicates(connection, &events, &mut outcomes).await?;
        }
        let rejected = |failure: Failure| match failure {
            Failure::Rejected { at, rejection, .. } => {
                let before = match at {
                    Some(at) => at as usize,
                    None => letters.len() / 2,
                };
                let number = letters
                    .get(at.map_or(0, |at| at as usize))
                    .map(|l| l.number);
                match number {
                    Some(number) => Stopped::Rejected {
                        number,
                        before,
                        rejection,
                    },
                    None => RedriveError::Refused.into(),
                }
            }
            Failure::Store(error) => RedriveError::Store(error).into(),
            Failure::Slow(_) if letters.len() > 1 => Stopped::Slow(letters.len() / 2),
            Failure::Handler { why, .. } | Failure::Slow(why) | Failure::NeedsToBeAlone(why) => {
                RedriveError::Handler(why).into()
            }
            _ => RedriveError::Refused.into(),
        };
        let gate_rows = match &projection.gate_in {
            Some(gate_in) => {
                let rows = gate_in.read(connection, &entities).await;
                let mut rows = rows.map_err(|error| rejected(failure_of(projection, error)))?;
                rows.alone = alone;
                Some(rows)
            }
            None => None,
        };
        if let Some(role) = &projection.role {
            transaction::act_as(connection, role).await?;
        }
        let handled = effects(
            connection,
            projection,
            &events,
            &order,
            &outcomes,
            gate_rows.as_ref(),
        );
        let emitted = match handled.await {
            Ok(emitted) => emitted,
            Err(failure) if !failure.leaves_connection_usable() => return Err(rejected(failure)),
            // What a handler does after a ROLLBACK of its own is not ours to try again.
            Err(failure) => {
                return Err(
                    match transaction::is_still_in(connection, &xact_id).await? {
                        true => rejected(failure),
                        false => RedriveError::Refused.into(),
                    },
                );
            }
        };
        let still_in = transaction::settle_effects(connection, true)
            .await
            .map_err(|error| rejected(failure_of(projection, HandlerError::from(error))))?;
        if still_in.as_deref() != Some(&*xact_id) {
            return Err(RedriveError::Refused.into());
        }
        transaction::set_search_path(connection, &search_path).await?;
        if generation.building {
            let inside = stays_inside(connection, generation).await; // I8
            inside.map_err(rejected)?;
        }
        let messages = self
            .spend_and_emit(connection, &letters, &outcomes, emitted)
            .await?;

        let remaining = dead_letter::remaining(connection, name, number, &entities).await?;
        let resolved = resolved(&letters, &outcomes);
        let mut left = remaining;
        // By the entity that a letter waits for: one that is filtered now has none in the batch.
        for (letter, outcome) in letters.iter().zip(&outcomes) {
            if *outcome != Outcome::Parked
                && let Some(entity) = letter.entity.as_deref()
                && let Some(count) = left.get_mut(entity)
            {
                *count -= 1;
            }
        }
        let waits = |entity: &str| left.get(entity).is_some_and(|count| *count > 0);
        let marks: Vec<(&str, Standing)> = moved
            .iter()
            .map(|(entity, after)| {
                let parked = waits(entity);
                (*entity, Standing { parked, ..*after })
            })
            .collect();
        store::gate::set(connection, &marks).await?;
        let more = entities.iter().any(|entity| waits(entity));
        let step = Step {
            redriven: count(&outcomes, messages),
            failed: events
                .rejected
                .iter()
                .filter(|(event, _)| outcomes[**event as usize] == Outcome::Parked)
                .map(|(event, rejection)| (letters[*event as usize].number, rejection.clone()))
                .collect(),
            more,
        };
        if resolved.is_empty() {
            return Ok(step); // and nothing to commit
        }
        let expected = Expected {
            projection: name,
            generation: number,
            xact_id: &xact_id,
            schema_name: &generation.schema_name,
            schema_oid: generation.schema_oid,
        };
        failpoint::reach(failpoint::REDRIVE_BEFORE_RESOLVE);
        let done = dead_letter::resolve(connection, &expected, &resolved).await?;
        if done != resolved.len() as u64 {
            return Err(RedriveError::Refused.into()); // I1, I6: seen before COMMIT is sent
        }
        failpoint::reach(failpoint::REDRIVE_BEFORE_COMMIT);
        transaction.commit().await.map_err(store::Error::from)?;
        failpoint::reach(failpoint::REDRIVE_AFTER_COMMIT);
        Ok(step)
    }

    /// What was read before the transaction must still be true in it.
    pub(super) async fn check(
        &self,
        connection: &mut PgConnection,
        generation: &Generation,
    ) -> Result<(), RedriveError> {
        let name = &self.projection.name;
        let Some(live) = self.role.share(connection, name).await? else {
            return Err(RedriveError::NotStarted(name.clone()));
        };
        let mine = self.projection.definition();
        if live.paused() && self.role == Role::Live {
            return Err(RedriveError::Paused(name.clone()));
        }
        if live.definition != mine {
            return Err(RedriveError::OtherDefinition {
                projection: name.clone(),
                stored: live.definition,
                mine,
            });
        }
        match live.generation == generation.number && live.schema_oid == generation.schema_oid {
            true => Ok(()),
            false => Err(RedriveError::Refused),
        }
    }

    pub(super) fn decode<'l>(&self, letters: &'l [Waits]) -> Result<Events<'l>, RedriveError> {
        let shares: Vec<_> = letters
            .iter()
            .map(|letter| (&letter.partition, std::slice::from_ref(&letter.record)))
            .collect();
        self.decoder.decode(&shares).map_err(RedriveError::Schemas)
    }

    /// Asks for schemas that letters were written with.
    pub(super) async fn learn(&self, schemas: &UnknownSchemas) -> Result<(), RedriveError> {
        let learned = self.decoder.learn(schemas).await;
        learned.map_err(RedriveError::Unavailable)
    }

    /// The gate's decisions, per entity in the order of its queue, and where the gates stand afterwards.
    fn admit<'e>(
        &self,
        letters: &[Waits],
        events: &Events<'_>,
        entities: &[&'e str],
        stands: &[Standing],
        given_up: &HashMap<String, BTreeSet<i64>>,
    ) -> (Vec<Outcome>, Vec<(&'e str, Standing)>) {
        let filtered = |filtered: &bool| match filtered {
            true => Outcome::Filtered,
            false => Outcome::Applied,
        };
        let mut outcomes: Vec<Outcome> = events.filtered.iter().map(filtered).collect();
        for event in events.rejected.keys() {
            outcomes[*event as usize] = Outcome::Parked;
        }
        let mut by_entity: BTreeMap<&str, Vec<Ref>> = BTreeMap::new();
        for (event, letter) in (0..).zip(letters) {
            if let Some(entity) = letter.entity.as_deref()
                && !events.filtered[event as usize]
            {
                by_entity.entry(entity).or_default().push(event);
            }
        }
        let mut moved = Vec::new();
        for (entity, standing) in entities.iter().zip(stands) {
            let refs = by_entity.get(entity).map_or(&[][..], Vec::as_slice);
            let sequence = |event: &Ref| events.sequences[*event as usize].unwrap_or(i64::MAX);
            let sequences: Vec<i64> = refs.iter().map(sequence).collect();
            let none = BTreeSet::new();
            let given_up = given_up.get(*entity).unwrap_or(&none);
            // The queue itself is what is behind the parked record.
            let free = Standing {
                parked: false,
                ..*standing
            };
            let gate = self.projection.gate;
            let (admissions, after) = decide(gate, free, events, refs, &sequences, given_up);
            for (event, admission) in refs.iter().zip(admissions) {
                match admission {
                    Admission::Admitted => {}
                    Admission::Stale => outcomes[*event as usize] = Outcome::Stale,
                    Admission::Waits => outcomes[*event as usize] = Outcome::Parked,
                }
            }
            moved.push((*entity, after));
        }
        (outcomes, moved)
    }

    /// A letter that is resolved spends its right to emit; its messages leave only if it had one (I5).
    async fn spend_and_emit(
        &self,
        connection: &mut PgConnection,
        letters: &[Waits],
        outcomes: &[Outcome],
        emitted: Vec<Emitted>,
    ) -> Result<usize, store::Error> {
        let right = |letter: &Waits| {
            Offsets::of(
                &letter.partition,
                letter.incarnation,
                letter.record.offset(),
            )
        };
        let spent: Vec<Offsets> = letters
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| **outcome != Outcome::Parked)
            .map(|(letter, _)| right(letter))
            .collect();
        if spent.is_empty() {
            return Ok(0);
        }
        let name = &self.projection.name;
        let had = match self.role {
            Role::Live => store::spend_right_to_emit(connection, name, &spent).await?,
            Role::Build(_) => store::right_to_emit(connection, name, &spent).await?,
        };
        let mut rows = Vec::new();
        for emitted in emitted {
            let letter = &letters[emitted.reference as usize];
            if had.has(&right(letter)) {
                let stream = MessageStream::new(name, &letter.partition);
                let row = stream.row(letter.incarnation, &letter.record, emitted);
                rows.push((right(letter), row));
            }
        }
        if rows.is_empty() {
            return Ok(0);
        }
        if self.role != Role::Live {
            held::insert(connection, &rows).await?;
            return Ok(0);
        }
        let rows: Vec<outbox::Row> = rows.into_iter().map(|(_, row)| row).collect();
        outbox::insert(connection, &self.projection.source(), &rows).await?;
        Ok(rows.len())
    }
}

fn count(outcomes: &[Outcome], messages: usize) -> Redriven {
    let mut redriven = Redriven {
        messages,
        ..Redriven::default()
    };
    for outcome in outcomes {
        match outcome {
            Outcome::Applied => redriven.applied += 1,
            Outcome::Stale => redriven.stale += 1,
            Outcome::Duplicate => redriven.duplicate += 1,
            Outcome::Filtered => redriven.filtered += 1,
            Outcome::Parked => {}
        }
    }
    redriven
}

/// Gate `next`: entities whose waiting records can be applied now.
pub(super) async fn drainable(
    connection: &mut PgConnection,
    projection: &Projection,
    generation: &Generation,
    timeouts: &Timeouts,
) -> Result<Vec<String>, store::Error> {
    let search_path = transaction::search_path(&generation.schema_name, &[]);
    let application = format!("tidegate drain {}", projection.name);
    transaction::begin(connection, &search_path, &application, timeouts).await?;
    let due = dead_letter::drainable(connection, &projection.name, generation.number).await;
    match &due {
        Ok(_) => transaction::rollback(connection).await?,
        Err(error) if error.connection_is_usable() => transaction::rollback(connection).await?,
        Err(_) => {}
    }
    due
}

/// The letters that are not parked any more, with their states.
fn resolved(letters: &[Waits], outcomes: &[Outcome]) -> Vec<(i64, &'static str)> {
    let state = |outcome: &Outcome| match outcome {
        Outcome::Applied => Some("applied"),
        Outcome::Stale => Some("stale"),
        Outcome::Duplicate => Some("duplicate"),
        Outcome::Filtered => Some("filtered"),
        Outcome::Parked => None,
    };
    letters
        .iter()
        .zip(outcomes)
        .filter_map(|(letter, outcome)| Some((letter.number, state(outcome)?)))
        .collect()
}

/// The inbox, for letters in the order of their queue.
async fn drop_duplicates(
    connection: &mut PgConnection,
    events: &Events<'_>,
    outcomes: &mut [Outcome],
) -> Result<(), store::Error> {
    let id = |event: usize| events.event_ids.get(event).unwrap_or_default();
    let applied: Vec<usize> = (0..outcomes.len())
        .filter(|event| outcomes[*event] == Outcome::Applied)
        .collect();
    let ids: BTreeSet<&str> = applied.iter().map(|event| id(*event)).collect();
    let ids: Vec<&str> = ids.into_iter().collect();
    let mut new = inbox::insert(connection, &ids).await?;
    for event in applied {
        if !new.remove(id(event)) {
            outcomes[event] = Outcome::Duplicate;
        }
    }
    Ok(())
}
