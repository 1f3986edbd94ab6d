//! The one transaction: gate, inbox, effects, outbox and positions of a batch commit together, or
//! nothing does (I1).
//!
//! [`in_transaction`] is meant to be read top to bottom. The position statement is its last: a
//! compare-and-set that fails in a transaction which a swallowed error has aborted, which a handler
//! has ended, or whose claim is no longer the newest. COMMIT is sent only after its count was seen.
//!
//! There is deliberately no retry here and no verdict on a record: the writer decides.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use sqlx::postgres::types::Oid;
use sqlx::{Connection as _, PgConnection};
use uuid::{Builder, Uuid};

use super::admission;
use super::claim::Role;
use super::dead_letter_topic;
use super::history;
use super::parking;
use crate::codec::{Decoder, Unread};
use crate::engine::Class;
use crate::engine::parking::{Brake, Reason, Rejection};
use crate::engine::redact::Secrets;
use crate::failpoint;
use crate::projection::{
    Batch, Context, Emitted, Events, GateRows, HandlerError, Outcome, Projection, Ref,
};
use crate::store::position::{Advance, Claim, Expected, Totals};
use crate::store::projection::Live;
use crate::store::{self, Offsets, Timeouts, held, outbox, position, schema, transaction};
use crate::telemetry::{Phase, Phases};
use crate::types::{NextOffset, Record, TopicPartition, TraceContext};

/// Below this many events a generic plan is cheaper than planning anew; above, it can be far worse for
/// a statement that joins.
const GENERIC_PLAN_BELOW: usize = 500;

/// Namespace of message ids.
const MESSAGE_IDS: Uuid = Uuid::from_u128(0x9c5b_94b1_35ad_49bb_b118_8e8f_c24a_bf80);

/// One partition's part of a batch: records fetched under `claim`, the first ones not yet applied.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) partition: &'a TopicPartition,
    pub(crate) claim: &'a Claim,
    pub(crate) from: NextOffset,
    pub(crate) records: &'a [Record],
    /// The position once the part is applied: behind the last record, or behind what is no record.
    pub(crate) to: NextOffset,
}

/// The generation a batch is written into, as its claims read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Generation {
    pub(crate) number: i32,
    pub(crate) schema_name: String,
    pub(crate) schema_oid: Oid,
    /// It is not the live one: no message of it is sent.
    pub(crate) building: bool,
}

impl Generation {
    pub(crate) fn of(read: Live, role: Role) -> Self {
        Self {
            number: read.generation,
            schema_name: read.schema_name,
            schema_oid: read.schema_oid,
            building: role != Role::Live,
        }
    }
}

/// What stays the same from batch to batch.
pub(crate) struct Applier<'a> {
    pub(crate) projection: &'a Projection,
    pub(crate) decoder: &'a Decoder,
    pub(crate) generation: &'a Generation,
    pub(crate) timeouts: Timeouts,
    pub(crate) owner: &'a str,
    /// Whether COMMIT waits for the disk. If not, a crash of Postgres may take back whole batches: effects,
    /// position and messages together, and Kafka still has the records.
    pub(crate) synchronous_commit: bool,
    pub(crate) secrets: &'a Secrets,
    /// Whether records come with their headers, which a parked one must keep.
    pub(crate) with_headers: bool,
    pub(crate) brake: &'a Brake,
}

/// A committed batch.
#[derive(Clone, Debug)]
pub(crate) struct Applied {
    pub(crate) totals: Totals,
    pub(crate) messages: usize,
    /// Records in batch order: true for those that failed.
    pub(crate) failed: Vec<bool>,
    /// Records that were parked, and why.
    pub(crate) parked: Vec<(TopicPartition, i64, Rejection)>,
    /// Entities whose parked records may follow now.
    pub(crate) to_drain: Vec<String>,
    pub(crate) phases: Phases,
}

