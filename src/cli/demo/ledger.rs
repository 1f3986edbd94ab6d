//! The demo's stream of ledger entries, and what it must come to.
//!
//! Entries of an account come in order; among them are copies, as a producer that retries sends them,
//! and older ones, as a replayed file brings them. The fold is taken over the originals only, while
//! they are made. There is no clock and no randomness but the seed: the same stream every time.

use std::collections::{BTreeMap, VecDeque};

use chrono::{DateTime, NaiveDate, SecondsFormat};
use fastrand::Rng;

const DUPLICATE_SHARE: f64 = 0.05;
const STALE_SHARE: f64 = 0.02;
/// A duplicate follows within this many originals; a stale copy comes later than that.
const RECENT: usize = 64;
/// Older entries kept to be sent again: a bounded sample, however long the stream is.
const OLDER_MAX: usize = 4_096;
const EVENTS_PER_ACCOUNT: u64 = 100;
const ACCOUNTS_MAX: u64 = 100_000;
/// 2026-01-01T00:00:00Z.
const FIRST_SECOND: i64 = 1_767_225_600;
const SECONDS: u64 = 14 * 86_400;

/// One entry of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    id: u128,
    account: usize,
    sequence: i64,
    amount: i64,
    booked_at: i64,
}

impl Entry {
    pub(super) fn key(&self) -> String {
        name(self.account)
    }

    /// As it travels in JSON; `booked` is the name of its time.
    pub(super) fn json(&self, booked: &str) -> String {
        format!(
            r#"{{"id":"{:032x}","account":"a-{}","seq":{},"amount":{},"{booked}":"{}"}}"#,
            self.id,
            self.account,
            self.sequence,
            self.amount,
            at(self.booked_at).to_rfc3339_opts(SecondsFormat::Secs, true)
        )
    }
}

fn name(account: usize) -> String {
    format!("a-{account}")
}

fn at(second: i64) -> DateTime<chrono::Utc> {
    DateTime::from_timestamp(second, 0).unwrap_or_default()
}

/// What one account comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) balance: i64,
    pub(super) entries: i64,
    /// The balance after each entry that took it below zero.
    pub(super) overdrafts: Vec<i64>,
}

/// What one day comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Day {
    pub(super) entries: i64,
    pub(super) credit: i64,
    pub(super) debit: i64,
}

/// What the whole stream comes to: each original once, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fold {
    pub(super) accounts: BTreeMap<String, Account>,
    pub(super) days: BTreeMap<NaiveDate, Day>,
    pub(super) originals: i64,
    pub(super) copies: i64,
}

/// The stream: an iterator over the entries as they are sent, which folds as it goes.
pub(super) struct Ledger {
    rng: Rng,
    events: u64,
    sent: u64,
    accounts: Vec<Account>,
    days: BTreeMap<NaiveDate, Day>,
    recent: VecDeque<Entry>,
    older: Vec<Entry>,
    copies: i64,
}

impl Ledger {
    /// A stream of `events`, copies included.
    pub(super) fn new(seed: u64, events: u64) -> Self {
        let accounts = (events / EVENTS_PER_ACCOUNT).clamp(20, ACCOUNTS_MAX);
        Self {
            rng: Rng::with_seed(seed),
            events,
            sent: 0,
            accounts: vec![Account::default(); usize::try_from(accounts).unwrap_or(1)],
            days: BTreeMap::new(),
            recent: VecDeque::new(),
            older: Vec::new(),
            copies: 0,
        }
    }

    /// What the entries taken so far come to.
    pub(super) fn into_fold(self) -> Fold {
        let accounts = self.accounts.into_iter().enumerate();
        Fold {
            accounts: accounts
                .filter(|(_, account)| account.entries > 0)
                .map(|(number, account)| (name(number), account))
                .collect(),
            originals: self.days.values().map(|day| day.entries).sum(),
            days: self.days,
            copies: self.copies,
        }
    }

    fn original(&mut self) -> Entry {
        let account = self.rng.usize(..self.accounts.len());
        let size = self.rng.i64(1..=20_000);
        // A little more comes in than goes out, so most balances wander around zero and then rise.
        let amount = if self.rng.f64() < 0.52 { size } else { -size };
        let passed = u128::from(self.sent) * u128::from(SECONDS) / u128::from(self.events);
        let entry = Entry {
            id: self.rng.u128(..),
            account,
            sequence: self.accounts[account].entries + 1,
            amount,
            booked_at: FIRST_SECOND + i64::try_from(passed).unwrap_or(0) + self.rng.i64(0..3_600),
        };
        self.fold(&entry);
        self.remember(entry.clone());
        entry
    }

