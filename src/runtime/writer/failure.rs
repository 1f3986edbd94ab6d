//! What a failed batch means: again, smaller, halted, or claimed anew.

use std::time::{Duration, Instant};

use tracing::{error, info, warn};
use uuid::Uuid;

use super::{GAP_LOOK_EVERY, LOOK_EVERY, State, Work, Writer, jitter};
use crate::engine::isolation::{self, Next};
use crate::engine::parking::{Reason, Rejection};
use crate::engine::{Class, backoff};
use crate::failpoint;
use crate::health::Doing;
use crate::runtime::apply::{Failure, Then};
use crate::runtime::refusal::Refusal;
use crate::store;
use crate::store::position::{self, Condition};
use crate::telemetry;
use crate::types::{NextOffset, Record, TopicPartition};

/// How long at least, and at most, until a registry is asked for a schema again.
const SCHEMA_PAUSE_MIN: Duration = Duration::from_millis(100);
const SCHEMA_PAUSE_MAX: Duration = Duration::from_secs(5);

impl Writer {
    pub(super) async fn batch_failed(
        &self,
        work: &mut Work,
        moved: &[(TopicPartition, usize, NextOffset)],
        batch_id: Uuid,
        failure: Failure,
        refusal: Option<Refusal>,
    ) {
        let projection = &self.projection.name;
        match failure {
            Failure::Rejected {
                at,
                rejection,
                then,
            } => {
                self.isolate(work, moved, at, rejection, then).await;
            }
            Failure::Waits { at, why } => self.wait_for_schema(work, moved, at, &why).await,
            Failure::NeedsHeaders => {
                work.with_headers = true;
                info!(
                    projection,
                    "a record is to be parked; fetching again with headers"
                );
                // Also of those that are not in this batch: what is held of them came without headers too.
                for state in work.partitions.values_mut() {
                    if matches!(state, State::Running(_)) {
                        *state = State::claim_at(Instant::now());
                    }
                }
            }
            Failure::Slow(why) => {
                let records: usize = moved.iter().map(|(_, count, _)| count).sum();
                work.batch_records_max = (records / 2).max(1);
                let why = format!("{why}; trying {} records at once", work.batch_records_max);
                self.connection_lost(work, &why);
            }
            // An outage is waited for however long it lasts (I10); a handler's own word may have a limit.
            Failure::Handler {
                class: Class::Transient,
                why,
                own: true,
                ..
            } if self.has_tried_enough(work, moved) => {
                let max = self.projection.attempts_max;
                let why = format!("given up after {max} attempts: {why}");
                let rejection = Rejection::new(Reason::Rejected, why);
                self.isolate(work, moved, None, rejection, Then::Halt).await;
            }
            Failure::Handler {
                class: Class::Transient,
                why,
                ..
            } => self.retry_later(work, moved, &why).await,
            Failure::Handler { why, .. } | Failure::NeedsToBeAlone(why) => {
                self.halt_all(work, moved, &why).await
            }
            Failure::Store(error) if error.class() == Class::Halt => {
                let why = format!("tidegate's own statement failed: {error}");
                self.halt_all(work, moved, &why).await;
            }
            Failure::Store(error) => self.retry_later(work, moved, &error.to_string()).await,
            Failure::Unknown(error) => {
                failpoint::reach(failpoint::UNKNOWN_BEFORE_CLAIM);
                work.unknown = Some(batch_id);
                let why =
                    format!("a commit was not answered, so the positions are read again: {error}");
                self.connection_lost(work, &why);
            }
            Failure::Refused => {
                let outcome = refusal.as_ref().map_or("unknown", Refusal::name);
                telemetry::batch_refused(projection, outcome);
                if matches!(
                    refusal,
                    Some(Refusal::Lost { .. } | Refusal::Taken | Refusal::Reset { .. })
                ) {
                    telemetry::fenced(projection);
                }
                match refusal {
                    Some(ended @ Refusal::TransactionEnded) => {
                        self.halt_all(work, moved, &ended.to_string()).await;
                    }
                    refusal => {
                        let why = refusal.map_or_else(|| "refused".to_owned(), |r| r.to_string());
                        for (partition, ..) in moved {
                            warn!(projection, %partition, why, "batch refused; claiming again");
                            let state = State::claim_at(Instant::now() + jitter(LOOK_EVERY / 4));
                            work.partitions.insert(partition.clone(), state);
                        }
                    }
                }
            }
        }
    }

