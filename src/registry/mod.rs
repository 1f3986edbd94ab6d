//! The schemas that a Confluent-compatible registry knows by number.
//!
//! Each is asked for once and kept for the life of the process. What a number stands for is remembered in Postgres
//! too, as a fingerprint: a registry that has lost its data and gives numbers anew is noticed, and nothing is read
//! with the wrong schema (I10). A registry that fails, is slow, or does not let us in says nothing about a record:
//! whoever asked tries again later. Only that all its servers deny a number, for longer than a grace, is an answer; it
//! is asked again after a while.
//!
//! There is deliberately no look at versions or subjects: a number is all that a record has.

mod client;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::avro::Schema;
use crate::engine::Class;
use crate::store::registry_schema::{self, Remembered};
use crate::store::{self, Database};
use crate::telemetry;

pub(crate) use client::Credentials;
use client::{Answer, Client};

/// How long it is believed that a number is unknown: a registry gives them out one after the other, and may give
/// out this one any moment.
const UNKNOWN_FOR: Duration = Duration::from_secs(2);
/// After so long without a question it is new again, and has its grace again.
const UNKNOWN_ANEW: Duration = Duration::from_secs(60);
/// How long a failure answers everybody who asks.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// Where the registry is and how it is asked.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// What its numbers are remembered under: another registry has another name.
    pub(crate) name: String,
    /// Its servers, in the order in which they are asked.
    pub(crate) urls: Vec<String>,
    pub(crate) credentials: Credentials,
    /// PEM files: of whom to trust instead of the system's authorities, and of who we are, with its key.
    pub(crate) authorities: Option<Vec<u8>>,
    pub(crate) identity: Option<Vec<u8>>,
    /// For each question.
    pub(crate) timeout: Duration,
    /// How long a number may be unknown before its records are at fault: a server may lag behind.
    pub(crate) unknown_grace: Duration,
}

/// What a number stands for.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    Schema(Arc<Schema>),
    /// Nothing that can be read, for this reason.
    Not(Arc<str>),
}

/// Why it is not known what a number stands for.
#[derive(Clone, Debug)]
pub(crate) struct Unavailable {
    pub(crate) class: Class,
    pub(crate) why: String,
}

#[derive(Debug)]
enum Entry {
    Known(Known),
    /// No server has it.
    Unknown {
        since: Instant,
        asked: Instant,
    },
}

/// A registry, for all projections of a process.
#[derive(Debug)]
pub(crate) struct Registry {
    name: String,
    client: Client,
    database: Database,
    unknown_grace: Duration,
    entries: RwLock<HashMap<u32, Entry>>,
    /// Held while asking, so that nobody asks the same.
    asking: tokio::sync::Mutex<Option<Failed>>,
}

/// A question that was not answered.
#[derive(Debug)]
struct Failed {
    at: Instant,
    why: Unavailable,
}

/// Why settings cannot be used; none if they can.
pub(crate) fn problem(settings: &Settings) -> Option<String> {
    Client::new(settings.clone()).err()
}

impl Registry {
    /// # Errors
    /// When the settings cannot be used.
    pub(crate) fn new(settings: Settings, database: Database) -> Result<Self, String> {
        Ok(Self {
            name: settings.name.clone(),
            unknown_grace: settings.unknown_grace,
            client: Client::new(settings)?,
            database,
            entries: RwLock::new(HashMap::new()),
            asking: tokio::sync::Mutex::new(None),
        })
    }