    fn fold(&mut self, entry: &Entry) {
        let account = &mut self.accounts[entry.account];
        account.entries += 1;
        account.balance += entry.amount;
        if account.balance < 0 && account.balance - entry.amount >= 0 {
            account.overdrafts.push(account.balance);
        }
        let day = self
            .days
            .entry(at(entry.booked_at).date_naive())
            .or_default();
        day.entries += 1;
        day.credit += entry.amount.max(0);
        day.debit += entry.amount.min(0);
    }

    fn remember(&mut self, entry: Entry) {
        self.recent.push_back(entry);
        if self.recent.len() <= RECENT {
            return;
        }
        let Some(entry) = self.recent.pop_front() else {
            return;
        };
        if self.older.len() < OLDER_MAX {
            self.older.push(entry);
        } else {
            let replaced = self.rng.usize(..OLDER_MAX);
            self.older[replaced] = entry;
        }
    }

    fn copy_of(&mut self, share: f64) -> Option<Entry> {
        if share < DUPLICATE_SHARE {
            let index = self.rng.usize(..self.recent.len().max(1));
            self.recent.get(index).cloned()
        } else if share < DUPLICATE_SHARE + STALE_SHARE {
            let index = self.rng.usize(..self.older.len().max(1));
            self.older.get(index).cloned()
        } else {
            None
        }
    }
}

impl Iterator for Ledger {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        if self.sent == self.events {
            return None;
        }
        let share = self.rng.f64();
        let entry = match self.copy_of(share) {
            Some(copy) => {
                self.copies += 1;
                copy
            }
            None => self.original(),
        };
        self.sent += 1;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    const EVENTS: u64 = 50_000;

    fn stream(seed: u64) -> (Vec<Entry>, Fold) {
        let mut ledger = Ledger::new(seed, EVENTS);
        let entries = ledger.by_ref().collect();
        (entries, ledger.into_fold())
    }

    #[test]
    fn the_same_seed_gives_the_same_stream_and_the_same_fold() {
        assert_eq!(stream(7), stream(7));
        assert_ne!(stream(7).1, stream(8).1);
    }

    #[test]
    fn all_events_are_originals_or_copies_and_about_seven_in_a_hundred_are_copies() {
        let (entries, fold) = stream(1);
        assert_eq!(entries.len() as u64, EVENTS);
        assert_eq!(fold.originals + fold.copies, EVENTS as i64);
        let share = fold.copies as f64 / EVENTS as f64;
        assert!((0.06..0.08).contains(&share), "{share}");
    }

    #[test]
    fn originals_of_an_account_are_numbered_from_one_in_order_and_a_copy_is_exact() {
        let (entries, fold) = stream(1);
        let mut seen: HashMap<u128, &Entry> = HashMap::new();
        let mut last: HashMap<usize, i64> = HashMap::new();
        let (mut copies, mut late) = (0, 0);
        for entry in &entries {
            if let Some(original) = seen.get(&entry.id) {
                assert_eq!(*original, entry);
                copies += 1;
                late += i64::from(last[&entry.account] > entry.sequence);
                continue;
            }
            let last = last.entry(entry.account).or_default();
            assert_eq!(entry.sequence, *last + 1);
            *last = entry.sequence;
            seen.insert(entry.id, entry);
        }
        assert_eq!(copies, fold.copies);
        assert!(
            late > copies / 5,
            "{late} of {copies} came after a newer entry"
        );
    }

    #[test]
    fn the_fold_is_that_of_the_originals_only() {
        let (entries, fold) = stream(1);
        let mut seen = BTreeSet::new();
        let mut balances: BTreeMap<String, i64> = BTreeMap::new();
        let mut overdrafts = 0;
        for entry in entries.iter().filter(|entry| seen.insert(entry.id)) {
            let balance = balances.entry(entry.key()).or_default();
            overdrafts += usize::from(*balance >= 0 && *balance + entry.amount < 0);
            *balance += entry.amount;
        }
        let folded = |(name, account): (&String, &Account)| (name.clone(), account.balance);
        assert_eq!(
            fold.accounts.iter().map(folded).collect::<BTreeMap<_, _>>(),
            balances
        );
        let expected: usize = fold.accounts.values().map(|a| a.overdrafts.len()).sum();
        assert_eq!(expected, overdrafts);
        assert!(overdrafts > 100, "{overdrafts}");
        let turnover: i64 = fold.days.values().map(|day| day.credit + day.debit).sum();
        assert_eq!(turnover, balances.values().sum::<i64>());
        assert!(fold.days.len() >= 14);
    }

    #[test]
    fn an_entry_travels_as_the_example_says() {
        let entry = Entry {
            id: 0x5f,
            account: 17,
            sequence: 4,
            amount: -250,
            booked_at: FIRST_SECOND,
        };
        assert_eq!(entry.key(), "a-17");
        assert_eq!(
            entry.json("booked_at"),
            r#"{"id":"0000000000000000000000000000005f","account":"a-17","seq":4,"amount":-250,"booked_at":"2026-01-01T00:00:00Z"}"#
        );
    }
}
