//! A random ledger, and what must come of it: the oracle.
//!
//! Projections `balances` and `turnover` are those of `examples/ledger`. `journal` has neither gate nor
//! inbox: it writes a row and a message for every record, so that nothing hides a record that was
//! applied twice or not at all. `lines` has not even a message, whose number and id would refuse the batch
//! that comes twice: its position is all that keeps it exact. `newest` keeps the newest entry of each account.
//!
//! When the topic gets more partitions, accounts move, as they do with a producer that takes an account's
//! partition from its name. A copy goes to where the original is, so that which of them comes first
//! does not depend on who reads which partition when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};
use uuid::{Builder, Uuid};

use super::{Kafka, LogRecord, Sender};

/// Entries of many accounts, in order for each account, with a copy of an old one now and then.
pub(crate) struct Stream {
    random: fastrand::Rng,
    kafka: Kafka,
    topic: String,
    sender: Sender,
    partitions: i32,
    /// The entries of each account, and where they are.
    accounts: Vec<Vec<(i32, Value)>>,
    copies: usize,
}

impl Stream {
    pub(super) fn new(
        seed: u64,
        kafka: &Kafka,
        topic: &str,
        partitions: i32,
        accounts: usize,
    ) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            kafka: kafka.clone(),
            topic: topic.to_owned(),
            sender: kafka.sender(topic),
            partitions,
            accounts: vec![Vec::new(); accounts],
            copies: 0,
        }
    }

    fn put(&mut self) {
        // The square makes some accounts busy, so that batches have several entries of one.
        let share = self.random.f64().powi(2);
        let number = (share * self.accounts.len() as f64) as usize;
        let entries = &mut self.accounts[number];
        let (partition, entry) = if !entries.is_empty() && self.random.u8(..100) < 6 {
            self.copies += 1;
            entries[self.random.usize(..entries.len())].clone()
        } else {
            let (account, seq) = (format!("a-{number}"), entries.len() + 1);
            let day = self.random.u32(1..=28);
            let entry = json!({
                "id": format!("{account}/{seq}"), "account": account, "seq": seq,
                "amount": self.random.i64(-300..=310),
                "booked_at": format!("2026-01-{day:02}T09:30:00Z"),
            });
            let partition = i32::try_from(number).unwrap() % self.partitions;
            entries.push((partition, entry.clone()));
            (partition, entry)
        };
        self.sender.send_json(partition, &entry);
    }

    /// Writes so many entries, and waits until they are in the log.
    pub(crate) fn produce(&mut self, entries: usize) {
        for _ in 0..entries {
            self.put();
        }
        self.sender.flush();
    }

    /// How many of the entries were there before.
    pub(crate) fn copies(&self) -> usize {
        self.copies
    }

    /// Goes on with so many partitions.
    fn spread(&mut self, partitions: i32) {
        if self.partitions != partitions {
            self.partitions = partitions;
            // The old sender would look for them only after minutes.
            self.sender = self.kafka.sender(&self.topic);
        }
    }

    /// Goes on writing in the background.
    pub(crate) fn feed(mut self, entries_per_second: usize) -> Feeder {
        const TICK: Duration = Duration::from_millis(50);
        let stop = Arc::new(AtomicBool::new(false));
        let partitions = Arc::new(AtomicI32::new(self.partitions));
        let (stopped, spread) = (Arc::clone(&stop), Arc::clone(&partitions));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                self.spread(spread.load(Ordering::Relaxed));
                self.produce(entries_per_second / 20);
                thread::sleep(TICK);
            }
            self
        });
        Feeder {
            stop,
            partitions,
            thread,
        }
    }
}

/// A stream that is being written.
pub(crate) struct Feeder {
    stop: Arc<AtomicBool>,
    partitions: Arc<AtomicI32>,
    thread: JoinHandle<Stream>,
}

impl Feeder {
    /// The topic has so many partitions now.
    pub(crate) fn spread(&self, partitions: i32) {
        self.partitions.store(partitions, Ordering::Relaxed);
    }

    /// Ends the writing; all of it is in the log then.
    pub(crate) fn finish(self) -> Stream {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|why| {
            let why = why.downcast_ref::<String>().map_or("", |text| text);
            panic!("nobody has written the rest of the entries: {why}")
        })
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
    /// Account -> sequence and amount of its newest entry.
    pub(crate) newest: BTreeMap<String, (i64, i64)>,
    /// Partition and offset of every record.
    pub(crate) journal: Vec<(i32, i64)>,
    /// The same for `lines`.
    pub(crate) lines: Vec<(i32, i64)>,
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
    index: i32,
) -> Uuid {
    let namespace = Uuid::from_u128(0x9c5b_94b1_35ad_49bb_b118_8e8f_c24a_bf80);
    let (partition, offset) = (record.partition, record.offset);
    let stream = format!("{projection}/{topic}/{partition}");
    let name = format!("{stream}\0{topic_id}\0{offset}\0{emit}\0{index}");
    let mut id = Uuid::new_v5(&namespace, name.as_bytes()).into_bytes();
    let stream = Uuid::new_v5(
        &namespace,
        format!("{projection}/{topic}/{partition}").as_bytes(),
    );
    id[..2].copy_from_slice(&stream.as_bytes()[..2]);
    id[2..6].copy_from_slice(&offset.to_be_bytes()[4..]);
    Builder::from_custom_bytes(id).into_uuid()
}

