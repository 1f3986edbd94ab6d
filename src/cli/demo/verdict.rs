//! Compares what is in the tables and on the output topic with the sequential fold.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Display;

use sqlx::PgConnection;

use super::ledger::{Account, Fold};
use super::services::End;
use super::tables;
use crate::cli::output::{number, table};
use crate::store::position::{self, Status as Position};
use crate::types::Record;

const DIFFERENCES_MAX: usize = 5;

/// One comparison.
struct Claim {
    what: String,
    found: i64,
    expected: i64,
}

/// All comparisons.
#[derive(Default)]
pub(super) struct Verdict {
    outcomes: Vec<(String, [i64; 5])>,
    claims: Vec<Claim>,
    /// The first few, for people.
    differences: Vec<String>,
    more_differences: usize,
    /// Messages that came again, under the same id.
    pub(super) repeats: i64,
}

/// A message of the output topic.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    key: String,
    balance: i64,
}

impl Verdict {
    pub(super) async fn reach(
        connection: &mut PgConnection,
        fold: &Fold,
        messages: &[Record],
        ends: &[End],
    ) -> anyhow::Result<Self> {
        let mut verdict = Self::default();
        let positions = position::status(connection).await?;
        verdict.account(&positions, fold);
        verdict.balances(&tables::balances(connection).await?, fold);
        verdict.turnover(connection, fold).await?;
        let outbox = tables::outbox_ids(connection).await?;
        verdict.messages(messages, &outbox, fold);
        verdict.ends(ends);
        Ok(verdict)
    }

    fn claim(&mut self, what: impl Into<String>, found: i64, expected: i64) {
        self.claims.push(Claim {
            what: what.into(),
            found,
            expected,
        });
    }

