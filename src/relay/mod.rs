//! Sends the outbox to Kafka: in number order within each stream, at least once, always with the same
//! id, and never what a crash of the database could take back (I9).
//!
//! Barrier and reading are one transaction: the relay's own rows are written, the messages are read, and a
//! synchronous commit makes all that was visible to the read durable. Only rows read in it are sent. Deliveries
//! are awaited in order; the first that fails stops its stream, and the stream starts again from the first row
//! that is not acknowledged. Messages travel together, and the broker refuses all that travel with one it does
//! not take; so every stream that met the refusal is tried with one message alone, then two, then four. The
//! producer stops at a refused message too, since what is behind it would otherwise arrive first, and a new
//! one goes on. A lost connection drops rows and cursors from memory: what is true is read again.
//!
//! A message that has failed alone, and often enough, is put in quarantine in the transaction that moves the
//! cursor past it; so is what is read later and has to wait behind it. What an operator releases there is sent
//! before anything else of its stream.
//!
//! There is deliberately no per-row mark, no SKIP LOCKED over messages and no transaction-id horizon:
//! numbers are dense and in commit order, so a cursor is enough. Nor is there LISTEN: a NOTIFY takes a lock
//! that all commits of the database share.

mod message;
mod retention;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use retention::Retention;

use rdkafka::error::KafkaError;
use sqlx::PgConnection;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::engine::backoff;
use crate::failpoint;
use crate::kafka::{Connection, Producer};
use crate::store::relay::{self, Cursor, Lease, Outgoing};
use crate::store::relay_quarantine::{self, Entry};
use crate::store::{self, Database, millis, transaction};
use crate::telemetry;
use crate::types::HeaderNames;

/// Messages of one window, shared out to the streams so that none waits for another's backlog. While one is under
/// way the next is read, so a crash repeats two of them at most.
const WINDOW: i64 = 4_000;
/// A stream's share of the window, at least.
const SHARE_MIN: i64 = 20;
/// How often an idle relay looks for messages that nobody in this process has put there.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// How often it looks for streams that nobody holds.
const LOOK_FOR_FREE_EVERY: Duration = Duration::from_millis(100);

/// What a relay works with.
pub(crate) struct Relay {
    pub(crate) database: Database,
    pub(crate) kafka: Connection,
    pub(crate) owner: String,
    pub(crate) lease: Duration,
    /// So often a message is tried that fails for its topic.
    pub(crate) attempts_max: u32,
    /// Bytes of one window, about.
    pub(crate) window_bytes: i64,
    pub(crate) headers: HeaderNames,
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
    /// The cursor or what else is known in memory is ahead of the stored one.
    unsaved: bool,
    /// Failures in a row that were nobody's fault.
    failures: u32,
    not_before: Instant,
    /// How many messages of the next window may be this stream's, at most.
    most: i64,
    /// The first of its messages is tried alone.
    suspect: bool,
    /// To be put in quarantine with the next barrier.
    entry: Option<Entry>,
    /// Released messages that are sent; to be resolved with the next barrier.
    sent_again: Vec<i64>,
    /// The highest number that was handed to a producer.
    handed_through: i64,
    /// Where the next read begins: behind the cursor and what is under way.
    read_through: i64,
}

/// What is forgotten when the connection is lost.
struct Session {
    connection: PgConnection,
    producer: Producer,
    held: BTreeMap<String, Held>,
    looked_for_free: Instant,
    renewed: Instant,
    /// Partitions of the topics that messages went to.
    topics: BTreeMap<String, i32>,
    /// The last turn was a suspect's.
    was_alone: bool,
    /// The next window, read while the last one was under way.
    ahead: Vec<Outgoing>,
}

impl Session {
    /// The next read begins behind what is acknowledged.
    fn forget_ahead(&mut self) {
        self.ahead.clear();
        for held in self.held.values_mut() {
            held.read_through = held.lease.sent_through;
        }
    }
}

impl Held {
    fn new(lease: Lease) -> Self {
        let retry_in = u64::try_from(lease.retry_in.unwrap_or(0)).unwrap_or(0);
        Self {
            unsaved: false,
            failures: 0,
            not_before: Instant::now() + Duration::from_millis(retry_in),
            most: WINDOW,
            suspect: lease.attempts > 0,
            entry: None,
            sent_again: Vec::new(),
            handed_through: lease.sent_through,
            read_through: lease.sent_through,
            lease,
        }
    }

