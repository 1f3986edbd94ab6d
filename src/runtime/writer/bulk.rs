//! Takes records in without writing them, while a build is far behind.
//!
//! ```text
//!              far behind                 more records
//!   batch by batch ──────▶ taking in ◀────────────────┐
//!        ▲                     │──────────────────────┘
//!        │                     │ the end, the bound of memory, a record that is not plain, a revoke
//!        └──────────────────── write: states, gates and positions of all of it
//! ```
//!
//! What is taken in is ahead of its position rows: `Running::next` is, too. So it belongs to its claims, and is forgotten with
//! the first of them that is lost: all of its partitions are claimed again then, and fetched from where the
//! database says (I6). A batch in the ordinary way begins only when nothing is taken in.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tracing::info;
use uuid::Uuid;

use super::batch::Chosen;
use super::{Running, State, Work, Writer};
use crate::engine::Class;
use crate::engine::parking::WINDOW;
use crate::projection::Bulk;
use crate::runtime::apply::{Applied, Applier, Failure, Generation, count as count_as};
use crate::runtime::bulk::{self, Unwritten};
use crate::runtime::claim::Role;
use crate::runtime::stragglers::ending_stragglers;
use crate::store::position::{Advance, Claim, Totals};
use crate::store::{self, Offsets};
use crate::types::{Anchor, NextOffset, Record, TopicPartition};

/// Nearer to its bound than so many batches, a build goes on batch by batch.
const BEHIND_MIN: usize = 5;
/// What a crash can take back, at most.
const RECORDS_MAX: i64 = 50_000_000;
/// So many batches go the ordinary way once a record must.
const ORDINARY: usize = 50;
/// Without a record for so long, there are no more for now.
const QUIET: Duration = Duration::from_secs(1);

/// What a writer has taken in since it wrote last.
pub(super) struct Stretch {
    states: Box<dyn Bulk>,
    /// All that its states were made under, also what of them is written.
    claims: BTreeMap<TopicPartition, Claim>,
    shares: BTreeMap<TopicPartition, Share>,
    records: i64,
    /// When a record was taken in last.
    grew: Instant,
    /// It cannot go on before it is written.
    is_full: bool,
}

/// A partition's part of it.
struct Share {
    claim: Claim,
    from: NextOffset,
    to: NextOffset,
    consumed: i64,
    totals: Totals,
    anchor: Option<Anchor>,
}

/// What taking in has come to.
pub(super) enum TookIn {
    /// There may be more at once.
    Some,
    /// Nothing, and nothing is to be written before then.
    NothingUntil(Instant),
    /// Nothing is taken in: go on batch by batch.
    Nothing,
}

impl Share {
    fn advance<'a>((partition, share): (&'a TopicPartition, &'a Self)) -> Advance<'a> {
        Advance {
            partition,
            claim: &share.claim,
            from: share.from,
            to: share.to,
            consumed: share.consumed,
            totals: share.totals,
            anchor: share.anchor,
        }
    }
}

impl Writer {
    /// Takes in what is held, or writes what was taken in.
    pub(super) async fn take_in(&self, work: &mut Work) -> TookIn {
        if self.role == Role::Live {
            return TookIn::Nothing;
        }
        self.forget_unfounded(work);
        let chosen = self.choose_plain(work);
        if work.stretch.is_none() {
            let may = work.ordinary == 0 && !chosen.is_empty() && self.is_far_behind(work);
            if !may || !self.begin_stretch(work).await {
                return TookIn::Nothing;
            }
        }
        let Some(stretch) = &work.stretch else {
            return TookIn::Nothing;
        };
        let now = Instant::now();
        let quiet_at = stretch.grew + QUIET;
        let is_full = stretch.is_full
            || stretch.records >= RECORDS_MAX
            || stretch.states.bytes() >= self.limits.bulk_bytes_max;
        let at_end = chosen.is_empty() && (self.behind(work) <= 0 || now >= quiet_at);
        if is_full || at_end || self.is_hindered(work) {
            self.write_stretch(work).await;
            return TookIn::Some;
        }
        if chosen.is_empty() {
            return TookIn::NothingUntil(quiet_at.min(now + self.look_every()));
        }
        self.take_chosen(work, &chosen).await;
        TookIn::Some
    }

    /// Offsets that are left, of partitions that are not halted.
    fn behind(&self, work: &Work) -> i64 {
        let left = work.partitions.iter().map(|(partition, state)| {
            let bound = self.bound(partition).get();
            match state {
                State::Running(running) => (bound - running.next.get()).max(0),
                // Not known.
                State::Claiming { .. } | State::Fetching { .. } => 1,
                State::Halted { .. } => 0,
            }
        });
        left.sum()
    }

