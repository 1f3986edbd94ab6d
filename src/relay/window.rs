//! One window: handed to the producer, and every answer awaited in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tracing::warn;

use super::message::{Values, headers};
use super::{Error, Relay, Session, WINDOW};
use crate::engine::backoff;
use crate::engine::quarantine::{Failure, Verdict, decide};
use crate::engine::redact::TEXT_MAX;
use crate::failpoint;
use crate::kafka::{Delivery, Enqueued, delivered};
use crate::store::relay::Outgoing;
use crate::store::relay_quarantine::Entry;
use crate::telemetry;

/// The longest that the brokers are asked for one topic.
const TOPIC_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a message was not sent, and the words for it.
type Refusal = (Failure, String);

/// What becomes of a message of the window.
enum Answer {
    Coming(Delivery),
    /// It is in quarantine.
    PassedOver,
    /// It was not handed over.
    Refused(Refusal),
}

struct UnderWay {
    stream: String,
    number: i64,
    released: bool,
    answer: Answer,
}

#[derive(Default)]
struct Window {
    under_way: VecDeque<UnderWay>,
    /// Of these nothing more is handed over.
    closed: BTreeSet<String>,
    /// Of these nothing more counts: a message has failed, or was taken back.
    stopped: BTreeSet<String>,
    /// A message has failed.
    failed: bool,
    /// Messages that were handed to the producer.
    handed_over: u64,
    sent: u64,
    repeated: u64,
}

impl Relay {
    /// Sends a window and moves the cursors in memory over what the broker has acknowledged.
    pub(super) async fn send(
        &self,
        session: &mut Session,
        rows: Vec<Outgoing>,
    ) -> Result<(), Error> {
        let mut window = Window::default();
        let of_each = rows.chunk_by(|a, b| a.stream == b.stream);
        let streams: BTreeSet<String> = of_each.map(|rows| rows[0].stream.clone()).collect();
        let unknown = self.look_up(session, &rows).await?;
        for row in rows {
            if self.stop.is_cancelled() || session.producer.failed_for_good().is_some() {
                break;
            }
            if !window.closed.contains(&row.stream) {
                self.hand_over(session, &mut window, &unknown, row).await?;
            }
        }
        failpoint::reach(failpoint::RELAY_HANDED_OVER);
        // A suspect is alone, and released messages are read as such until they are resolved.
        let plain = window.handed_over > 1
            && window.closed.is_empty()
            && window.stopped.is_empty()
            && !window.under_way.iter().any(|one| one.released);
        let ahead = match plain && !self.stop.is_cancelled() {
            true => self.read_ahead(session).await?,
            false => Vec::new(),
        };
        while let Some(next) = window.under_way.pop_front() {
            self.settle(session, &mut window, next).await?;
        }
        telemetry::sent(window.sent, window.repeated);
        if window.stopped.is_empty() {
            session.ahead = ahead;
        } else {
            session.forget_ahead();
        }
        for stream in streams.difference(&window.stopped) {
            if let Some(held) = session.held.get_mut(stream) {
                held.most = (held.most * 2).min(WINDOW);
            }
        }
        if let Some(error) = session.producer.failed_for_good() {
            if !window.failed {
                return Err(error.into());
            }
            session.producer = self.producer()?;
        }
        Ok(())
    }

    /// Looks topics up that nothing was sent to yet, and says which are not to be had. librdkafka would keep a
    /// message to such a topic for a while, and with it everything that is awaited behind it.
    async fn look_up(
        &self,
        session: &mut Session,
        rows: &[Outgoing],
    ) -> Result<BTreeMap<String, Refusal>, Error> {
        let mut unknown: BTreeMap<String, Refusal> = BTreeMap::new();
        let mut away: Option<String> = None;
        for row in rows.iter().filter(|row| !row.passed_over) {
            let is_short = |partitions: &i32| row.partition.is_some_and(|p| p >= *partitions);
            let known = session.topics.get(&row.topic);
            if known.is_some_and(|known| !is_short(known)) || unknown.contains_key(&row.topic) {
                continue;
            }
            if let Some(error) = &away {
                unknown.insert(row.topic.clone(), (Failure::Elsewhere, error.clone()));
                continue;
            }
            let (producer, topic) = (session.producer.clone(), row.topic.clone());
            let asked = tokio::task::spawn_blocking(move || {
                producer.partitions(&topic, TOPIC_ANSWER_TIMEOUT)
            });
            let asked = async { asked.await.unwrap_or(Err(KafkaError::Canceled)) };
            let Some(answer) = self.patiently(session, asked, None).await? else {
                return Ok(unknown); // told to stop
            };
            match answer {
                Ok(partitions) => {
                    session.topics.insert(row.topic.clone(), partitions);
                }
                Err(error) => {
                    let failure = failure_of(&error);
                    let text = format!("topic `{}`: {error}", row.topic);
                    if failure == Failure::Elsewhere {
                        warn!(%error, topic = row.topic, "relay: the broker does not answer");
                        away = Some(text.clone());
                    }
                    unknown.insert(row.topic.clone(), (failure, text));
                }
            }
        }
        Ok(unknown)
    }

