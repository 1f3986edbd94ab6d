//! The kinds of projections do the same: SQL (`examples/ledger`), and a fold, a batch handler and an event handler
//! (`examples/ledger_kinds.rs`); SQL and fold with the gate in rows of its own, and in theirs.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::harness::{Expected, LONG, LogRecord, Message, World, wait_until};

pub(crate) const KINDS: [&str; 6] = [
    "balances",
    "balances_with_gate",
    "balances_folded",
    "balances_folded_with_gate",
    "balances_in_batches",
    "balances_one_by_one",
];

const PARTITIONS: i32 = 3;

// I1, I4, I5, I6: over one disordered ledger, with entries that come early, again, or cannot be applied, and accounts
// whose entries are in several partitions, all kinds have the same tables, messages and parked records.
#[test]
fn all_kinds_make_the_same_of_the_same_ledger() {
    let projections = balances() + &balances_with_gate();
    let files = [
        ("balances.sql", &*setup()),
        ("balances_with_gate.sql", SETUP_WITH_GATE),
    ];
    let whole = World::new(PARTITIONS, &projections, &files);
    produce_disordered(&whole);
    let expected = Expected::of(whole.incoming(), &readable(&whole), |_, _| i64::MAX);
    let overdrafts = in_any_order(contents(KINDS[0], expected.messages));
    assert_eq!(overdrafts.len(), 3, "each partition sends some");
    for size in [5, 1_000] {
        let world = whole.sibling();
        let process = world
            .launch("a")
            .example("ledger_kinds")
            .env("ENTRIES_TOPIC", world.incoming())
            .env("OVERDRAFTS_TOPIC", world.outgoing())
            // Accounts are in several partitions, so two writers meet at them.
            .env("TIDEGATE__APPLY__WRITERS", 2)
            .batch_records_max(size)
            .start();
        world.wait_until_done(LONG);
        wait_until(LONG, "all that is early has followed", || {
            world.parked() == 3 * KINDS.len() as i64
        });
        process.stop();
        for kind in KINDS {
            assert_eq!(balances_of(&world, kind), expected.balances, "{kind}");
            let messages = messages_of(&world, kind);
            assert_eq!(messages, messages_of(&world, KINDS[0]), "{kind}");
            assert_eq!(in_any_order(messages), overdrafts, "{kind}");
            let parked: Vec<(String,)> = world.db.rows(&format!(
                "SELECT entity FROM tidegate.dead_letter WHERE projection = '{kind}' AND state = 'waiting'
                 ORDER BY partition, record_offset"
            ));
            let parked: Vec<String> = parked.into_iter().map(|(entity,)| entity).collect();
            assert_eq!(parked, ["bad", "bad", "bad"], "{kind}");
            let failed: i64 = world.db.one(&format!(
                "SELECT count(*) FROM tidegate.dead_letter
                 WHERE projection = '{kind}' AND reason IN ('undecodable', 'rejected')"
            ));
            assert_eq!(failed, 1, "{kind}: one is at fault, two wait behind it");
        }
        world.tidegate(&["verify"]).expect(0);
    }
}

/// The balances of the ledger's configuration, without its turnover.
fn balances() -> String {
    let config = example("tidegate.toml");
    let from = config.find("[projections.balances]").unwrap();
    let to = config.find("# Turnover").unwrap();
    config[from..to]
        .replace("ledger.entries", "@in@")
        .replace("ledger.overdrafts", "@out@")
}

const SETUP_WITH_GATE: &str = "
    CREATE TABLE balance (
        account text PRIMARY KEY, amount bigint NOT NULL, entries bigint NOT NULL,
        _sequence bigint NOT NULL, _previous bigint
    )";