    fn is_far_behind(&self, work: &Work) -> bool {
        let far = self.limits.batch_records_max * BEHIND_MIN;
        self.behind(work) >= i64::try_from(far).unwrap_or(i64::MAX)
    }

    /// Records that are applied batch by batch from a record on that must be.
    fn ordinary(&self) -> usize {
        self.limits.batch_records_max * ORDINARY
    }

    /// Whether a partition must go the ordinary way now.
    fn is_hindered(&self, work: &Work) -> bool {
        work.partitions.values().any(|state| match state {
            State::Running(running) => running.limit.is_some() || running.ended.is_some(),
            _ => false,
        })
    }

    fn choose_plain(&self, work: &Work) -> Vec<Chosen> {
        let chosen = work.partitions.iter().filter_map(|(partition, state)| {
            let State::Running(running) = state else {
                return None;
            };
            let chosen = self.share(running, partition, usize::MAX);
            (chosen.count > 0).then_some(chosen)
        });
        chosen.collect()
    }

    /// Forgets what is taken in if a claim of it is not held any more.
    fn forget_unfounded(&self, work: &mut Work) {
        let Some(stretch) = &work.stretch else { return };
        let is_founded =
            |(partition, claim): (&TopicPartition, &Claim)| match work.partitions.get(partition) {
                Some(State::Running(running)) => {
                    let share = stretch.shares.get(partition);
                    running.claim == *claim && share.is_none_or(|share| running.next == share.to)
                }
                _ => false,
            };
        if !stretch.claims.iter().all(is_founded) {
            self.forget_stretch(work, "a claim of it is lost");
        }
    }

    /// Its partitions are fetched again, from where the database says.
    pub(super) fn forget_stretch(&self, work: &mut Work, why: &str) {
        let Some(stretch) = work.stretch.take() else {
            return;
        };
        let (projection, records) = (&self.projection.name, stretch.records);
        info!(
            projection,
            records, why, "what was taken in is given up; claiming again"
        );
        for (partition, share) in stretch.shares {
            if let Some(state) = work.partitions.get_mut(&partition)
                && state.claim() == Some(&share.claim)
                && matches!(state, State::Running(_))
            {
                *state = State::claim_at(Instant::now());
            }
        }
    }

    /// False if it cannot be.
    async fn begin_stretch(&self, work: &mut Work) -> bool {
        if self.is_hindered(work) {
            return false;
        }
        let Some(mut states) = self.projection.bulk() else {
            work.ordinary = usize::MAX;
            return false;
        };
        let (Some(mut connection), Some(generation)) =
            (work.connection.take(), work.generation.clone())
        else {
            return false;
        };
        let limit = self.database.timeouts.transaction();
        let begun = {
            let applier = self.applier(work, &generation);
            let begin = bulk::begin(&applier, &mut connection, &mut *states);
            store::within("looking at the tables", limit, begin).await
        };
        match begun {
            Ok(None) => work.connection = Some(connection),
            Ok(Some(why)) => {
                let projection = &self.projection.name;
                info!(projection, why, "applying batch by batch");
                work.connection = Some(connection);
                work.ordinary = usize::MAX;
                return false;
            }
            Err(failure) => {
                // Its transaction ends with the connection. The ordinary way says what is wrong.
                work.ordinary = self.ordinary();
                self.connection_lost(work, &format!("{failure:?}"));
                return false;
            }
        }
        work.stretch = Some(Stretch {
            states,
            claims: BTreeMap::new(),
            shares: BTreeMap::new(),
            records: 0,
            grew: Instant::now(),
            is_full: false,
        });
        true
    }