    async fn hand_over(
        &self,
        session: &mut Session,
        window: &mut Window,
        unknown: &BTreeMap<String, Refusal>,
        row: Outgoing,
    ) -> Result<(), Error> {
        let answer = if row.passed_over {
            Answer::PassedOver
        } else if let Some(refusal) = unknown.get(&row.topic) {
            Answer::Refused(refusal.clone())
        } else if let Some(refusal) = partition_refusal(session, &row) {
            Answer::Refused(refusal)
        } else {
            let values = Values::of(&row);
            let headers = headers(&row, &values, &self.headers);
            let place = (&*row.topic, row.partition);
            let (key, payload) = (row.key.as_deref(), row.payload.as_deref());
            loop {
                match session.producer.enqueue(place, key, payload, &headers) {
                    Enqueued::Yes(delivery) => {
                        window.count(session, &row);
                        break Answer::Coming(delivery);
                    }
                    // Nothing of ours may be under way, and the queue full all the same: then it empties by itself.
                    Enqueued::Full => match window.under_way.pop_front() {
                        Some(first) => {
                            self.settle(session, window, first).await?;
                            if window.stopped.contains(&row.stream) {
                                return Ok(());
                            }
                        }
                        None => {
                            let pause = tokio::time::sleep(Duration::from_millis(10));
                            if self.patiently(session, pause, None).await?.is_none() {
                                return Ok(()); // told to stop
                            }
                        }
                    },
                    // It has stopped at a message that it took before: which one is told by its answer.
                    Enqueued::Refused(_) if session.producer.failed_for_good().is_some() => {
                        return Ok(());
                    }
                    Enqueued::Refused(error) => {
                        break Answer::Refused((failure_of(&error), error.to_string()));
                    }
                }
            }
        };
        if let Answer::Refused(_) = answer {
            window.closed.insert(row.stream.clone());
        }
        if let Some(held) = session.held.get_mut(&row.stream)
            && !row.released
        {
            held.read_through = row.number;
        }
        window.under_way.push_back(UnderWay {
            stream: row.stream,
            number: row.number,
            released: row.released,
            answer,
        });
        Ok(())
    }

    /// Waits for one answer, in order.
    async fn settle(
        &self,
        session: &mut Session,
        window: &mut Window,
        message: UnderWay,
    ) -> Result<(), Error> {
        let UnderWay {
            stream,
            number,
            released,
            answer,
        } = message;
        let answer = match answer {
            Answer::PassedOver => {
                if let Some(held) = session.held.get_mut(&stream)
                    && !released
                    && !window.stopped.contains(&stream)
                {
                    held.lease.sent_through = number;
                    held.unsaved = true;
                }
                return Ok(());
            }
            Answer::Refused(refusal) => {
                // Whatever else was handed over has no part in it.
                self.fail(session, window, (&stream, number, released), refusal, true);
                return Ok(());
            }
            Answer::Coming(delivery) => {
                let place = Some((&*stream, number));
                let answer = self.patiently(session, delivered(delivery), place);
                let Some(answer) = answer.await? else {
                    session.producer.purge();
                    window.stopped.extend(session.held.keys().cloned());
                    return Ok(());
                };
                answer
            }
        };
        if window.stopped.contains(&stream) {
            return Ok(()); // behind a failed one: sent again, whatever became of it
        }
        match answer {
            Ok(()) => {
                if let Some(held) = session.held.get_mut(&stream) {
                    match released {
                        true => held.sent_again.push(number),
                        false => held.lease.sent_through = number,
                    }
                    held.lease.last_error.clear();
                    held.lease.attempts = 0;
                    held.suspect = false;
                    held.failures = 0;
                    held.unsaved = true;
                    window.sent += 1;
                }
            }
            // Taken back by us or by the producer, because another stream has failed: nothing of this one's fault.
            Err(KafkaError::MessageProduction(
                RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight,
            )) => {
                window.stopped.insert(stream);
            }
            Err(error) => {
                session.producer.purge();
                let alone = window.handed_over == 1;
                let refusal = (failure_of(&error), error.to_string());
                self.fail(session, window, (&stream, number, released), refusal, alone);
            }
        }
        Ok(())
    }