    /// A partition waits for the schema of its next record, once all before it is applied; others go on.
    async fn wait_for_schema(
        &self,
        work: &mut Work,
        moved: &[(TopicPartition, usize, NextOffset)],
        at: u32,
        why: &str,
    ) {
        work.held_since = Some(Instant::now());
        let mut first: usize = 0;
        let holds = |(_, count, _): &&(TopicPartition, usize, NextOffset)| {
            let share = first..first + count;
            first = share.end;
            share.contains(&(at as usize))
        };
        let Some((partition, count, _)) = moved.iter().find(holds) else {
            return;
        };
        let before = at as usize + count - first;
        let Some(State::Running(running)) = work.partitions.get_mut(partition) else {
            return;
        };
        if before > 0 {
            running.limit = Some(before);
            return;
        }
        let failures = work.schema_waits.entry(partition.clone()).or_default();
        *failures = failures.saturating_add(1);
        let why = format!("attempt {failures}: {why}");
        let delay = backoff::delay(*failures, fastrand::f64());
        let delay = delay.clamp(SCHEMA_PAUSE_MIN, SCHEMA_PAUSE_MAX);
        warn!(projection = self.projection.name, %partition, why, "waiting for a schema");
        let claim = running.claim.clone();
        self.member.unfetch(partition);
        let state = match self.say(work, partition, Condition::Retrying, &why).await {
            true => State::Halted {
                claim,
                doing: Doing::Retrying,
                why: self.secrets.cleaned(&why),
                again: Some(Instant::now() + delay),
            },
            false => State::claim_at(Instant::now() + LOOK_EVERY + jitter(LOOK_EVERY)),
        };
        work.partitions.insert(partition.clone(), state);
    }

    /// Halts all partitions of a batch: what went wrong is no single record's fault.
    async fn halt_all(
        &self,
        work: &mut Work,
        moved: &[(TopicPartition, usize, NextOffset)],
        why: &str,
    ) {
        for (partition, ..) in moved {
            self.halt(work, partition, why, None).await;
        }
    }

    /// Goes on searching for the record at fault, or halts its partition.
    pub(super) async fn isolate(
        &self,
        work: &mut Work,
        moved: &[(TopicPartition, usize, NextOffset)],
        at: Option<u32>,
        rejection: Rejection,
        then: Then,
    ) {
        let why = &rejection.detail;
        // Without the error's text, which may quote a value.
        info!(
            projection = self.projection.name,
            reason = rejection.reason.name(),
            sqlstate = rejection.sqlstate.as_deref().unwrap_or_default(),
            "a record is refused; looking for it"
        );
        let mut first: usize = 0;
        let mut found: Option<TopicPartition> = None;
        for (partition, count, _) in moved {
            let share = first..first + count;
            first = share.end;
            let before = match at {
                Some(at) if share.contains(&(at as usize)) => Some(at as usize - share.start),
                Some(_) => continue,
                None => None,
            };
            let Some(State::Running(running)) = work.partitions.get_mut(partition) else {
                continue;
            };
            match isolation::after_failure(*count, moved.len() == 1, before) {
                Next::Try(limit) => running.limit = Some(limit),
                Next::Found => found = Some(partition.clone()),
            }
        }
        work.held_since = Some(Instant::now());
        let Some(partition) = found else { return };
        let Some(State::Running(running)) = work.partitions.get_mut(&partition) else {
            return;
        };
        let offset = running.held.records.front().map(Record::offset);
        if then == Then::Park {
            running.limit = Some(1);
            running.condemned = Some(rejection);
            return;
        }
        let why = format!("{partition} offset {}: {why}", offset.unwrap_or_default());
        let again = (then == Then::HaltAndLook).then(|| Instant::now() + GAP_LOOK_EVERY);
        let reason = rejection.reason.name();
        error!(projection = self.projection.name, %partition, offset, reason, "halting; `tidegate status` says why");
        self.halt_as(work, &partition, Condition::Halted, &why, again)
            .await;
    }

    /// Stops a partition until a person acts, or until `again`, if the claim is still the newest: a worker
    /// that is merely fenced has no opinion. Others go on.
    pub(super) async fn halt(
        &self,
        work: &mut Work,
        partition: &TopicPartition,
        why: &str,
        again: Option<Instant>,
    ) {
        self.tell_halt(partition, why);
        self.halt_as(work, partition, Condition::Halted, why, again)
            .await;
    }

    fn tell_halt(&self, partition: &TopicPartition, why: &str) {
        let why = self.secrets.cleaned(why);
        error!(projection = self.projection.name, %partition, why, "halting");
    }