    async fn take_chosen(&self, work: &mut Work, chosen: &[Chosen]) {
        let (Some(mut connection), Some(generation), Some(mut stretch)) = (
            work.connection.take(),
            work.generation.clone(),
            work.stretch.take(),
        ) else {
            return;
        };
        for Chosen { partition, .. } in chosen {
            if let Some(State::Running(running)) = work.partitions.get_mut(partition) {
                running.held.records.make_contiguous();
            }
        }
        let held = |chosen: &Chosen| match work.partitions.get_key_value(&chosen.partition) {
            Some((partition, State::Running(running))) => {
                let records = &running.held.records.as_slices().0[..chosen.count];
                Some((partition, records, running))
            }
            _ => None,
        };
        let held: Vec<(&TopicPartition, &[Record], &Running)> =
            chosen.iter().filter_map(held).collect();
        let taken = self.take_held(work, &mut connection, &generation, &mut stretch, &held);
        let taken = match taken.await {
            Ok(taken) => taken,
            Err(failure) => {
                let why = format!("{failure:?}");
                work.stretch = Some(stretch);
                work.ordinary = self.ordinary();
                self.forget_stretch(work, &why);
                return self.connection_lost(work, &why);
            }
        };
        work.connection = Some(connection);
        if let Some(at) = taken.spoilt {
            // Next time it is written before that record, which goes the ordinary way.
            work.stops.insert(at.0, at.1);
            work.stretch = Some(stretch);
            return self.forget_stretch(work, "an event was refused");
        }
        let now = Instant::now();
        for (partition, count) in taken.counts {
            let Some(State::Running(running)) = work.partitions.get_mut(&partition) else {
                continue;
            };
            if let Some(last) = count
                .checked_sub(1)
                .and_then(|l| running.held.records.get(l))
            {
                running.applied_time = last.time().or(running.applied_time);
                running.next = NextOffset::after(last.offset());
                stretch.grew = now;
            }
            running.held.remove(count);
        }
        if taken.is_cut {
            stretch.is_full = true;
            work.ordinary = self.ordinary();
        }
        work.held_since = None;
        work.stretch = Some(stretch);
    }

    /// Decodes and takes in; adds to the stretch's shares what was taken.
    async fn take_held(
        &self,
        work: &Work,
        connection: &mut PgConnection,
        generation: &Generation,
        stretch: &mut Stretch,
        held: &[(&TopicPartition, &[Record], &Running)],
    ) -> Result<OfBatch, Failure> {
        let shares: Vec<(&TopicPartition, &[Record])> = held
            .iter()
            .map(|(partition, records, _)| (*partition, *records))
            .collect();
        let Ok(events) = self.decoder.read(&shares).await else {
            // Nothing is taken in, and nothing was asked of the database.
            return Ok(OfBatch {
                is_cut: true,
                ..OfBatch::default()
            });
        };
        let offsets = |(partition, records, running): &(&TopicPartition, &[Record], &Running)| {
            let mut all = Offsets::of(partition, running.claim.incarnation, running.next.get());
            all.to = records.last().map_or(all.from, |last| last.offset() + 1);
            all
        };
        let offsets: Vec<Offsets> = held.iter().map(offsets).collect();
        let applier = self.applier(work, generation);
        let load = bulk::load(
            &applier,
            connection,
            &mut *stretch.states,
            &events,
            &offsets,
        );
        // I5: what such a record emits must be kept.
        let kept = store::within("loading states", applier.timeouts.transaction(), load).await?;
        let is_plain = |event| {
            if kept.is_empty() && work.stops.is_empty() {
                return true;
            }
            let share = events
                .shares
                .partition_point(|share| share.refs.end <= event);
            let (partition, _, running) = held[share];
            let offset = events.records[event as usize].offset();
            let record = Offsets::of(partition, running.claim.incarnation, offset);
            work.stops.get(partition) != Some(&offset) && !kept.has(&record)
        };
        let taken = stretch.states.take(&events, &is_plain);
        let count = taken.outcomes.len();
        if taken.is_spoilt {
            let share = events
                .shares
                .partition_point(|share| share.refs.end as usize <= count);
            return Ok(OfBatch {
                spoilt: Some((held[share].0.clone(), events.records[count].offset())),
                ..OfBatch::default()
            });
        }
        let mut counts = Vec::new();
        for (share, (partition, records, running)) in events.shares.iter().zip(held) {
            let begin = (share.refs.start as usize).min(count);
            let outcomes = &taken.outcomes[begin..(share.refs.end as usize).min(count)];
            let Some(last) = outcomes.len().checked_sub(1).map(|last| &records[last]) else {
                continue;
            };
            let claims = stretch.claims.entry((*partition).clone());
            claims.or_insert_with(|| running.claim.clone());
            let of_partition = stretch.shares.entry((*partition).clone());
            let of_partition = of_partition.or_insert_with(|| Share {
                claim: running.claim.clone(),
                from: running.next,
                to: running.next,
                consumed: 0,
                totals: Totals::default(),
                anchor: None,
            });
            of_partition.to = NextOffset::after(last.offset());
            of_partition.anchor = Some(last.anchor());
            let taken = i64::try_from(outcomes.len()).unwrap_or(i64::MAX);
            of_partition.consumed += taken;
            stretch.records += taken;
            for outcome in outcomes {
                count_as(&mut of_partition.totals, *outcome);
            }
            counts.push(((*partition).clone(), outcomes.len()));
        }
        Ok(OfBatch {
            counts,
            is_cut: count < events.records.len(),
            spoilt: None,
        })
    }