    /// Where the next read begins: behind all that is under way.
    fn cursor(&self, most: i64) -> Cursor<'_> {
        Cursor {
            stream: &self.lease.stream,
            behind: self.read_through,
            most,
        }
    }

    /// The lease as it is to be stored now.
    fn lease(&mut self) -> Lease {
        let waits = self.not_before.saturating_duration_since(Instant::now());
        self.lease.retry_in = (!waits.is_zero()).then(|| millis(waits));
        self.lease.clone()
    }
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
                    backoff::delay(failures, fastrand::f64()).max(Duration::from_millis(100))
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.wake.notified(), if failures == 0 => {
                    // A batch may have made a stream.
                    if let Some(session) = &mut session {
                        session.looked_for_free -= LOOK_FOR_FREE_EVERY;
                    }
                }
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

    /// Looks for something to do, takes free streams, reads a window, sends it. Says whether there was anything.
    async fn turn(&self, session: &mut Option<Session>) -> Result<bool, Error> {
        let session = match session {
            Some(session) => session,
            None => session.insert(self.begin_session().await?),
        };
        if session.renewed.elapsed() >= self.lease {
            // Whoever has slept may hold nothing any more: what was read before is read again.
            session.forget_ahead();
        }
        let mut rows = std::mem::take(&mut session.ahead);
        if rows.is_empty() {
            let work = self.within(self.look(session)).await?;
            if work.free && self.within(self.take(session, false)).await? {
                return Ok(true);
            }
            let ready = choose(&session.held, &mut session.was_alone, work.streams);
            rows = self.within(self.read_durably(session, &ready)).await?;
        }
        let any = !rows.is_empty();
        if any {
            failpoint::reach(failpoint::RELAY_AFTER_BARRIER);
            self.send(session, rows).await?;
            failpoint::reach(failpoint::RELAY_BEFORE_CURSOR);
        }
        Ok(any)
    }

    /// Reads the next window while one is under way, unless there are streams to be taken first.
    async fn read_ahead(&self, session: &mut Session) -> Result<Vec<Outgoing>, Error> {
        let work = self.within(self.look(session)).await?;
        if work.free {
            // The next turn asks again, and takes them.
            session.looked_for_free -= LOOK_FOR_FREE_EVERY;
            return Ok(Vec::new());
        }
        if work.streams.is_empty() {
            return Ok(Vec::new());
        }
        let ready = choose(&session.held, &mut session.was_alone, work.streams);
        let held = session.held.len();
        let rows = self.within(self.read_durably(session, &ready)).await?;
        match session.held.len() == held {
            true => Ok(rows),
            false => Err(Error::LeaseLost),
        }
    }

    async fn begin_session(&self) -> Result<Session, Error> {
        let name = format!("tidegate {} relay", self.owner);
        let now = Instant::now();
        let mut session = Session {
            connection: self.database.connect(&name).await?,
            producer: self.producer()?,
            held: BTreeMap::new(),
            looked_for_free: now,
            renewed: now,
            topics: BTreeMap::new(),
            was_alone: false,
            ahead: Vec::new(),
        };
        // A new session holds nothing, but the one before it may have: no need to wait until that runs out.
        self.within(self.take(&mut session, true)).await?;
        Ok(session)
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
        let mut timeouts = self.database.timeouts;
        // A relay that stops amid a transaction holds its rows for hardly longer than its lease.
        let idle_max = self.lease.max(Duration::from_secs(1));
        timeouts.idle_in_transaction = timeouts.idle_in_transaction.min(idle_max);
        transaction::begin(connection, transaction::OWN_SEARCH_PATH, &name, &timeouts).await
    }

    /// One statement, and none if there is nothing to ask.
    async fn look(&self, session: &mut Session) -> Result<relay::Work, store::Error> {
        let now = Instant::now();
        let due = session.held.values().filter(|held| held.not_before <= now);
        let due: Vec<Cursor<'_>> = due.map(|held| held.cursor(held.most)).collect();
        let for_free = session.looked_for_free.elapsed() >= LOOK_FOR_FREE_EVERY;
        if due.is_empty() && !for_free {
            return Ok(relay::Work::default());
        }
        let work = relay::look(&mut session.connection, &self.owner, &due, for_free).await?;
        if for_free {
            session.looked_for_free = now;
        }
        Ok(work)
    }

    /// Takes streams that nobody holds, and says whether there were any. With `own` also those of this relay's
    /// lost session.
    async fn take(&self, session: &mut Session, own: bool) -> Result<bool, store::Error> {
        self.begin(&mut session.connection).await?;
        let leases = relay::take(&mut session.connection, &self.owner, self.lease, own).await?;
        transaction::commit(&mut session.connection).await?;
        let any = !leases.is_empty();
        for lease in leases {
            info!(
                stream = lease.stream,
                sent_through = lease.sent_through,
                "relay: stream taken"
            );
            let held = Held::new(lease);
            session.held.insert(held.lease.stream.clone(), held);
        }
        Ok(any)
    }

    /// Reads what is to be sent, and makes it durable: barrier and rows in one transaction (I9). The barrier
    /// also stores what is known of the window before, and renews the leases.
    async fn read_durably(
        &self,
        session: &mut Session,
        ready: &[(String, i64)],
    ) -> Result<Vec<Outgoing>, store::Error> {
        let now = Instant::now();
        let due = session.renewed.elapsed() >= self.lease / 3;
        let is_ready = |stream: &String| ready.iter().any(|(ready, _)| ready == stream);
        let of = session.held.iter();
        let of = of.filter(|(stream, held)| due || held.unsaved || is_ready(stream));
        let of: Vec<String> = of.map(|(stream, _)| stream.clone()).collect();
        if of.is_empty() {
            return Ok(Vec::new());
        }
        self.begin(&mut session.connection).await?;
        let still = self.store(session, &of).await?;
        let kept = ready.iter().filter(|(stream, _)| still.contains(stream));
        let cursors: Vec<Cursor<'_>> = kept
            .filter_map(|(stream, most)| Some(session.held.get(stream)?.cursor(*most)))
            .collect();
        let rows = read(&mut session.connection, &cursors, self.window_bytes).await?;
        let of_quarantine = rows.iter().any(|row| row.passed_over)
            || session.held.values().any(|held| held.entry.is_some());
        if of_quarantine {
            failpoint::reach(failpoint::QUARANTINE_BEFORE_COMMIT);
        }
        transaction::commit(&mut session.connection).await?; // I9: synchronous
        if of_quarantine {
            failpoint::reach(failpoint::QUARANTINE_AFTER_COMMIT);
        }
        if due {
            session.renewed = now;
        }
        self.stored(session, &of, &still);
        Ok(rows)
    }

    /// Writes what is known of these streams into the open transaction, and says which of them are still held.
    async fn store(
        &self,
        session: &mut Session,
        of: &[String],
    ) -> Result<BTreeSet<String>, store::Error> {
        let held = &mut session.held;
        let leases: Vec<Lease> = of
            .iter()
            .filter_map(|stream| Some(held.get_mut(stream)?.lease()))
            .collect();
        let connection = &mut session.connection;
        let still: BTreeSet<String> = relay::barrier(connection, &leases, self.lease)
            .await?
            .into_iter()
            .collect();
        let held = || still.iter().filter_map(|stream| session.held.get(stream));
        let entries: Vec<&Entry> = held().filter_map(|held| held.entry.as_ref()).collect();
        if !entries.is_empty() {
            relay_quarantine::put(connection, &entries).await?;
        }
        let sent_again: Vec<(&str, i64)> = held()
            .flat_map(|held| held.sent_again.iter().map(|n| (&*held.lease.stream, *n)))
            .collect();
        if !sent_again.is_empty() {
            relay_quarantine::sent(connection, &sent_again).await?;
        }
        Ok(still)
    }

    /// After the commit: what is stored need not be stored again, and what is not held is given up.
    fn stored(&self, session: &mut Session, of: &[String], still: &BTreeSet<String>) {
        let mut moved = false;
        for stream in of {
            let Some(held) = session.held.get_mut(stream) else {
                continue;
            };
            if !still.contains(stream) {
                warn!(stream, "relay: lease lost to another relay");
                session.held.remove(stream);
                continue;
            }
            moved |= held.unsaved;
            held.unsaved = false;
            held.sent_again.clear();
            if let Some(entry) = held.entry.take() {
                telemetry::quarantined(entry.reason, 1);
            }
        }
        if moved {
            failpoint::reach(failpoint::RELAY_AFTER_CURSOR);
        }
    }

    async fn renew(&self, session: &mut Session) -> Result<(), Error> {
        let all: Vec<String> = session.held.keys().cloned().collect();
        let renew = async {
            self.begin(&mut session.connection).await?;
            let still = self.store(session, &all).await?;
            transaction::commit(&mut session.connection).await?;
            Ok(still)
        };
        let still = self.within(renew).await?;
        session.renewed = Instant::now();
        self.stored(session, &all, &still);
        match still.len() == all.len() {
            true => Ok(()),
            false => Err(Error::LeaseLost),
        }
    }

    async fn release(&self, session: &mut Session) -> Result<(), store::Error> {
        let all: Vec<String> = session.held.keys().cloned().collect();
        let release = async {
            self.begin(&mut session.connection).await?;
            self.store(session, &all).await?;
            let leases: Vec<&Lease> = session.held.values().map(|held| &held.lease).collect();
            relay::release(&mut session.connection, &leases).await?;
            transaction::commit(&mut session.connection).await
        };
        self.within(release).await
    }
}