    /// What is known of a number without asking.
    pub(crate) fn known(&self, id: u32) -> Option<Known> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        match entries.get(&id)? {
            Entry::Known(known) => Some(known.clone()),
            Entry::Unknown { since, asked } => {
                let settled = asked.duration_since(*since) >= self.unknown_grace;
                (settled && asked.elapsed() < UNKNOWN_FOR).then(|| {
                    let why = format!(
                        "the schema registry has no schema with the id {id}; once it has, `tidegate dead-letters redrive` applies the record"
                    );
                    Known::Not(why.into())
                })
            }
        }
    }

    /// Asks for those of the numbers that are not known. Afterwards [`known`](Self::known) answers for each.
    ///
    /// # Errors
    /// The first that could not be asked for, or must be waited for. Those behind one that must be waited for are
    /// asked for all the same, so that they wait at the same time.
    pub(crate) async fn learn(&self, ids: &BTreeSet<u32>) -> Result<(), Unavailable> {
        let mut failed = self.asking.lock().await;
        // Whoever has waited for the lock need not wait for the same again.
        if let Some(Failed { at, why }) = &*failed
            && at.elapsed() < FAILED_FOR
        {
            return Err(why.clone());
        }
        let mut waits = Ok(());
        for id in ids {
            if self.known(*id).is_some() {
                continue;
            }
            match self.ask(*id).await {
                Ok(true) => {}
                Ok(false) => waits = waits.and(Err(self.waited_for(*id))),
                Err(why) => {
                    let at = Instant::now();
                    *failed = Some(Failed {
                        at,
                        why: why.clone(),
                    });
                    return Err(why);
                }
            }
        }
        waits
    }

    fn waited_for(&self, id: u32) -> Unavailable {
        let grace = self.unknown_grace;
        Unavailable {
            class: Class::Transient,
            why: format!(
                "the schema registry does not know the schema id {id}; waiting up to {grace:?} for it"
            ),
        }
    }

    /// False if it must be waited for.
    async fn ask(&self, id: u32) -> Result<bool, Unavailable> {
        let answer = self.client.schema(id).await;
        let outcome = match &answer {
            Ok(Answer::Unknown) => "unknown",
            Ok(_) => "known",
            Err(_) => "failed",
        };
        telemetry::registry_asked(outcome);
        let answer = answer.map_err(|why| Unavailable {
            class: Class::Transient,
            why: format!("schema {id} cannot be asked for: {why}"),
        })?;
        let known = match answer {
            Answer::Unknown => return Ok(self.is_unknown(id)),
            Answer::Unusable(why) => {
                Known::Not(format!("the schema with the id {id} is not usable: {why}").into())
            }
            Answer::Schema {
                text,
                references,
                fingerprint,
            } => {
                self.remember(id, fingerprint).await?;
                let references: Vec<&str> = references.iter().map(String::as_str).collect();
                match Schema::parse(&text, &references) {
                    Ok(schema) => {
                        let name = schema.record_name().unwrap_or_default();
                        info!(id, name, "learned a schema from the registry");
                        Known::Schema(Arc::new(schema))
                    }
                    Err(why) => {
                        warn!(id, why, "the registry has a schema that cannot be read");
                        let why = format!("the schema with the id {id} cannot be read: {why}");
                        Known::Not(why.into())
                    }
                }
            }
        };
        self.set(id, Entry::Known(known));
        Ok(true)
    }

    /// The id of a schema under a subject; registers it if it is not there, if that is wanted.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn id_of(
        &self,
        subject: &str,
        schema: &str,
        register: bool,
    ) -> Result<u32, String> {
        let id = self.client.id_of(subject, schema, register).await;
        telemetry::registry_asked(if id.is_ok() { "known" } else { "failed" });
        id.map_err(|why| format!("the schema of subject `{subject}` has no id: {why}"))
    }

    fn set(&self, id: u32, entry: Entry) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.insert(id, entry);
    }

    /// Whether its grace is over.
    fn is_unknown(&self, id: u32) -> bool {
        let asked = Instant::now();
        let since = {
            let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
            match entries.get(&id) {
                Some(Entry::Unknown { since, asked }) if asked.elapsed() < UNKNOWN_ANEW => *since,
                _ => asked,
            }
        };
        self.set(id, Entry::Unknown { since, asked });
        asked.duration_since(since) >= self.unknown_grace
    }

    /// A number stands for one schema for ever.
    async fn remember(&self, id: u32, fingerprint: uuid::Uuid) -> Result<(), Unavailable> {
        let failed = |error: store::Error| Unavailable {
            class: error.class(),
            why: format!("schema {id} cannot be compared with what is remembered: {error}"),
        };
        let remember = registry_schema::remember(&self.database, &self.name, id, fingerprint);
        let remembered = remember.await.map_err(failed)?;
        match remembered {
            Remembered::Same => Ok(()),
            Remembered::Other { first_seen } => Err(Unavailable {
                class: Class::Halt,
                why: format!(
                    "schema {id} of the registry is another one than it was on {first_seen}: the registry has lost its data, or is another one. Nothing is read with it. If it is another registry, give it another `schema_registry.name`; if it lost its data, restore it"
                ),
            }),
        }
    }
}