impl Expected {
    /// The sequential fold over the log, for each projection up to where `applied` says that it is.
    pub(crate) fn of(topic: &str, log: &[LogRecord], applied: impl Fn(&str, i32) -> i64) -> Self {
        let entries: Vec<Entry<'_>> = log.iter().map(Entry::read).collect();
        let of = |projection: &str| -> Vec<&Entry<'_>> {
            let is_applied = |entry: &&Entry<'_>| {
                entry.record.offset < applied(projection, entry.record.partition)
            };
            entries.iter().filter(is_applied).collect()
        };
        let mut expected = Self::default();
        expected.fold_balances(topic, of("balances"));
        expected.fold_turnover(&of("turnover"));
        for entry in of("newest") {
            let newest = expected.newest.entry(entry.account.clone()).or_default();
            *newest = (*newest).max((entry.seq, entry.amount));
        }
        let place = |entry: &Entry<'_>| (entry.record.partition, entry.record.offset);
        expected.lines = of("lines").into_iter().map(place).collect();
        for entry in of("journal") {
            let record = entry.record;
            expected.journal.push(place(entry));
            let payload = json!({ "offset": record.offset });
            expected.emit(topic, "journal", "copy", entry, payload);
        }
        expected
    }

    /// With each stream's messages by key: no other order is promised where records have waited for others.
    pub(crate) fn by_key(mut self) -> Self {
        for messages in self.messages.values_mut() {
            messages.sort_by(|a, b| a.key.cmp(&b.key)); // stable
        }
        self
    }

    /// Each account's entries by their sequence, wherever they are, up to the first that is missing.
    fn fold_balances(&mut self, topic: &str, mut entries: Vec<&Entry<'_>>) {
        // The first of the copies stays in front.
        entries.sort_by_key(|entry| (&entry.account, entry.seq));
        let mut overdrafts: Vec<(&Entry<'_>, i64)> = Vec::new();
        for entry in entries {
            let (balance, count) = self.balances.entry(entry.account.clone()).or_default();
            if entry.seq != *count + 1 {
                continue;
            }
            let before = *balance;
            *balance += entry.amount;
            *count += 1;
            if *balance < 0 && before >= 0 {
                overdrafts.push((entry, *balance));
            }
        }
        self.balances.retain(|_, (_, count)| *count > 0);
        overdrafts.sort_by_key(|(entry, _)| (entry.record.partition, entry.record.offset));
        for (entry, balance) in overdrafts {
            let payload = json!({ "account": entry.account, "balance": balance });
            self.emit(topic, "balances", "overdraft", entry, payload);
        }
    }

    fn fold_turnover(&mut self, all: &[&Entry<'_>]) {
        let mut ids: BTreeSet<&str> = BTreeSet::new();
        for entry in all.iter().filter(|entry| ids.insert(&entry.id)) {
            let (entries, credit, debit) = self.turnover.entry(entry.day.clone()).or_default();
            *entries += 1;
            *credit += entry.amount.max(0);
            *debit += entry.amount.min(0);
        }
    }

    fn emit(
        &mut self,
        topic: &str,
        projection: &str,
        name: &str,
        from: &Entry<'_>,
        payload: Value,
    ) {
        let stream = format!("{projection}/{topic}/{}", from.record.partition);
        self.messages.entry(stream).or_default().push(Message {
            id: message_id(projection, 1, topic, from.record, name, 0),
            key: from.account.clone(),
            payload,
        });
    }
}

/// A record as the projections read it.
struct Entry<'l> {
    record: &'l LogRecord,
    id: String,
    account: String,
    seq: i64,
    amount: i64,
    day: String,
}

impl<'l> Entry<'l> {
    fn read(record: &'l LogRecord) -> Self {
        let entry = record.json();
        let text = |name: &str| entry[name].as_str().unwrap().to_owned();
        let number = |name: &str| entry[name].as_i64().unwrap();
        Self {
            record,
            id: text("id"),
            account: text("account"),
            seq: number("seq"),
            amount: number("amount"),
            day: text("booked_at")[..10].to_owned(),
        }
    }
}