    /// Writes what was taken in. Afterwards nothing is, unless it is to be tried again.
    pub(super) async fn write_stretch(&self, work: &mut Work) {
        self.forget_unfounded(work);
        let Some(mut stretch) = work.stretch.take() else {
            return;
        };
        if stretch.shares.is_empty() {
            return;
        }
        let (Some(connection), Some(generation)) =
            (work.connection.take(), work.generation.clone())
        else {
            work.stretch = Some(stretch);
            return self.forget_stretch(work, "there is no connection");
        };
        let began = Instant::now();
        let batch_id = Uuid::new_v4();
        let unanswered = work.unknown.replace(batch_id);
        let (connection, result) = {
            let moves: Vec<Advance<'_>> = stretch.shares.iter().map(Share::advance).collect();
            let applier = self.applier(work, &generation);
            let write = bulk::write(&applier, connection, batch_id, &moves, &*stretch.states);
            ending_stragglers(&self.database, &self.owner, &self.projection.name, write).await
        };
        work.unknown = unanswered;
        work.connection = connection;
        let moved: Vec<(TopicPartition, usize, NextOffset)> = stretch
            .shares
            .iter()
            .map(|(partition, share)| (partition.clone(), 0, share.to))
            .collect();
        let records = stretch.records;
        match result {
            Ok(phases) => {
                let mut totals = Totals::default();
                stretch
                    .shares
                    .values()
                    .for_each(|share| totals.add(&share.totals));
                let applied = Applied {
                    totals,
                    messages: 0,
                    failed: vec![false; usize::try_from(records).unwrap_or(WINDOW).min(WINDOW)],
                    parked: Vec::new(),
                    to_drain: Vec::new(),
                    phases,
                };
                let took = began.elapsed();
                let (projection, bytes) = (&self.projection.name, stretch.states.bytes());
                info!(
                    projection,
                    records,
                    bytes,
                    ?took,
                    "what was taken in is written"
                );
                self.batch_applied(work, &moved, applied, took).await;
                // What was read is as good as it was: gates are compared again.
                let forget = stretch.states.bytes() >= self.limits.bulk_bytes_max;
                let is_held = work.connection.is_some();
                if is_held && work.ordinary == 0 && self.is_far_behind(work) {
                    stretch.states.written(forget);
                    stretch.shares.clear();
                    stretch.records = 0;
                    stretch.is_full = false;
                    stretch.grew = Instant::now();
                    work.stretch = Some(stretch);
                }
            }
            Err(unwritten) => {
                let (class, why) = match unwritten {
                    Unwritten::Moved => {
                        work.ordinary = usize::MAX;
                        let why = "an entity has events in partitions of another writer too";
                        (Class::Terminal, why.to_owned())
                    }
                    Unwritten::Failed(Failure::Store(error)) => (error.class(), error.to_string()),
                    Unwritten::Failed(Failure::Handler { class, why, .. }) => (class, why),
                    Unwritten::Failed(Failure::Unknown(error)) => {
                        work.unknown = Some(batch_id);
                        let why = format!("the commit was not answered: {error}");
                        (Class::Transient, why)
                    }
                    Unwritten::Failed(Failure::Refused) => {
                        work.stretch = Some(stretch);
                        return self.forget_stretch(work, "refused");
                    }
                    Unwritten::Failed(failure) => (Class::Terminal, format!("{failure:?}")),
                };
                if class != Class::Transient {
                    // The ordinary way finds the record, or says what is wrong.
                    let again = usize::try_from(records).unwrap_or(usize::MAX);
                    let again = again.saturating_add(self.ordinary());
                    work.ordinary = work.ordinary.max(again);
                } else if work.connection.is_some() {
                    stretch.is_full = true;
                    work.stretch = Some(stretch);
                    return self.retry_later(work, &moved, &why).await;
                }
                work.stretch = Some(stretch);
                self.forget_stretch(work, &why);
                if work.connection.is_none() {
                    self.connection_lost(work, &why);
                }
            }
        }
    }

    fn applier<'a>(&'a self, work: &'a Work, generation: &'a Generation) -> Applier<'a> {
        Applier {
            projection: &self.projection,
            decoder: &self.decoder,
            generation,
            timeouts: self.database.timeouts,
            owner: &self.owner,
            synchronous_commit: self.limits.synchronous_commit,
            secrets: &self.secrets,
            with_headers: work.with_headers,
            brake: &work.brake,
        }
    }
}

/// What became of a batch.
#[derive(Default)]
struct OfBatch {
    /// The first records of each partition that are taken in.
    counts: Vec<(TopicPartition, usize)>,
    /// The next one is not plain.
    is_cut: bool,
    /// The record that has spoilt all of it.
    spoilt: Option<(TopicPartition, i64)>,
}