/// The same with the gate in the rows of `balance`.
fn balances_with_gate() -> String {
    let apply = r#"
INSERT INTO balance AS b (account, amount, entries, _sequence, _previous)
SELECT account, sum(amount), count(*), max(_sequence), max(_previous) FROM events GROUP BY account ORDER BY account
ON CONFLICT (account) DO UPDATE
SET amount = b.amount + excluded.amount, entries = b.entries + excluded.entries,
    _sequence = excluded._sequence, _previous = excluded._previous
WHERE b._sequence = excluded._previous"""

"#;
    let balances = balances();
    let from = balances.find("INSERT INTO").unwrap();
    let to = balances.find("# One message").unwrap();
    balances
        .replace(&balances[from..to], apply)
        .replace("projections.balances", "projections.balances_with_gate")
        .replace("balances.sql", "balances_with_gate.sql")
        .replace(
            "gate     = \"next\"",
            "gate     = \"next\"\ngate_in  = \"balance.account\"",
        )
}

fn setup() -> String {
    example("balances.sql")
}

fn example(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ledger");
    fs::read_to_string(format!("{folder}/{name}")).unwrap()
}

/// Entries of 30 accounts in several partitions, each up to four places from where it belongs, some of them twice; and
/// an account whose second entry cannot be applied. Copies are where the original is, so that it is a fact of the
/// log which of them is the first.
fn produce_disordered(world: &World) {
    let mut random = world.random();
    let mut entries: Vec<(usize, i32, Value)> = Vec::new();
    for seq in 1..=30 {
        for account in 0..30 {
            let (account, at) = (format!("a-{account}"), entries.len());
            let partition = random.i32(0..PARTITIONS);
            let entry = json!({
                "account": account, "seq": seq, "id": format!("{account}/{seq}"),
                "amount": random.i64(-300..=310), "booked_at": "2026-01-31T09:30:00Z",
            });
            let place = |random: &mut fastrand::Rng| at + random.usize(0..120);
            entries.push((place(&mut random), partition, entry.clone()));
            while random.u8(..100) < 10 {
                entries.push((place(&mut random), partition, entry.clone()));
            }
        }
    }
    for seq in 1..=4 {
        let amount = match seq {
            2 => json!("a lot"),
            _ => json!(-5),
        };
        let entry = json!({
            "account": "bad", "seq": seq, "id": format!("bad/{seq}"),
            "amount": amount, "booked_at": "2026-01-31T09:30:00Z",
        });
        entries.push((seq * 200, 0, entry));
    }
    entries.sort_by_key(|(place, ..)| *place);
    let sender = world.sender();
    for (_, partition, entry) in entries {
        sender.send_json(partition, &entry);
    }
    sender.flush();
}

/// The log without the entry that cannot be applied: those behind it are then early for the oracle too.
fn readable(world: &World) -> Vec<LogRecord> {
    let mut log = world.log();
    log.retain(|record| record.json()["amount"].is_i64());
    log
}

pub(crate) fn balances_of(world: &World, kind: &str) -> BTreeMap<String, (i64, i64)> {
    let rows: Vec<(String, i64, i64)> = world.db.rows(&format!(
        "SELECT account, amount, entries FROM {kind}.balance"
    ));
    rows.into_iter().map(|(a, b, c)| (a, (b, c))).collect()
}

/// Keys and payloads of messages, by partition of their record.
pub(crate) type Contents = BTreeMap<String, Vec<(String, Value)>>;

pub(crate) fn messages_of(world: &World, kind: &str) -> Contents {
    let stored = Expected {
        messages: world.outbox(),
        ..Expected::default()
    };
    contents(kind, stored.by_key().messages)
}

/// A kind's messages by partition, without the ids, which have the projection's name in them.
fn contents(kind: &str, messages: BTreeMap<String, Vec<Message>>) -> Contents {
    let of_kind = |(stream, messages): (String, Vec<Message>)| {
        let partition = stream.strip_prefix(&format!("{kind}/"))?.to_owned();
        let content = |message: Message| (message.key, message.payload);
        Some((partition, messages.into_iter().map(content).collect()))
    };
    messages.into_iter().filter_map(of_kind).collect()
}

/// The oracle has messages in the order of their records, which is another one where records have waited.
fn in_any_order(mut contents: Contents) -> Contents {
    for messages in contents.values_mut() {
        messages.sort_by_cached_key(|(key, payload)| (key.clone(), payload.to_string()));
    }
    contents
}