    /// Waits for an answer of the brokers. Leases are renewed meanwhile: a broker may be away for long. A stop
    /// does not wait for it: none then.
    async fn patiently<T>(
        &self,
        session: &mut Session,
        answer: impl Future<Output = T>,
        message: Option<(&str, i64)>,
    ) -> Result<Option<T>, Error> {
        let mut answer = pin!(answer);
        if let Some(answer) = answer.as_mut().now_or_never() {
            return Ok(Some(answer));
        }
        let asked = Instant::now();
        loop {
            let renew_in = (self.lease / 3).saturating_sub(session.renewed.elapsed());
            tokio::select! {
                biased;
                answer = &mut answer => return Ok(Some(answer)),
                () = self.stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(renew_in) => {}
            }
            // What a producer that has stopped would have tried again is not answered by itself.
            if session.producer.failed_for_good().is_some() {
                session.producer.purge();
            }
            if let Some((stream, number)) = message
                && asked.elapsed() >= self.lease
                && let Some(held) = session.held.get_mut(stream)
            {
                let waited = asked.elapsed();
                warn!(stream, number, ?waited, "relay: the broker does not answer");
                held.lease.last_error = format!("message {number}: no answer from the broker yet");
            }
            self.renew(session).await?;
        }
    }

    /// Stops a stream at a message that was not sent; it starts again from there, or behind it.
    fn fail(
        &self,
        session: &mut Session,
        window: &mut Window,
        (stream, number, released): (&str, i64, bool),
        (failure, error): Refusal,
        alone: bool,
    ) {
        if !window.stopped.insert(stream.to_owned()) {
            return; // behind a failed one
        }
        window.failed = true;
        telemetry::not_sent(failure.reason());
        // It may have been deleted or made again.
        session.topics.clear();
        let Some(held) = session.held.get_mut(stream) else {
            return;
        };
        held.most = 1;
        held.unsaved = true;
        let mut attempts = u32::try_from(held.lease.attempts).unwrap_or(0);
        attempts += u32::from(alone);
        let text: String = error.chars().take(TEXT_MAX - 100).collect();
        held.lease.last_error = format!("message {number}: {text}");
        let now = Instant::now();
        match decide(failure, alone, attempts, self.attempts_max) {
            Verdict::Wait => {
                held.failures = held.failures.saturating_add(1);
                held.not_before = now + backoff::delay(held.failures, fastrand::f64());
                warn!(stream, number, error, "relay: not sent; the stream waits");
            }
            Verdict::Alone => {
                held.suspect = true;
                warn!(stream, number, error, "relay: not sent; trying it alone");
            }
            Verdict::Again => {
                held.suspect = true;
                held.lease.attempts = i32::try_from(attempts).unwrap_or(i32::MAX);
                held.not_before = now + backoff::delay(attempts, fastrand::f64());
                warn!(
                    stream,
                    number, error, attempts, "relay: not sent; trying it again"
                );
            }
            Verdict::Quarantine => {
                held.suspect = false;
                held.lease.attempts = 0;
                held.lease.last_error.clear();
                if !released {
                    held.lease.sent_through = number;
                }
                held.entry = Some(Entry {
                    stream: stream.to_owned(),
                    number,
                    reason: failure.reason(),
                    detail: text,
                    holds_topic: failure.is_of_topic(),
                    attempts,
                });
                warn!(stream, number, error, attempts, "relay: put in quarantine");
            }
        }
    }
}

impl Window {
    fn count(&mut self, session: &mut Session, row: &Outgoing) {
        self.handed_over += 1;
        if let Some(held) = session.held.get_mut(&row.stream)
            && !row.released
        {
            self.repeated += u64::from(row.number <= held.handed_through);
            held.handed_through = held.handed_through.max(row.number);
        }
    }
}

/// A partition that the topic does not have.
fn partition_refusal(session: &Session, row: &Outgoing) -> Option<Refusal> {
    let (partition, partitions) = (row.partition?, *session.topics.get(&row.topic)?);
    let text = format!(
        "topic `{}` has {partitions} partitions, and no partition {partition}",
        row.topic
    );
    (partition >= partitions).then_some((Failure::Refused, text))
}

/// Whose fault an error is.
fn failure_of(error: &KafkaError) -> Failure {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge) => Failure::TooLarge,
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::InvalidTopic) => {
            Failure::UnknownTopic
        }
        Some(Code::TopicAuthorizationFailed) => Failure::NoPermission,
        Some(
            Code::InvalidRecord
            | Code::InvalidMessage
            | Code::InvalidMessageSize
            | Code::InvalidTimestamp
            | Code::MessageBatchTooLarge
            | Code::PolicyViolation
            | Code::UnknownPartition
            | Code::UnsupportedForMessageFormat,
        ) => Failure::Refused,
        _ => Failure::Elsewhere,
    }
}