/// Why a batch did not commit.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A record cannot be applied; which one, if that is known.
    Rejected {
        at: Option<Ref>,
        rejection: Rejection,
        /// What becomes of it once it is known to be the one.
        then: Then,
    },
    /// A record cannot be read as long as its schema is not known.
    Waits { at: Ref, why: String },
    /// Something is to be parked, and its headers were not read. Fetch again, with headers.
    NeedsHeaders,
    /// The handler failed in a way that is not a record's fault.
    Handler {
        class: Class,
        why: String,
        usable: bool,
        /// The handler's own word, not an error of the database.
        own: bool,
    },
    /// The gate is in the row, and the transaction must have the generation to itself: a record is to be parked, or a
    /// row is not as it was read. If it had, the handler is at fault.
    NeedsToBeAlone(String),
    /// It took too long: a smaller batch may do.
    Slow(String),
    /// A statement of ours failed.
    Store(store::Error),
    /// The positions did not move as they should have.
    Refused,
    /// COMMIT was sent and its answer did not come: done or not.
    Unknown(store::Error),
}

/// What becomes of a record that cannot be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Park,
    /// Its partition halts.
    Halt,
    /// Its partition halts, and looks again: what is missing may come through another one.
    HaltAndLook,
}

impl Failure {
    fn rejected(at: Option<Ref>, rejection: Rejection) -> Self {
        Self::Rejected {
            at,
            rejection,
            then: Then::Park,
        }
    }

    /// Whether a ROLLBACK makes the connection good again.
    pub(super) fn leaves_connection_usable(&self) -> bool {
        match self {
            Self::Rejected { .. }
            | Self::Waits { .. }
            | Self::NeedsHeaders
            | Self::NeedsToBeAlone(_)
            | Self::Refused => true,
            Self::Handler { usable, .. } => *usable,
            Self::Store(error) => error.connection_is_usable(),
            Self::Slow(_) | Self::Unknown(_) => false,
        }
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        Self::Store(error)
    }
}

impl From<Unread> for Failure {
    fn from(Unread { at, why }: Unread) -> Self {
        match why.class {
            Class::Transient => Self::Waits { at, why: why.why },
            // Never parked: no record is at fault (I10).
            Class::Terminal | Class::Halt => Self::Rejected {
                at: Some(at),
                rejection: Rejection::new(Reason::Undecodable, why.why),
                then: Then::Halt,
            },
        }
    }
}

impl From<HandlerError> for Failure {
    fn from(error: HandlerError) -> Self {
        if error.is_row_missed() {
            return Self::NeedsToBeAlone(error.to_string());
        }
        // A statement that ran into `statement_timeout`.
        if error.sql().and_then(store::sqlstate).as_deref() == Some("57014") {
            return Self::Slow(error.to_string());
        }
        match error.class() {
            Class::Terminal => {
                let sqlstate = error.sql().and_then(store::sqlstate);
                let reason = match sqlstate {
                    Some(_) => Reason::Database,
                    None => Reason::Rejected,
                };
                let rejection = Rejection {
                    reason,
                    sqlstate: sqlstate.map(|code| code.into_owned()),
                    detail: error.to_string(),
                };
                Self::rejected(error.place(), rejection)
            }
            class => Self::Handler {
                class,
                usable: error.sql().is_none_or(store::connection_is_usable),
                own: error.sql().is_none(),
                why: error.to_string(),
            },
        }
    }
}

