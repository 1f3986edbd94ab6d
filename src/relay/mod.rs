//! Sends the outbox to Kafka: in number order within each stream, at least once, always with the same
//! id, and never what a crash of the database could take back (I9).
//!
//! Reading and barrier are one transaction: the rows are read, then the relay's own row is written
//! with a synchronous commit, which makes all that was visible to the read durable. Only rows read in
//! it are sent. Deliveries are awaited in order; the first that fails stops its stream, and the stream
//! starts again from the first row that is not acknowledged, with one message, then two, then four:
//! messages travel together, and the broker refuses all that travel with one it does not take. The producer
//! stops at a refused message too, since what is behind it would otherwise arrive first, and a new one goes
//! on. A lost connection drops rows and cursors from memory: what is true is read again.
//!
//! There is deliberately no per-row mark, no SKIP LOCKED over messages and no transaction-id horizon:
//! numbers are dense and in commit order, so a cursor is enough.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::DeliveryFuture;
use sqlx::PgConnection;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::engine::backoff;
use crate::failpoint;
use crate::kafka::{Connection, Enqueued, Producer, delivered};
use crate::store::relay::{self, Lease, Outgoing};
use crate::store::{self, Database, transaction};
use crate::types::Header;

/// Messages of one window, shared out to the streams so that none waits for another's backlog.
const WINDOW: i64 = 4_000;
/// A stream's share of the window, at least.
const SHARE_MIN: i64 = 20;
/// Bytes of one window, about.
const WINDOW_BYTES: i64 = 16 << 20;
/// How often an idle relay looks for messages that nobody in this process has put there.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What a relay works with.
pub(crate) struct Relay {
    pub(crate) database: Database,
    pub(crate) kafka: Connection,
    pub(crate) owner: String,
    pub(crate) lease: Duration,
    /// Rings when a batch of this process has put messages in the outbox.
    pub(crate) wake: Arc<Notify>,
    pub(crate) stop: CancellationToken,
}

/// Why a turn ended early. Nothing is lost: rows and cursors are read again.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("kafka: {0}")]
    Kafka(#[from] KafkaError),
    #[error("a lease was lost while messages were under way")]
    LeaseLost,
}

/// A stream this relay may send.
struct Held {
    lease: Lease,
    /// The cursor in memory is ahead of the stored one.
    unsaved: bool,
    failures: u32,
    not_before: Instant,
    /// How many messages of the next window may be this stream's, at most: one after a failure.
    most: i64,
}

/// What is forgotten when the connection is lost.
struct Session {
    connection: PgConnection,
    producer: Producer,
    held: BTreeMap<String, Held>,
    took: Option<Instant>,
    renewed: Instant,
}

/// A message under way.
struct UnderWay {
    stream: String,
    number: i64,
    delivery: DeliveryFuture,
}

