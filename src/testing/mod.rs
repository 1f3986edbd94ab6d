//! Tests of projections: given events, what is in the tables, and whether that holds however the events come.
//!
//! A [`Test`] needs a Postgres, in which it makes databases of its own, and no Kafka. It applies the events in the
//! transaction that the service uses, with gate, inbox, outbox and positions. What comes of them is compared with
//! what the test expects; then the same events are applied in other batches, after a crash in every batch, a second
//! time from the beginning as a rebuild does it, and with copies of events mixed in, and every table and message must
//! be the same. So nobody need think of testing that a projection is idempotent.
//!
//! ```no_run
//! # use tidegate::projection::Projection;
//! use serde_json::json;
//! use tidegate::testing::{Given, Test};
//!
//! # async fn example(balances: Projection) -> Result<(), Box<dyn std::error::Error>> {
//! Test::of(&balances)
//!     .given(Given::json(json!({ "account": "a", "seq": 1, "amount": 5 })))
//!     .given(Given::json(json!({ "account": "a", "seq": 2, "amount": -2 })))
//!     .then("balance", json!([{ "account": "a", "amount": 3 }]))
//!     .run("postgres://postgres@localhost/postgres")
//!     .await?;
//! # Ok(())
//! # }
//! ```

mod fixture;
mod outcome;
mod variation;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;

pub(crate) use self::fixture::{Case, read};
use self::outcome::Outcome;
use self::variation::Variation;
use crate::avro;
use crate::projection::Projection;
use crate::runtime::{self, Rehearsal, RehearsalError};
use crate::store::{self, Database, Timeouts, migration, scratch};
use crate::types::{Header, Record, RecordBuilder, TopicPartition};

/// The time of the first event that has none: each later one is a second later.
const FIRST_TIME_MS: i64 = 1_767_225_600_000; // 2026-01-01T00:00:00Z

/// An event that a projection is given.
#[derive(Clone, Debug, Default)]
pub struct Given {
    topic: Option<String>,
    partition: i32,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    /// A value that is still to be written as the projection's format has it.
    json: Option<Value>,
    headers: Vec<Header>,
    timestamp_ms: Option<i64>,
}

impl Given {
    /// An event with this value. Where values are Avro it is written with the projection's schema, as the `jsonb` columns of
    /// such values have it; a change event is written as a whole.
    ///
    /// ```
    /// # use serde_json::json;
    /// # use tidegate::testing::Given;
    /// let change = json!({ "op": "c", "source": { "lsn": 7 }, "after": { "id": 1, "name": "Ann" } });
    /// let given = Given::json(change);
    /// let cloud_event = Given::json(json!({ "total": 5 }))
    ///     .header("ce_specversion", "1.0")
    ///     .header("ce_type", "OrderPlaced");
    /// ```
    pub fn json(value: Value) -> Self {
        Self {
            json: Some(value),
            ..Self::default()
        }
    }

    /// An event with these bytes as its value; a datum without a frame where values are Avro.
    pub fn bytes(value: impl Into<Vec<u8>>) -> Self {
        Self {
            value: Some(value.into()),
            ..Self::default()
        }
    }

    /// An event without a value.
    pub fn tombstone(key: impl Into<Vec<u8>>) -> Self {
        Self::default().key(key)
    }

    /// The record's key; none if it is not said.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// One more header of the record.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push(Header {
            name: name.to_owned(),
            value: Some(value.into()),
        });
        self
    }

    /// The topic it comes from; the projection's first one if it is not said.
    #[must_use]
    pub fn topic(mut self, topic: &str) -> Self {
        self.topic = Some(topic.to_owned());
        self
    }

    /// The partition it comes from; 0 if it is not said.
    #[must_use]
    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = partition;
        self
    }

    /// The record's time, in milliseconds since 1970. Else events are a second apart, from 2026-01-01 on.
    #[must_use]
    pub fn timestamp_ms(mut self, timestamp_ms: i64) -> Self {
        self.timestamp_ms = Some(timestamp_ms);
        self
    }

    /// The same with its value written.
    ///
    /// # Errors
    /// What of it the projection's schema does not take.
    fn written_for(self, projection: &Projection) -> Result<Self, String> {
        let value = match (&self.json, projection.format.avro()) {
            (None, _) => self.value,
            (Some(json), None) => Some(json.to_string().into_bytes()),
            (Some(json), Some(avro)) => Some(avro::encode(&avro.schema, json)?),
        };
        Ok(Self {
            value,
            json: None,
            ..self
        })
    }

    fn partition_of(&self, projection: &Projection) -> TopicPartition {
        let topic = self.topic.as_ref().or(projection.topics.first());
        TopicPartition::new(topic.map_or("", |topic| topic).to_owned(), self.partition)
    }

    fn record(&self, offset: i64, place: usize) -> Record {
        let later = i64::try_from(place).unwrap_or(0) * 1_000;
        RecordBuilder {
            offset,
            timestamp_ms: Some(self.timestamp_ms.unwrap_or(FIRST_TIME_MS + later)),
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            headers: self.headers.clone(),
        }
        .build()
    }
}