/// Applies a batch. `found` says why its only record cannot be applied: it is parked then. `None` for the connection afterwards means that it is in doubt and was dropped.
pub(crate) async fn apply(
    applier: &Applier<'_>,
    connection: PgConnection,
    batch_id: Uuid,
    parts: &[Part<'_>],
    found: Option<Rejection>,
) -> (Option<PgConnection>, Result<Applied, Failure>) {
    let mut connection = connection;
    let mut phases = Phases::begin();
    let shares: Vec<(&TopicPartition, &[Record])> = parts
        .iter()
        .map(|part| (part.partition, part.records))
        .collect();
    // Whoever must be asked for a schema is asked here, where no lock is held (I10).
    let mut events = match applier.decoder.read(&shares).await {
        Ok(events) => events,
        Err(unread) => return (Some(connection), Err(unread.into())),
    };
    // The only record of its batch: it has failed before.
    if let Some(found) = found {
        events.rejected.insert(0, found);
    }
    if let Err(failure) = parking::allowed(applier, &events) {
        return (Some(connection), Err(failure));
    }
    phases.end(Phase::Decode);
    let limit = applier.timeouts.transaction();
    let committing = AtomicBool::new(false);
    let mut alone = false;
    let result = loop {
        let batch = in_transaction(
            applier,
            &mut connection,
            batch_id,
            parts,
            &events,
            alone,
            &committing,
            phases.clone(),
        );
        let result = match tokio::time::timeout(limit, batch).await {
            Ok(result) => result,
            Err(_) if committing.load(Ordering::Relaxed) => Err(Failure::Unknown(
                store::Error::Deadline("the commit", limit),
            )),
            Err(_) => Err(Failure::Slow(format!(
                "the batch took longer than {limit:?}"
            ))),
        };
        match result {
            // Nobody else's work is in between then; the transaction so far is rolled back by the next BEGIN.
            Err(Failure::NeedsToBeAlone(_)) if !alone => alone = true,
            result => break result,
        }
    };
    match &result {
        Ok(_) => (Some(connection), result),
        Err(failure) if failure.leaves_connection_usable() => {
            // The dropped transaction's ROLLBACK goes out with the next word: let its locks go now.
            let ping = async { connection.ping().await.map_err(store::Error::from) };
            let done = store::within("rolling back", limit, ping).await;
            (done.is_ok().then_some(connection), result)
        }
        Err(_) => (None, result),
    }
}

/// From BEGIN to COMMIT. Whoever leaves in between rolls back. `alone`: no other batch of the generation is open meanwhile.
#[expect(
    clippy::too_many_arguments,
    reason = "one caller; each is told from the others by its type"
)]
async fn in_transaction(
    applier: &Applier<'_>,
    connection: &mut PgConnection,
    batch_id: Uuid,
    parts: &[Part<'_>],
    events: &Events<'_>,
    alone: bool,
    committing: &AtomicBool,
    mut phases: Phases,
) -> Result<Applied, Failure> {
    let (projection, generation) = (applier.projection, applier.generation);
    let search_path = transaction::search_path(&generation.schema_name, &projection.search_path);
    let name = format!("tidegate {} apply {}", applier.owner, projection.name);
    let timeouts = &applier.timeouts;
    // I1: not even the handler can commit.
    let mut transaction =
        transaction::begin_guarded(connection, &search_path, &name, timeouts).await?;
    let connection = &mut *transaction;
    let few = events.records.len() < GENERIC_PLAN_BELOW;
    let plans = if few || projection.handler.any_plan_will_do() {
        "force_generic_plan"
    } else {
        "force_custom_plan"
    };
    let xact_id =
        transaction::open_apply(connection, &generation.schema_name, plans, alone).await?;
    phases.end(Phase::Begin);

    failpoint::reach(failpoint::APPLY_AFTER_BEGIN);
    let order = events.by_entity();
    let admitted = admission::admit(connection, projection, events, &order, alone).await?; // I4
    failpoint::reach(failpoint::APPLY_AFTER_GATE);
    let (outcomes, gate_rows) = (&admitted.outcomes, admitted.gate_rows.as_ref());
    history::dropped(connection, applier, events, parts, &admitted).await?;
    phases.end(Phase::Gate);
    if let Some(role) = &projection.role {
        transaction::act_as(connection, role).await?;
    }
    let emitted = match effects(connection, projection, events, &order, outcomes, gate_rows).await {
        Ok(emitted) => emitted,
        Err(failure) if !failure.leaves_connection_usable() => return Err(failure),
        // What a handler does after a ROLLBACK of its own is not ours to try again.
        Err(failure) => {
            return Err(
                match transaction::is_still_in(connection, &xact_id).await? {
                    true => failure,
                    false => Failure::Refused,
                },
            );
        }
    };
    failpoint::reach(failpoint::APPLY_AFTER_EFFECTS);
    let still_in = transaction::settle_effects(connection, applier.synchronous_commit)
        .await
        .map_err(|error| failure_of(projection, HandlerError::from(error)))?;
    if still_in.as_deref() != Some(&*xact_id) {
        return Err(Failure::Refused); // before anything of ours could be written outside the transaction
    }
    phases.end(Phase::Handler);
    let had_kept = parking::spend_rights(connection, applier, events, parts, outcomes).await?;
    let messages = messages(projection, events, parts, emitted, &had_kept);
    let parked = &admitted.parked;
    let messages = match generation.building {
        true => {
            transaction::set_search_path(connection, &search_path).await?;
            hold(connection, events, parts, messages).await?; // I5
            Vec::new()
        }
        false => {
            let messages = messages.into_iter().map(|(_, row)| row);
            let letters = dead_letter_topic::messages(applier, events, parts, parked);
            messages.chain(letters).collect::<Vec<_>>()
        }
    };
    if !messages.is_empty() {
        outbox::insert(connection, &projection.source(), &messages).await?; // I5
        failpoint::reach(failpoint::APPLY_AFTER_OUTBOX);
    }
    if !parked.is_empty() {
        parking::park(connection, applier, events, parts, parked, &had_kept).await?; // I6
    }
    phases.end(Phase::Outbox);

    if generation.building {
        stays_inside(connection, generation).await?; // I8
    }
    failpoint::reach(failpoint::APPLY_BEFORE_ADVANCE);
    let moves = moves(parts, events, outcomes);
    history::batch(connection, applier, batch_id, &moves).await?;
    let expected = Expected {
        projection: &projection.name,
        generation: generation.number,
        xact_id: &xact_id,
        schema_name: &generation.schema_name,
        schema_oid: generation.schema_oid,
    };
    let moved = position::advance(connection, &expected, batch_id, &moves)
        .await
        .map_err(store::Error::from)?;
    if moved != moves.len() as u64 {
        return Err(Failure::Refused); // I1, I2, I3: seen before COMMIT is sent
    }
    phases.end(Phase::Position);
    failpoint::reach(failpoint::APPLY_BEFORE_COMMIT);
    committing.store(true, Ordering::Relaxed);
    match transaction.commit().await.map_err(store::Error::from) {
        Ok(()) => {}
        // Postgres says no: rolled back. Not a verdict on a record.
        Err(error) if error.connection_is_usable() => return Err(Failure::Store(error)),
        Err(error) => return Err(Failure::Unknown(error)),
    }
    failpoint::reach(failpoint::APPLY_AFTER_COMMIT);
    phases.end(Phase::Commit);

    let mut totals = Totals::default();
    for share in &moves {
        totals.add(&share.totals);
    }
    let failed = |event: Ref| {
        let rejection = admitted.parked.get(&event);
        rejection.is_some_and(|rejection| rejection.reason.is_failure())
    };
    let place = |event: Ref| {
        let record = events.records[event as usize];
        (events.partition(event).clone(), record.offset())
    };
    Ok(Applied {
        totals,
        messages: messages.len(),
        failed: (0..events.records.len() as Ref).map(failed).collect(),
        parked: admitted
            .parked
            .into_iter()
            .map(|(event, rejection)| {
                let (partition, offset) = place(event);
                (partition, offset, rejection)
            })
            .collect(),
        to_drain: admitted.to_drain,
        phases,
    })
}

/// Runs the handler on what was admitted. An error or a panic is that of the event at hand, where the handler
/// takes them one by one; else of the batch.
pub(super) async fn effects(
    connection: &mut PgConnection,
    projection: &Projection,
    events: &Events<'_>,
    order: &[Ref],
    outcomes: &[Outcome],
    gate_rows: Option<&GateRows>,
) -> Result<Vec<Emitted>, Failure> {
    let applied = |event: &Ref| outcomes[*event as usize] == Outcome::Applied;
    let by_entity: Vec<Ref> = order.iter().copied().filter(applied).collect();
    let mut in_order = by_entity.clone();
    in_order.sort_unstable();
    if in_order.is_empty() {
        return Ok(Vec::new());
    }
    let batch = Batch {
        events,
        by_entity: &by_entity,
        in_order: &in_order,
        gate_rows,
    };
    let mut context = Context::new(connection);
    let handled = AssertUnwindSafe(projection.handler.apply(&mut context, &batch))
        .catch_unwind()
        .await;
    match handled {
        Ok(Ok(())) => Ok(context.into_emitted()),
        Ok(Err(error)) => Err(failure_of(projection, error.or_at(context.at()))),
        Err(panic) => {
            let why = format!("the handler panicked: {}", panic_text(&*panic));
            Err(Failure::rejected(
                context.at(),
                Rejection::new(Reason::Panicked, why),
            ))
        }
    }
}

/// A handler that runs COMMIT meets the guard. One that goes on after an SQL error meets 25P02 in its
/// next statement, or we do in ours.
pub(super) fn failure_of(projection: &Projection, error: HandlerError) -> Failure {
    if error.sql().is_some_and(transaction::is_refused_commit) {
        return Failure::Refused;
    }
    let aborted = error
        .sql()
        .and_then(store::sqlstate)
        .is_some_and(|code| code == "25P02");
    if aborted {
        return Failure::Handler {
            class: Class::Halt,
            why: "the handler has swallowed an SQL error, after which nothing of the batch can be applied; return the error instead"
                .to_owned(),
            usable: true,
            own: false,
        };
    }
    let own = error
        .sql()
        .and_then(store::sqlstate)
        .and_then(|code| projection.sqlstates.get(&*code).copied());
    match own {
        Some(class) => error.with_class(class).into(),
        None => error.into(),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Gives messages their stream and their id. A record below the right to emit has emitted before, unless it
/// was parked then and has kept its right: its messages are left out (I5).
fn messages(
    projection: &Projection,
    events: &Events<'_>,
    parts: &[Part<'_>],
    emitted: Vec<Emitted>,
    had_kept: &BTreeSet<Ref>,
) -> Vec<(Ref, outbox::Row)> {
    if emitted.is_empty() {
        return Vec::new();
    }
    let stream = |part: &Part<'_>| MessageStream::new(&projection.name, part.partition);
    let streams: Vec<MessageStream> = parts.iter().map(stream).collect();
    let mut rows = Vec::with_capacity(emitted.len());
    for emitted in emitted {
        let reference = emitted.reference;
        let share = events
            .shares
            .partition_point(|share| share.refs.end <= reference);
        let (claim, record) = (parts[share].claim, events.records[reference as usize]);
        if record.offset() < claim.emitted_through && !had_kept.contains(&reference) {
            continue;
        }
        rows.push((
            reference,
            streams[share].row(claim.incarnation, record, emitted),
        ));
    }
    rows
}

/// Keeps messages of a generation that is not live until it is.
async fn hold(
    connection: &mut PgConnection,
    events: &Events<'_>,
    parts: &[Part<'_>],
    messages: Vec<(Ref, outbox::Row)>,
) -> Result<(), store::Error> {
    if messages.is_empty() {
        return Ok(());
    }
    let with_record = |(event, row): (Ref, outbox::Row)| {
        let part = parking::part(events, parts, event);
        let offset = events.records[event as usize].offset();
        let record = Offsets::of(part.partition, part.claim.incarnation, offset);
        (record, row)
    };
    let messages: Vec<_> = messages.into_iter().map(with_record).collect();
    held::insert(connection, &messages).await
}

/// A build must not touch what is live, nor anything else that is not its own.
pub(super) async fn stays_inside(
    connection: &mut PgConnection,
    generation: &Generation,
) -> Result<(), Failure> {
    let schema = &generation.schema_name;
    match schema::written_outside(connection, schema).await? {
        None => Ok(()),
        Some(table) => Err(Failure::Handler {
            class: Class::Halt,
            why: format!(
                "`{table}` was written to, which is not of the generation that is being built (schema `{schema}`); name tables without a schema, in functions and triggers too"
            ),
            usable: true,
            own: false,
        }),
    }
}

/// The stream of the messages that a partition's records cause.
pub(super) struct MessageStream {
    name: Arc<str>,
    /// What ids of it begin with.
    prefix: [u8; 2],
}

impl MessageStream {
    pub(super) fn new(projection: &str, partition: &TopicPartition) -> Self {
        let (topic, partition) = (partition.topic(), partition.partition());
        let name = format!("{projection}/{topic}/{partition}");
        let [first, second, ..] = Uuid::new_v5(&MESSAGE_IDS, name.as_bytes()).into_bytes();
        Self {
            name: name.into(),
            prefix: [first, second],
        }
    }

    /// A message as it is stored, in the name of its record.
    pub(super) fn row(&self, incarnation: i32, record: &Record, emitted: Emitted) -> outbox::Row {
        let (name, index, mut message) = (emitted.name, emitted.index, emitted.message);
        if let Some(trace) = TraceContext::of(record) {
            trace.carry(&mut message.headers);
        }
        outbox::Row {
            stream: Arc::clone(&self.name),
            id: self.message_id(incarnation, record.offset(), &name, index),
            name,
            occurred_at: record.time(),
            message,
        }
    }

    /// A message's identity: the same over all retries, redeliveries and rebuilds (I5). It begins with the
    /// stream and the offset, so that ids that are stored together stand together in the index of ids.
    fn message_id(&self, incarnation: i32, offset: i64, emit: &str, index: i32) -> Uuid {
        let name = format!("{}\0{incarnation}\0{offset}\0{emit}\0{index}", self.name);
        let mut id = Uuid::new_v5(&MESSAGE_IDS, name.as_bytes()).into_bytes();
        id[..2].copy_from_slice(&self.prefix);
        id[2..6].copy_from_slice(&offset.to_be_bytes()[4..]);
        Builder::from_custom_bytes(id).into_uuid()
    }
}

/// What the position statement is asked to do: every record is counted as exactly one outcome (I6).
fn moves<'a>(parts: &[Part<'a>], events: &Events<'_>, outcomes: &[Outcome]) -> Vec<Advance<'a>> {
    let moves = parts.iter().zip(&events.shares).map(|(part, share)| {
        let mut totals = Totals::default();
        for outcome in &outcomes[share.refs.start as usize..share.refs.end as usize] {
            count(&mut totals, *outcome);
        }
        Advance {
            partition: part.partition,
            claim: part.claim,
            from: part.from,
            to: part.to,
            consumed: i64::try_from(part.records.len()).unwrap_or(i64::MAX),
            totals,
            anchor: part.records.last().map(Record::anchor),
        }
    });
    moves.collect()
}

/// Counts what became of a record.
pub(super) fn count(totals: &mut Totals, outcome: Outcome) {
    match outcome {
        Outcome::Applied => totals.applied += 1,
        Outcome::Stale => totals.stale += 1,
        Outcome::Duplicate => totals.duplicate += 1,
        Outcome::Filtered => totals.filtered += 1,
        Outcome::Parked => totals.parked += 1,
    }
}
