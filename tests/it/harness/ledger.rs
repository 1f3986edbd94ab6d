//! A random ledger, and what must come of it: the oracle.
//!
//! Projections `balances` and `turnover` are those of `examples/ledger`. `journal` has neither gate nor
//! inbox: it writes a row and a message for every record, so that nothing hides a record that was
//! applied twice or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::{LogRecord, Sender};

/// Entries of many accounts, in order for each account, with a copy of an old one now and then.
pub(crate) struct Stream {
    random: fastrand::Rng,
    sender: Sender,
    partitions: i32,
    /// The entries of each account.
    accounts: Vec<Vec<Value>>,
}

impl Stream {
    pub(super) fn new(seed: u64, sender: Sender, partitions: i32, accounts: usize) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            sender,
            partitions,
            accounts: vec![Vec::new(); accounts],
        }
    }

    fn put(&mut self) {
        // The square makes some accounts busy, so that batches have several entries of one.
        let share = self.random.f64().powi(2);
        let number = (share * self.accounts.len() as f64) as usize;
        let entries = &mut self.accounts[number];
        let entry = if !entries.is_empty() && self.random.u8(..100) < 6 {
            entries[self.random.usize(..entries.len())].clone()
        } else {
            let (account, seq) = (format!("a-{number}"), entries.len() + 1);
            let day = self.random.u32(1..=28);
            let entry = json!({
                "id": format!("{account}/{seq}"), "account": account, "seq": seq,
                "amount": self.random.i64(-300..=310),
                "booked_at": format!("2026-01-{day:02}T09:30:00Z"),
            });
            entries.push(entry.clone());
            entry
        };
        let partition = i32::try_from(number).unwrap() % self.partitions;
        self.sender.send_json(partition, &entry);
    }

    /// Writes so many entries, and waits until they are in the log.
    pub(crate) fn produce(&mut self, entries: usize) {
        for _ in 0..entries {
            self.put();
        }
        self.sender.flush();
    }

    /// Goes on writing in the background.
    pub(crate) fn feed(mut self, entries_per_second: usize) -> Feeder {
        const TICK: Duration = Duration::from_millis(50);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                self.produce(entries_per_second / 20);
                thread::sleep(TICK);
            }
            self
        });
        Feeder { stop, thread }
    }
}

/// A stream that is being written.
pub(crate) struct Feeder {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Stream>,
}

impl Feeder {
    /// Ends the writing; all of it is in the log then.
    pub(crate) fn finish(self) -> Stream {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// A message as it is in the outbox, or in its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) id: Uuid,
    pub(crate) key: String,
    pub(crate) payload: Value,
}

/// What the tables and the outbox must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Account -> balance, entries.
    pub(crate) balances: BTreeMap<String, (i64, i64)>,
    /// Day -> entries, credit, debit.
    pub(crate) turnover: BTreeMap<String, (i64, i64, i64)>,
    /// Partition and offset of every record.
    pub(crate) journal: Vec<(i32, i64)>,
    /// Stream -> its messages in order.
    pub(crate) messages: BTreeMap<String, Vec<Message>>,
}

/// The identity of a message, computed as the documentation says, not by the code under test (I5).
/// A topic's first id is 1; one that was made anew has the next.
pub(crate) fn message_id(
    projection: &str,
    topic_id: u32,
    topic: &str,
    record: &LogRecord,
    emit: &str,
) -> Uuid {
    let namespace = Uuid::from_u128(0x9c5b_94b1_35ad_49bb_b118_8e8f_c24a_bf80);
    let (partition, offset) = (record.partition, record.offset);
    let name = format!(
        "{projection}\0{topic_id}\0{topic}\0{partition}\0{offset}\0{emit}\0{}",
        0
    );
    Uuid::new_v5(&namespace, name.as_bytes())
}

impl Expected {
    /// The sequential fold over the log, for each projection up to where `applied` says that it is.
    pub(crate) fn of(topic: &str, log: &[LogRecord], applied: impl Fn(&str, i32) -> i64) -> Self {
        let mut expected = Self::default();
        let mut sequences: BTreeMap<String, i64> = BTreeMap::new();
        let mut ids: BTreeSet<String> = BTreeSet::new();
        for record in log {
            let entry = record.json();
            let account = entry["account"].as_str().unwrap();
            let (seq, amount) = (
                entry["seq"].as_i64().unwrap(),
                entry["amount"].as_i64().unwrap(),
            );
            let is_applied = |projection| record.offset < applied(projection, record.partition);
            let mut emit = |projection: &str, name: &str, payload: Value| {
                let stream = format!("{projection}/{topic}/{}", record.partition);
                expected.messages.entry(stream).or_default().push(Message {
                    id: message_id(projection, 1, topic, record, name),
                    key: account.to_owned(),
                    payload,
                });
            };
            let last = sequences.entry(account.to_owned()).or_default();
            if is_applied("balances") && seq == *last + 1 {
                *last = seq;
                let (balance, entries) = expected.balances.entry(account.to_owned()).or_default();
                let before = *balance;
                *balance += amount;
                *entries += 1;
                if *balance < 0 && before >= 0 {
                    emit(
                        "balances",
                        "overdraft",
                        json!({ "account": account, "balance": *balance }),
                    );
                }
            }
            if is_applied("turnover") && ids.insert(entry["id"].as_str().unwrap().to_owned()) {
                let day = entry["booked_at"].as_str().unwrap()[..10].to_owned();
                let (entries, credit, debit) = expected.turnover.entry(day).or_default();
                *entries += 1;
                *credit += amount.max(0);
                *debit += amount.min(0);
            }
            if is_applied("journal") {
                expected.journal.push((record.partition, record.offset));
                emit("journal", "copy", json!({ "offset": record.offset }));
            }
        }
        expected
    }
}