/// Why a test has failed, as text to be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// The outcome is not what was expected, or depends on how the events come.
    #[error("projection `{projection}`: {what}")]
    Differs {
        /// The projection's name.
        projection: String,
        /// What differs, line by line.
        what: String,
    },
    /// The events could not be applied.
    #[error("projection `{projection}`, {variation}: {why}")]
    NotApplied {
        /// The projection's name.
        projection: String,
        /// How the events came.
        variation: String,
        /// The cause.
        why: String,
    },
    /// The database could not be used: nothing is known of the projection.
    #[error("the test's database: {0}")]
    Database(String),
}

impl From<store::Error> for Failed {
    fn from(error: store::Error) -> Self {
        Self::Database(error.to_string())
    }
}

/// A projection, events, and what must come of them.
#[derive(Clone, Debug)]
pub struct Test<'p> {
    projection: &'p Projection,
    given: Vec<Given>,
    prepare: String,
    tables: BTreeMap<String, Value>,
    messages: Option<Value>,
    parked: usize,
    copies: bool,
    seed: u64,
}

impl<'p> Test<'p> {
    /// A test of a projection, so far without events.
    pub fn of(projection: &'p Projection) -> Self {
        Self {
            projection,
            given: Vec::new(),
            prepare: String::new(),
            tables: BTreeMap::new(),
            messages: None,
            parked: 0,
            copies: true,
            seed: fastrand::u64(..),
        }
    }

    /// The next event.
    #[must_use]
    pub fn given(mut self, event: Given) -> Self {
        self.given.push(event);
        self
    }

    /// SQL that makes what the projection finds outside of its own schema.
    #[must_use]
    pub fn prepare(mut self, sql: &str) -> Self {
        sql.clone_into(&mut self.prepare);
        self
    }

    /// The rows of a table, in any order: an array of objects. Columns that an object does not name may have any
    /// value.
    #[must_use]
    pub fn then(mut self, table: &str, rows: Value) -> Self {
        self.tables.insert(table.to_owned(), rows);
        self
    }

    /// The messages, those of a key in order: an array of objects with `topic`, `key`, `type`, `payload`, `headers`
    /// and `partition`. What an object does not name may have any value.
    #[must_use]
    pub fn then_messages(mut self, messages: Value) -> Self {
        self.messages = Some(messages);
        self
    }

    /// How many events cannot be applied and wait; none if it is not said.
    #[must_use]
    pub fn then_parked(mut self, records: usize) -> Self {
        self.parked = records;
        self
    }

    /// Leaves out the copies of events: for a projection whose producers never send one twice.
    #[must_use]
    pub fn without_copies(mut self) -> Self {
        self.copies = false;
        self
    }

    /// Makes what is random the same as in another run, whose report says its seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs it on the server of this `postgres://` address, whose user may create databases.
    ///
    /// # Errors
    /// The first difference, from what is expected or among the ways in which the events come; or what kept the events from
    /// being applied.
    pub async fn run(&self, url: &str) -> Result<(), Failed> {
        let timeouts = Timeouts {
            statement: std::time::Duration::from_secs(30),
            lock: std::time::Duration::from_secs(10),
            idle_in_transaction: std::time::Duration::from_secs(60),
        };
        self.run_at(&Database::new(url, timeouts)?).await
    }

    pub(crate) async fn run_at(&self, server: &Database) -> Result<(), Failed> {
        let wrong = |what: &str, why: String| Failed::NotApplied {
            projection: self.projection.name.clone(),
            variation: what.to_owned(),
            why,
        };
        // As where it is registered.
        if let Some(problem) = self.projection.problems().into_iter().next() {
            return Err(wrong("its definition", problem.to_string()));
        }
        let mut written = self.clone();
        for (number, given) in (1..).zip(&mut written.given) {
            let value = given.clone().written_for(self.projection);
            *given = value.map_err(|why| wrong(&format!("event {number}"), why))?;
        }
        let mut connection = server.connect("tidegate test").await?;
        let name = format!("tidegate_test_{:016x}", fastrand::u64(..));
        scratch::create(&mut connection, &name).await?;
        let done = written.run_in(&server.named(&name)).await;
        scratch::drop(&mut connection, &name).await?;
        done
    }