    /// The same for a log that is another one than was applied: whoever resets or accepts it is to know (I5).
    pub(super) async fn halt_in_doubt(
        &self,
        work: &mut Work,
        partition: &TopicPartition,
        why: &str,
    ) {
        self.tell_halt(partition, why);
        self.halt_as(work, partition, Condition::HaltedInDoubt, why, None)
            .await;
    }

    async fn halt_as(
        &self,
        work: &mut Work,
        partition: &TopicPartition,
        condition: Condition,
        why: &str,
        again: Option<Instant>,
    ) {
        let projection = &self.projection.name;
        let Some(claim) = work
            .partitions
            .get(partition)
            .and_then(State::claim)
            .cloned()
        else {
            return;
        };
        self.member.unfetch(partition);
        let why = &*self.secrets.cleaned(why);
        telemetry::halted(projection);
        // What went wrong may have cost the connection; the halt must be told all the same.
        if work.connection.is_none() {
            let name = format!("tidegate {}", self.owner);
            work.connection = self.database.connect(&name).await.ok();
        }
        let state = match self.say(work, partition, condition, why).await {
            true => State::Halted {
                claim,
                doing: Doing::Halted,
                why: why.to_owned(),
                again,
            },
            false => State::claim_at(Instant::now() + LOOK_EVERY + jitter(LOOK_EVERY)),
        };
        work.partitions.insert(partition.clone(), state);
    }

    /// Stores how a partition fares. False if it could not, or if the claim is not the newest any more.
    pub(super) async fn say(
        &self,
        work: &mut Work,
        partition: &TopicPartition,
        condition: Condition,
        why: &str,
    ) -> bool {
        let Some(claim) = work.partitions.get(partition).and_then(State::claim) else {
            return false;
        };
        let Some(connection) = &mut work.connection else {
            return false;
        };
        let (name, limit) = (&self.projection.name, self.database.timeouts.statement);
        let set = position::set_condition(connection, name, partition, claim, condition, why);
        match store::within("storing a condition", limit, set).await {
            Ok(newest) => newest,
            Err(error) => {
                self.store_failed(work, &error);
                false
            }
        }
    }

    /// Whether a handler that asks to be tried again was, as often as is allowed, or is being searched for
    /// the record already.
    fn has_tried_enough(&self, work: &Work, moved: &[(TopicPartition, usize, NextOffset)]) -> bool {
        let max = self.projection.attempts_max;
        max > 0
            && moved.iter().any(|(partition, ..)| {
                matches!(work.partitions.get(partition), Some(State::Running(running))
                    if running.limit.is_some() || running.retries.saturating_add(1) >= max)
            })
    }

    /// The whole transaction again, later: with the records that are held, if the connection is good.
    pub(super) async fn retry_later(
        &self,
        work: &mut Work,
        moved: &[(TopicPartition, usize, NextOffset)],
        why: &str,
    ) {
        if work.connection.is_none() {
            return self.connection_lost(work, why);
        }
        self.back_off(work, why);
        telemetry::retried(&self.projection.name);
        warn!(
            projection = self.projection.name,
            why,
            failures = work.failures,
            "batch failed; trying again"
        );
        work.held_since = Some(Instant::now());
        for (partition, ..) in moved {
            if let Some(State::Running(running)) = work.partitions.get_mut(partition) {
                running.retries = running.retries.saturating_add(1);
                let why = format!("attempt {}: {why}", running.retries);
                self.say(work, partition, Condition::Retrying, &why).await;
            }
        }
    }

    pub(super) fn back_off(&self, work: &mut Work, why: &str) {
        work.trouble = self.secrets.cleaned(why);
        work.failures = work.failures.saturating_add(1);
        work.not_before = Instant::now() + backoff::delay(work.failures, fastrand::f64());
    }

    pub(super) fn store_failed(&self, work: &mut Work, error: &store::Error) {
        if error.connection_is_usable() {
            self.back_off(work, &error.to_string());
            warn!(projection = self.projection.name, %error, failures = work.failures, "trying again");
        } else {
            self.connection_lost(work, &error.to_string());
        }
    }

    /// Forgets everything that is held: what was committed is for the database to say. What is halted
    /// stays halted.
    pub(super) fn connection_lost(&self, work: &mut Work, why: &str) {
        self.back_off(work, why);
        telemetry::connection_lost(&self.projection.name);
        warn!(
            projection = self.projection.name,
            why,
            failures = work.failures,
            "connection given up; claiming again"
        );
        work.connection = None;
        work.held_since = None;
        // I6: also what was kept of what is written, which a crash of Postgres may have taken back.
        work.stretch = None;
        for state in work.partitions.values_mut() {
            if !matches!(state, State::Halted { .. }) {
                *state = State::claim_at(work.not_before);
            }
        }
    }
}