    fn differ(&mut self, what: String) {
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(what);
        } else {
            self.more_differences += 1;
        }
    }

    fn account(&mut self, positions: &[Position], fold: &Fold) {
        for rows in positions.chunk_by(|a, b| a.projection == b.projection) {
            let sum = |pick: fn(&Position) -> i64| rows.iter().map(pick).sum::<i64>();
            let name = &rows[0].projection;
            let counts = [
                sum(|p| p.consumed),
                sum(|p| p.applied),
                sum(|p| p.stale),
                sum(|p| p.duplicate),
                sum(|p| p.filtered),
            ];
            self.outcomes.push((name.clone(), counts));
            let [consumed, applied, stale, duplicate, _] = counts;
            let all = fold.originals + fold.copies;
            self.claim(format!("{name}: events consumed"), consumed, all);
            self.claim(format!("{name}: events applied"), applied, fold.originals);
            self.claim(
                format!("{name}: copies dropped"),
                stale + duplicate,
                fold.copies,
            );
        }
    }

    fn balances(&mut self, found: &BTreeMap<String, (i64, i64)>, fold: &Fold) {
        let pair = |account: &Account| (account.balance, account.entries);
        let expected: BTreeMap<String, (i64, i64)> = fold
            .accounts
            .iter()
            .map(|(name, account)| (name.clone(), pair(account)))
            .collect();
        let sum = |all: &BTreeMap<String, (i64, i64)>| all.values().map(|(amount, _)| amount).sum();
        self.claim(
            "balances: accounts",
            count(found.len()),
            count(expected.len()),
        );
        self.claim("balances: sum of all balances", sum(found), sum(&expected));
        let others = self.compare("account", found, &expected, |(balance, entries)| {
            format!("{} after {entries} entries", number(*balance))
        });
        self.claim("balances: accounts that differ", others, 0);
    }

    async fn turnover(&mut self, connection: &mut PgConnection, fold: &Fold) -> anyhow::Result<()> {
        let found = tables::turnover(connection).await?;
        let entries: i64 = found.values().map(|day| day.entries).sum();
        self.claim("turnover: days", count(found.len()), count(fold.days.len()));
        self.claim("turnover: entries of all days", entries, fold.originals);
        let others = self.compare("day", &found, &fold.days, |day| format!("{day:?}"));
        self.claim("turnover: days that differ", others, 0);
        Ok(())
    }

    /// Counts the keys whose values differ, and keeps the first few for people.
    fn compare<K: Ord + Display, V: PartialEq>(
        &mut self,
        what: &str,
        found: &BTreeMap<K, V>,
        expected: &BTreeMap<K, V>,
        show: impl Fn(&V) -> String,
    ) -> i64 {
        let show = |value: Option<&V>| value.map_or_else(|| "nothing".to_owned(), &show);
        let keys: BTreeSet<&K> = found.keys().chain(expected.keys()).collect();
        let mut others = 0;
        for key in keys {
            let (is, should) = (found.get(key), expected.get(key));
            if is != should {
                others += 1;
                let (is, should) = (show(is), show(should));
                self.differ(format!("{what} {key}: {is} instead of {should}"));
            }
        }
        others
    }

    /// The first of each id counts, as a receiver with an inbox sees it. Per account the messages must
    /// be those of the fold, in its order.
    fn messages(&mut self, records: &[Record], outbox: &[uuid::Uuid], fold: &Fold) {
        let mut first: HashMap<uuid::Uuid, &Record> = HashMap::new();
        let mut by_account: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        let mut changed = 0;
        for record in records {
            let read = id(record).zip(read(record));
            let Some((id, message)) = read else {
                self.differ(format!(
                    "message {}: neither id nor payload",
                    record.offset()
                ));
                changed += 1;
                continue;
            };
            match first.get(&id) {
                Some(before) => {
                    self.repeats += 1;
                    if (before.key(), before.value()) != (record.key(), record.value()) {
                        self.differ(format!("message {id} came again with another payload"));
                        changed += 1;
                    }
                }
                None => {
                    first.insert(id, record);
                    by_account
                        .entry(message.key)
                        .or_default()
                        .push(message.balance);
                }
            }
        }
        let expected: BTreeMap<String, Vec<i64>> = fold
            .accounts
            .iter()
            .filter(|(_, account)| !account.overdrafts.is_empty())
            .map(|(name, account)| (name.clone(), account.overdrafts.clone()))
            .collect();
        let all = expected.values().map(|of| count(of.len())).sum();
        let stored: BTreeSet<&uuid::Uuid> = outbox.iter().collect();
        let sent: BTreeSet<&uuid::Uuid> = first.keys().collect();
        let unequal = stored.symmetric_difference(&sent).count();
        self.claim(
            "overdrafts: messages in the outbox",
            count(outbox.len()),
            all,
        );
        self.claim("overdrafts: messages on the topic", count(first.len()), all);
        self.claim("overdrafts: ids not in both", count(unequal), 0);
        let others = self.compare("overdrafts of account", &by_account, &expected, |all| {
            format!("{all:?}")
        });
        self.claim("overdrafts: accounts whose messages differ", others, 0);
        self.claim("overdrafts: repeats that are not exact", changed, 0);
    }

    /// Nothing is claimed of processes that were left running.
    fn ends(&mut self, ends: &[End]) {
        let well = ends.iter().filter(|end| end.well).count();
        if !ends.is_empty() {
            self.claim(
                "processes: ended by SIGTERM with code 0",
                count(well),
                count(ends.len()),
            );
        }
        for end in ends.iter().filter(|end| !end.well) {
            self.differ(end.what.clone());
        }
    }

    pub(super) fn print(&self) {
        let numbers = ["consumed", "applied", "stale", "duplicate", "filtered"];
        let mut header = vec!["projection"];
        header.extend(numbers);
        let mut outcomes = table(&header, &numbers);
        for (name, counts) in &self.outcomes {
            let counts = counts.iter().map(|n| number(*n));
            outcomes.add_row([name.clone()].into_iter().chain(counts));
        }
        println!("{outcomes}\n");
        let mut claims = table(
            &["compared with the sequential fold", "found", "expected", ""],
            &["found", "expected"],
        );
        for claim in &self.claims {
            let equal = if claim.found == claim.expected {
                "equal"
            } else {
                "DIFFERS"
            };
            claims.add_row([
                &*claim.what,
                &number(claim.found),
                &number(claim.expected),
                equal,
            ]);
        }
        println!("{claims}\n");
    }

    /// What differs, if anything does: the last thing the demo says.
    pub(super) fn differences(&self) -> Option<String> {
        let unequal: Vec<&Claim> = self
            .claims
            .iter()
            .filter(|c| c.found != c.expected)
            .collect();
        if unequal.is_empty() && self.differences.is_empty() {
            return None;
        }
        let mut lines = vec![format!(
            "NOT EXACT: {} of {} comparisons differ",
            unequal.len(),
            self.claims.len()
        )];
        lines.extend(unequal.iter().map(|claim| {
            let (found, expected) = (number(claim.found), number(claim.expected));
            format!("  {}: {found} instead of {expected}", claim.what)
        }));
        let shown = self.differences.iter();
        lines.extend(shown.map(|difference| format!("  {difference}")));
        if self.more_differences > 0 {
            lines.push(format!("  and {} more", self.more_differences));
        }
        Some(lines.join("\n"))
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn id(record: &Record) -> Option<uuid::Uuid> {
    std::str::from_utf8(record.header("ce_id")?)
        .ok()?
        .parse()
        .ok()
}

fn read(record: &Record) -> Option<Message> {
    let key = std::str::from_utf8(record.key()?).ok()?.to_owned();
    let payload: serde_json::Value = serde_json::from_slice(record.value()?).ok()?;
    let balance = payload.get("balance")?.as_i64()?;
    let account = payload.get("account")?.as_str()?;
    (account == key && payload.as_object()?.len() == 2).then_some(Message { key, balance })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::demo::ledger::Account;
    use crate::types::{Header, RecordBuilder};

    fn message(id: u128, balance: i64) -> Record {
        let payload = format!(r#"{{"account": "a-1", "balance": {balance}}}"#);
        let id = Header {
            name: "ce_id".to_owned(),
            value: Some(uuid::Uuid::from_u128(id).to_string().into_bytes()),
        };
        RecordBuilder {
            key: Some(b"a-1"),
            value: Some(payload.as_bytes()),
            headers: vec![id],
            ..RecordBuilder::default()
        }
        .build()
    }

    /// Two overdrafts of one account are expected, -5 and then -7; ids 1 and 2 are in the outbox.
    fn verdict(messages: &[(u128, i64)]) -> Verdict {
        let account = Account {
            overdrafts: vec![-5, -7],
            ..Account::default()
        };
        let fold = Fold {
            accounts: [("a-1".to_owned(), account)].into(),
            ..Fold::default()
        };
        let records: Vec<Record> = messages.iter().map(|(id, b)| message(*id, *b)).collect();
        let mut verdict = Verdict::default();
        verdict.messages(&records, &[1, 2].map(uuid::Uuid::from_u128), &fold);
        verdict
    }

    #[test]
    fn a_message_sent_twice_under_its_id_is_counted_and_no_difference() {
        let verdict = verdict(&[(1, -5), (2, -7), (1, -5), (2, -7)]);
        assert_eq!(verdict.repeats, 2);
        assert_eq!(verdict.differences(), None);
    }

    #[test]
    fn a_message_that_is_missing_new_changed_or_out_of_order_differs() {
        for messages in [
            &[(1, -5)][..],
            &[(1, -5), (2, -7), (3, -7)],
            &[(1, -5), (3, -7)],
            &[(1, -5), (2, -8)],
            &[(2, -7), (1, -5)],
            &[(1, -5), (2, -7), (1, -6)],
        ] {
            assert!(verdict(messages).differences().is_some(), "{messages:?}");
        }
    }
}