    async fn run_in(&self, database: &Database) -> Result<(), Failed> {
        migration::migrate(database.connect("tidegate test").await?).await?;
        let partitions = self.partitions();
        let mut first: Option<(String, Outcome)> = None;
        for variation in variation::all(self.given.len(), self.seed, self.copies) {
            self.make(database, &partitions).await?;
            let outcome = self
                .outcome(&variation, &partitions, database.clone())
                .await
                .map_err(|error| self.not_applied(&variation.name, &error))?;
            match &first {
                None => {
                    self.compare(&outcome)?;
                    first = Some((variation.name, outcome));
                }
                Some((name, expected)) => {
                    if let Some(difference) = expected.difference(&outcome, variation.copies) {
                        return Err(self.differs(format!(
                            "{} (+) gives another outcome than {name} (-):\n{difference}  {}\n  seed {}",
                            variation.name, variation.finds, self.seed
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// All partitions of the projection's topics that events come from, and the first of each topic.
    fn partitions(&self) -> Vec<TopicPartition> {
        let topics = self.projection.topics.iter();
        let mut partitions: BTreeSet<TopicPartition> = topics
            .map(|topic| TopicPartition::new(&**topic, 0))
            .collect();
        partitions.extend(
            self.given
                .iter()
                .map(|given| given.partition_of(self.projection)),
        );
        partitions.into_iter().collect()
    }

    async fn make(&self, database: &Database, partitions: &[TopicPartition]) -> Result<(), Failed> {
        let mut connection = database.connect("tidegate test").await?;
        scratch::empty(&mut connection).await?;
        if !self.prepare.is_empty() {
            scratch::run(&mut connection, self.prepare.clone()).await?;
        }
        let timeouts = &database.timeouts;
        runtime::rehearse(&mut connection, self.projection, partitions, timeouts)
            .await
            .map_err(|error| self.not_applied("making its tables", &error))
    }

    async fn outcome(
        &self,
        variation: &Variation,
        partitions: &[TopicPartition],
        database: Database,
    ) -> Result<Outcome, RehearsalError> {
        let mut rehearsal = Rehearsal::begin(self.projection, partitions, database).await?;
        let mut offsets: BTreeMap<TopicPartition, i64> = BTreeMap::new();
        for batch in &variation.batches {
            let mut records: BTreeMap<TopicPartition, Vec<Record>> = BTreeMap::new();
            for place in batch {
                let given = &self.given[*place];
                let partition = given.partition_of(self.projection);
                let offset = offsets.entry(partition.clone()).or_default();
                let record = given.record(*offset, *place);
                *offset += 1;
                records.entry(partition).or_default().push(record);
            }
            if !records.is_empty() {
                rehearsal.apply(&records, variation.crash).await?;
            }
        }
        let mut connection = rehearsal.into_connection().await?;
        Ok(Outcome {
            tables: {
                let gate_in = self.projection.gate_in.as_ref();
                let gate_in = gate_in.map(|gate_in| &*gate_in.table);
                scratch::tables(&mut connection, &self.projection.name, gate_in).await?
            },
            messages: scratch::messages(&mut connection).await?,
            parked: scratch::parked(&mut connection).await?,
        })
    }

    /// Compares with what the test expects.
    fn compare(&self, outcome: &Outcome) -> Result<(), Failed> {
        let mut text = String::new();
        for (table, expected) in &self.tables {
            let Some(rows) = outcome.tables.get(table) else {
                let known: Vec<&str> = outcome.tables.keys().map(String::as_str).collect();
                let _ = writeln!(
                    text,
                    "  table {table}: there is none; the projection has {}",
                    known.join(", ")
                );
                continue;
            };
            let rows: Vec<Value> = rows
                .iter()
                .filter_map(|row| serde_json::from_str(row).ok())
                .collect();
            outcome::expect(&mut text, &format!("table {table}"), expected, rows, false);
        }
        if let Some(expected) = &self.messages {
            let messages = outcome.messages.iter().map(outcome::message).collect();
            outcome::expect(&mut text, "messages", expected, messages, true);
        }
        if outcome.parked.len() != self.parked {
            let _ = writeln!(
                text,
                "  parked records: {} expected, {} found",
                self.parked,
                outcome.parked.len()
            );
            for parked in &outcome.parked {
                let _ = writeln!(
                    text,
                    "    + {}[{}]@{}: {}: {}",
                    parked.topic,
                    parked.partition,
                    parked.record_offset,
                    parked.reason,
                    parked.detail
                );
            }
        }
        match text.is_empty() {
            true => Ok(()),
            false => Err(self.differs(format!("not as expected (- expected, + found):\n{text}"))),
        }
    }

    fn differs(&self, what: String) -> Failed {
        Failed::Differs {
            projection: self.projection.name.clone(),
            what: what.trim_end().to_owned(),
        }
    }

    fn not_applied(&self, variation: &str, error: &RehearsalError) -> Failed {
        Failed::NotApplied {
            projection: self.projection.name.clone(),
            variation: variation.to_owned(),
            why: error.to_string(),
        }
    }
}