impl Relay {
    /// Sends until told to stop, then gives the leases up.
    pub(crate) async fn run(self) {
        let mut session: Option<Session> = None;
        let mut failures = 0;
        while !self.stop.is_cancelled() {
            let turn = self.turn(&mut session).await;
            let pause = match turn {
                Ok(true) => {
                    failures = 0;
                    continue;
                }
                Ok(false) => {
                    failures = 0;
                    LOOK_EVERY
                }
                Err(error) => {
                    failures += 1;
                    warn!(%error, failures, "relay: reading again what is sent");
                    if let Some(session) = session.take() {
                        session.producer.purge();
                    }
                    backoff::delay(failures, fastrand::f64()).max(LOOK_EVERY)
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.wake.notified(), if failures == 0 => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        failpoint::reach(failpoint::STOP_BEFORE_LEASES);
        if let Some(mut session) = session
            && let Err(error) = self.release(&mut session).await
        {
            warn!(%error, "relay: leases not given up; they will run out");
        }
    }

    /// Takes free streams, reads a window, sends it. Says whether there was anything to send.
    async fn turn(&self, session: &mut Option<Session>) -> Result<bool, Error> {
        let session = match session {
            Some(session) => session,
            None => session.insert(Session {
                connection: self
                    .database
                    .connect(&format!("tidegate {} relay", self.owner))
                    .await?,
                producer: self.producer()?,
                held: BTreeMap::new(),
                took: None,
                renewed: Instant::now(),
            }),
        };
        if session
            .took
            .is_none_or(|took| took.elapsed() >= self.lease / 4)
        {
            self.within(self.take(session)).await?;
        }
        let rows = self.within(self.read_durably(session)).await?;
        let any = !rows.is_empty();
        if any {
            failpoint::reach(failpoint::RELAY_AFTER_BARRIER);
            self.send(session, rows).await?;
            failpoint::reach(failpoint::RELAY_BEFORE_CURSOR);
        }
        Ok(any)
    }

    fn producer(&self) -> Result<Producer, KafkaError> {
        Producer::new(&self.kafka, &format!("tidegate-relay-{}", self.owner))
    }

    async fn within<T>(
        &self,
        answer: impl Future<Output = Result<T, store::Error>>,
    ) -> Result<T, store::Error> {
        store::within("the relay", self.database.timeouts.transaction(), answer).await
    }

    async fn begin(&self, connection: &mut PgConnection) -> Result<(), store::Error> {
        let name = format!("tidegate {} relay", self.owner);
        let timeouts = &self.database.timeouts;
        transaction::begin(connection, transaction::OWN_SEARCH_PATH, &name, timeouts).await
    }

    async fn take(&self, session: &mut Session) -> Result<(), store::Error> {
        self.begin(&mut session.connection).await?;
        // A new session holds nothing, but the one before it may have: no need to wait until that runs out.
        let own = session.took.is_none();
        let leases = relay::take(&mut session.connection, &self.owner, self.lease, own).await?;
        transaction::commit(&mut session.connection).await?;
        let now = Instant::now();
        session.took = Some(now);
        for lease in leases {
            info!(
                stream = lease.stream,
                sent_through = lease.sent_through,
                "relay: stream taken"
            );
            let held = Held {
                lease,
                unsaved: false,
                failures: 0,
                not_before: now,
                most: WINDOW,
            };
            session.held.insert(held.lease.stream.clone(), held);
        }
        Ok(())
    }

    /// Reads what is to be sent, and makes it durable: rows and barrier in one transaction (I9). The
    /// barrier also stores the cursors of the window before, and renews the leases.
    async fn read_durably(&self, session: &mut Session) -> Result<Vec<Outgoing>, store::Error> {
        let now = Instant::now();
        let ready = session.held.values().filter(|held| held.not_before <= now);
        let count = i64::try_from(ready.clone().count()).unwrap_or(WINDOW);
        let share = (WINDOW / count.max(1)).max(SHARE_MIN);
        let ready: Vec<(&Lease, i64)> = ready
            .map(|held| (&held.lease, held.most.min(share)))
            .collect();
        let unsaved = session.held.values().any(|held| held.unsaved);
        let due = session.renewed.elapsed() >= self.lease / 3;
        if ready.is_empty() && !unsaved && !due {
            return Ok(Vec::new());
        }
        let connection = &mut session.connection;
        self.begin(connection).await?;
        let mut rows = relay::read(connection, &ready, WINDOW_BYTES).await?;
        if rows.is_empty() && !unsaved && !due {
            transaction::rollback(connection).await?;
            return Ok(rows);
        }
        let all: Vec<&Lease> = session.held.values().map(|held| &held.lease).collect();
        let still: BTreeSet<String> = relay::barrier(connection, &all, self.lease)
            .await?
            .into_iter()
            .collect();
        transaction::commit(connection).await?; // I9: synchronous
        if unsaved {
            failpoint::reach(failpoint::RELAY_AFTER_CURSOR);
        }
        session.renewed = now;
        session.held.retain(|stream, held| {
            held.unsaved = false;
            let kept = still.contains(stream);
            if !kept {
                warn!(stream, "relay: lease lost to another relay");
            }
            kept
        });
        rows.retain(|row| still.contains(&row.stream));
        Ok(rows)
    }

    /// Sends a window and moves the cursors in memory over what the broker has acknowledged.
    async fn send(&self, session: &mut Session, rows: Vec<Outgoing>) -> Result<(), Error> {
        let mut under_way: VecDeque<UnderWay> = VecDeque::new();
        let mut stopped: BTreeSet<String> = BTreeSet::new();
        let streams: BTreeSet<String> = rows.iter().map(|row| row.stream.clone()).collect();
        'rows: for row in rows {
            if stopped.contains(&row.stream) {
                continue;
            }
            let headers = headers(&row);
            loop {
                let (key, payload) = (row.key.as_deref(), row.payload.as_deref());
                match session.producer.enqueue(&row.topic, key, payload, &headers) {
                    Enqueued::Yes(delivery) => {
                        under_way.push_back(UnderWay {
                            stream: row.stream.clone(),
                            number: row.number,
                            delivery,
                        });
                        break;
                    }
                    Enqueued::Full => {
                        // Nothing of ours may be under way, and the queue full all the same: then it
                        // empties by itself.
                        match under_way.pop_front() {
                            Some(first) => self.settle(session, first, &mut stopped).await?,
                            None => tokio::time::sleep(Duration::from_millis(10)).await,
                        }
                        if stopped.contains(&row.stream) {
                            break;
                        }
                    }
                    // It has stopped at a message that it took before: which one is told below.
                    Enqueued::Refused(_) if session.producer.failed_for_good().is_some() => {
                        break 'rows;
                    }
                    Enqueued::Refused(error) => {
                        fail(session, &row.stream, row.number, &error, &mut stopped);
                        break;
                    }
                }
            }
        }
        failpoint::reach(failpoint::RELAY_HANDED_OVER);
        while let Some(next) = under_way.pop_front() {
            self.settle(session, next, &mut stopped).await?;
        }
        for stream in streams.difference(&stopped) {
            if let Some(held) = session.held.get_mut(stream) {
                held.most = (held.most * 2).min(WINDOW);
            }
        }
        if let Some(error) = session.producer.failed_for_good() {
            let mut stopped = stopped.iter().filter_map(|s| session.held.get(s));
            if !stopped.any(|held| held.failures > 0) {
                return Err(error.into());
            }
            session.producer = self.producer()?;
        }
        Ok(())
    }

    /// Waits for one delivery, in order. Leases are renewed meanwhile: a broker may be away for long. A stop
    /// does not wait for it.
    async fn settle(
        &self,
        session: &mut Session,
        message: UnderWay,
        stopped: &mut BTreeSet<String>,
    ) -> Result<(), Error> {
        let UnderWay {
            stream,
            number,
            delivery,
        } = message;
        let mut answer = std::pin::pin!(delivered(delivery));
        let asked = Instant::now();
        let result = loop {
            let renew_in = (self.lease / 3).saturating_sub(session.renewed.elapsed());
            tokio::select! {
                biased;
                result = &mut answer => break result,
                () = self.stop.cancelled() => {
                    session.producer.purge();
                    stopped.extend(session.held.keys().cloned());
                    return Ok(());
                }
                () = tokio::time::sleep(renew_in) => {
                    // What a producer that has stopped would have tried again is not answered by itself.
                    if session.producer.failed_for_good().is_some() {
                        session.producer.purge();
                    }
                    if asked.elapsed() >= self.lease
                        && let Some(held) = session.held.get_mut(&stream)
                    {
                        let waited = asked.elapsed();
                        warn!(stream, number, ?waited, "relay: the broker does not answer");
                        held.lease.last_error =
                            format!("message {number}: no answer from the broker yet");
                    }
                    self.renew(session).await?;
                }
            }
        };
        if stopped.contains(&stream) {
            return Ok(()); // behind a failed one: sent again, whatever became of it
        }
        match result {
            Ok(()) => {
                if let Some(held) = session.held.get_mut(&stream) {
                    held.lease.sent_through = number;
                    held.lease.last_error.clear();
                    held.unsaved = true;
                    held.failures = 0;
                }
            }
            // Taken back by us or by the producer, because another stream has failed: nothing of this one's fault.
            Err(KafkaError::MessageProduction(
                RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight,
            )) => {
                stopped.insert(stream);
            }
            Err(error) => {
                session.producer.purge();
                fail(session, &stream, number, &error, stopped);
            }
        }
        Ok(())
    }

    async fn renew(&self, session: &mut Session) -> Result<(), Error> {
        let renew = async {
            self.begin(&mut session.connection).await?;
            let all: Vec<&Lease> = session.held.values().map(|held| &held.lease).collect();
            let still = relay::barrier(&mut session.connection, &all, self.lease).await?;
            transaction::commit(&mut session.connection).await?;
            Ok(still.len() == all.len())
        };
        let kept = self.within(renew).await?;
        session.renewed = Instant::now();
        if kept { Ok(()) } else { Err(Error::LeaseLost) }
    }

    async fn release(&self, session: &mut Session) -> Result<(), store::Error> {
        let release = async {
            self.begin(&mut session.connection).await?;
            let all: Vec<&Lease> = session.held.values().map(|held| &held.lease).collect();
            relay::barrier(&mut session.connection, &all, self.lease).await?;
            relay::release(&mut session.connection, &all).await?;
            transaction::commit(&mut session.connection).await
        };
        self.within(release).await
    }
}

/// Stops a stream at a message that could not be sent; it starts again from there, later.
fn fail(
    session: &mut Session,
    stream: &str,
    number: i64,
    error: &KafkaError,
    stopped: &mut BTreeSet<String>,
) {
    stopped.insert(stream.to_owned());
    if let Some(held) = session.held.get_mut(stream) {
        held.failures = held.failures.saturating_add(1);
        held.most = 1;
        held.not_before = Instant::now() + backoff::delay(held.failures, fastrand::f64());
        held.lease.last_error = format!("message {number}: {error}");
        held.unsaved = true;
        warn!(stream, number, %error, failures = held.failures, "relay: not sent; the stream waits");
    }
}

/// The headers of a message: CloudEvents' Kafka binding, then the emitter's own.
fn headers(row: &Outgoing) -> Vec<Header> {
    let header = |name: &str, value: String| Header {
        name: name.to_owned(),
        value: Some(value.into_bytes()),
    };
    let time = row.occurred_at.unwrap_or(row.created_at);
    let mut headers = vec![
        header("ce_specversion", "1.0".to_owned()),
        header("ce_id", row.id.to_string()),
        header("ce_source", row.source.clone()),
        header("ce_type", row.kind.clone()),
        header(
            "ce_time",
            time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
        ),
        header("ce_sequence", row.number.to_string()),
    ];
    let own = row.header_names.iter().zip(&row.header_values);
    headers.extend(own.map(|(name, value)| Header {
        name: name.clone(),
        value: value.clone(),
    }));
    headers
}