/// Which streams are sent next, and how much of each: those with something to send that are not suspect, or,
/// every other turn, one suspect alone.
fn choose(
    held: &BTreeMap<String, Held>,
    was_alone: &mut bool,
    streams: Vec<String>,
) -> Vec<(String, i64)> {
    let is_suspect = |stream: &String| held.get(stream).is_some_and(|held| held.suspect);
    let (suspects, others): (Vec<_>, Vec<_>) = streams.into_iter().partition(is_suspect);
    let longest_due = suspects
        .into_iter()
        .min_by_key(|stream| held.get(stream).map(|held| held.not_before));
    if let Some(suspect) = longest_due
        && (others.is_empty() || !*was_alone)
    {
        *was_alone = true;
        return vec![(suspect, 1)];
    }
    *was_alone = false;
    let count = i64::try_from(others.len()).unwrap_or(WINDOW);
    let share = (WINDOW / count.max(1)).max(SHARE_MIN);
    let most = |stream: String| {
        let most = held.get(&stream).map_or(0, |held| held.most);
        (stream, most.min(share))
    };
    others.into_iter().map(most).collect()
}

/// Reads what comes next: released messages before all others, and marks what waits in quarantine.
async fn read(
    connection: &mut PgConnection,
    cursors: &[Cursor<'_>],
    bytes: i64,
) -> Result<Vec<Outgoing>, store::Error> {
    if cursors.is_empty() {
        return Ok(Vec::new());
    }
    let open = relay_quarantine::look(connection, cursors).await?;
    let of = |pick: fn(&relay_quarantine::Open) -> bool| -> BTreeSet<&str> {
        let picked = open.iter().filter(|open| pick(open));
        picked.map(|open| &*open.stream).collect()
    };
    let (released, compared) = (of(|open| open.released), of(|open| open.compared));
    let (first, others): (Vec<Cursor<'_>>, Vec<Cursor<'_>>) = cursors
        .iter()
        .partition(|cursor| released.contains(cursor.stream));
    let mut rows = Vec::new();
    if !first.is_empty() {
        rows = relay_quarantine::read_released(connection, &first, bytes).await?;
    }
    if !others.is_empty() {
        rows.extend(relay::read(connection, &others, bytes).await?);
    }
    let doubtful: Vec<(&str, i64)> = rows
        .iter()
        .filter(|row| row.released || compared.contains(&*row.stream))
        .map(|row| (&*row.stream, row.number))
        .collect();
    if doubtful.is_empty() {
        return Ok(rows);
    }
    let behind = relay_quarantine::behind(connection, &doubtful).await?;
    let now = behind.iter().filter(|behind| behind.now).count();
    if now > 0 {
        telemetry::quarantined("behind", now);
    }
    let behind: BTreeSet<(String, i64)> =
        behind.into_iter().map(|b| (b.stream, b.number)).collect();
    for row in &mut rows {
        row.passed_over = behind.contains(&(row.stream.clone(), row.number));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(stream: &str, attempts: i32) -> (String, Held) {
        let lease = Lease {
            stream: stream.to_owned(),
            lease_epoch: 1,
            sent_through: 0,
            last_error: String::new(),
            attempts,
            retry_in: None,
        };
        (stream.to_owned(), Held::new(lease))
    }

    #[test]
    fn a_suspect_goes_alone_every_other_turn() {
        let held = BTreeMap::from([held("a", 0), held("b", 1), held("c", 0), held("d", 2)]);
        let mut was_alone = false;
        let mut turn = |streams: &[&str]| {
            let streams = streams.iter().map(|&stream| stream.to_owned()).collect();
            choose(&held, &mut was_alone, streams)
        };
        let b_alone = [("b".to_owned(), 1)];
        let others = [("a".to_owned(), WINDOW / 2), ("c".to_owned(), WINDOW / 2)];
        for _ in 0..2 {
            assert_eq!(turn(&["a", "b", "c", "d"]), b_alone);
            assert_eq!(turn(&["a", "b", "c", "d"]), others);
        }
        assert_eq!(turn(&["b"]), b_alone);
        assert_eq!(
            turn(&["b"]),
            b_alone,
            "with nothing else to send, every turn"
        );
        assert_eq!(turn(&[]), []);
    }
}
