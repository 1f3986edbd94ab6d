//! The schemas that a Confluent-compatible registry knows by number.
//!
//! Each is asked for once and kept for the life of the process. What a number stands for is remembered in Postgres
//! too, as a fingerprint: a registry that has lost its data and gives numbers anew is noticed when a number is asked for,
//! and nothing is read with the wrong schema (I10). For what a process knows already it is asked now and then, one
//! number after the other (`watch`); nothing waits for that.
//!
//! A registry that fails, is slow, or does not let us in says nothing about a record: whoever asked tries again later,
//! and is not kept waiting meanwhile, since others would wait with it. Only that all its servers deny a number, for longer
//! than a grace, is an answer; it is asked again after a while.
//!
//! There is deliberately no look at versions or subjects: a number is all that a record has.

mod client;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use tracing::{error, info, warn};

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
/// So long does a writer wait for an answer. Most come within; for others its other partitions would wait as well.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);
/// Numbers that are asked for again in one round of looking.
const LOOKS_MAX: usize = 50;

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
    /// How often it is asked again for what is known.
    pub(crate) verify_every: Duration,
    /// How long whoever asks waits for an answer; it is waited for in any case.
    pub(crate) patience: Duration,
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
    Known {
        known: Known,
        /// When the registry was last asked whether it still says so.
        asked: Instant,
    },
    /// No server has it.
    Unknown { since: Instant, asked: Instant },
}

/// A registry, for all projections of a process.
#[derive(Debug)]
pub(crate) struct Registry {
    name: String,
    client: Client,
    database: Database,
    unknown_grace: Duration,
    verify_every: Duration,
    patience: Duration,
    entries: RwLock<HashMap<u32, Entry>>,
    /// How often something known has turned out to be in doubt.
    doubts: AtomicU64,
    /// Held while asking, so that nobody asks the same.
    asking: Arc<tokio::sync::Mutex<Option<Failed>>>,
}

/// A question that was not answered.
#[derive(Debug)]
struct Failed {
    at: Instant,
    why: Unavailable,
}

/// Nothing is said about any record.
fn unanswered(why: String) -> Unavailable {
    Unavailable {
        class: Class::Transient,
        why,
    }
}

/// Why settings cannot be used; none if they can.
pub(crate) fn problem(settings: &Settings) -> Option<String> {
    Client::new(settings.clone()).err()
}

impl Registry {
    /// It is watched for as long as somebody has it.
    ///
    /// # Errors
    /// When the settings cannot be used.
    pub(crate) fn new(settings: Settings, database: Database) -> Result<Arc<Self>, String> {
        let registry = Arc::new(Self {
            name: settings.name.clone(),
            unknown_grace: settings.unknown_grace,
            verify_every: settings.verify_every,
            patience: settings.patience,
            client: Client::new(settings)?,
            database,
            entries: RwLock::new(HashMap::new()),
            doubts: AtomicU64::new(0),
            asking: Arc::default(),
        });
        tokio::spawn(watch(Arc::downgrade(&registry)));
        Ok(registry)
    }

    /// What is known of a number without asking.
    pub(crate) fn known(&self, id: u32) -> Option<Known> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        match entries.get(&id)? {
            Entry::Known { known, .. } => Some(known.clone()),
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

    /// Grows when what was known of a number must not be used any more.
    pub(crate) fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::Acquire)
    }

    /// Asks for those of the numbers that are not known. Afterwards [`known`](Self::known) answers for each.
    ///
    /// # Errors
    /// The first that could not be asked for, or must be waited for. Those behind one that must be waited for are
    /// asked for all the same, so that they wait at the same time. What is not answered soon is asked for all the same
    /// too: a later call finds the answer.
    pub(crate) async fn learn(self: &Arc<Self>, ids: &BTreeSet<u32>) -> Result<(), Unavailable> {
        let (registry, ids) = (Arc::clone(self), ids.clone());
        let ask = async {
            let failed = Arc::clone(&self.asking).lock_owned().await;
            // In a task of its own, so that it goes on when nobody waits any more.
            let asked = tokio::spawn(async move { registry.learn_all(failed, &ids).await });
            asked.await.map_err(|_| {
                unanswered("the question to the schema registry ended without an answer".to_owned())
            })?
        };
        let patience = self.patience;
        tokio::time::timeout(patience, ask)
            .await
            .unwrap_or_else(|_| {
                Err(unanswered(format!(
                    "the schema registry has not answered within {patience:?}; it is waited for"
                )))
            })
    }

    async fn learn_all(
        &self,
        mut failed: tokio::sync::OwnedMutexGuard<Option<Failed>>,
        ids: &BTreeSet<u32>,
    ) -> Result<(), Unavailable> {
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
                    // Who is told to go on after a halt may have mended it.
                    if why.class == Class::Transient {
                        *failed = Some(Failed {
                            at: Instant::now(),
                            why: why.clone(),
                        });
                    }
                    return Err(why);
                }
            }
        }
        waits
    }

    fn waited_for(&self, id: u32) -> Unavailable {
        let grace = self.unknown_grace;
        unanswered(format!(
            "the schema registry does not know the schema id {id}; waiting up to {grace:?} for it"
        ))
    }

    async fn question(&self, id: u32) -> Result<Answer, Unavailable> {
        let answer = self.client.schema(id).await;
        let outcome = match &answer {
            Ok(Answer::Unknown) => "unknown",
            Ok(_) => "known",
            Err(_) => "failed",
        };
        telemetry::registry_asked(outcome);
        answer.map_err(|why| unanswered(format!("schema {id} cannot be asked for: {why}")))
    }

    /// False if it must be waited for.
    async fn ask(&self, id: u32) -> Result<bool, Unavailable> {
        let answer = self.question(id).await?;
        let known = match answer {
            Answer::Unknown => return Ok(self.is_unknown(id)),
            Answer::Unusable { why, fingerprint } => {
                // It may have been one that could be read: then no record is at fault.
                if let Some(fingerprint) = fingerprint {
                    self.remember(id, fingerprint).await?;
                }
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
        let asked = Instant::now();
        self.set(id, Entry::Known { known, asked });
        Ok(true)
    }

    /// Asks again for what was asked for longest ago. What does not answer is no news, and keeps nobody from asking for the
    /// others: it may be this one alone.
    async fn look_again(&self) {
        let (mut failed, mut last) = (0, None);
        for id in self.to_verify() {
            match self.verify(id).await {
                Ok(()) => {}
                Err(Unavailable {
                    class: Class::Halt,
                    why,
                }) => {
                    error!(id, why, "what the registry says is not what it said");
                    self.doubt(id);
                }
                Err(Unavailable { why, .. }) => {
                    failed += 1;
                    last = Some(why);
                }
            }
        }
        if let Some(why) = last {
            warn!(
                failed,
                why, "schemas cannot be compared with what they were; they are asked for again"
            );
        }
    }

    /// What was asked for longest ago, of what is read.
    fn to_verify(&self) -> Vec<u32> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let mut known: Vec<(Instant, u32)> = entries
            .iter()
            .filter_map(|(id, entry)| match entry {
                Entry::Known {
                    known: Known::Schema(_),
                    asked,
                } => Some((*asked, *id)),
                _ => None,
            })
            .collect();
        known.sort_unstable();
        known.truncate(LOOKS_MAX);
        known.into_iter().map(|(_, id)| id).collect()
    }

    async fn verify(&self, id: u32) -> Result<(), Unavailable> {
        self.is_asked_for(id);
        match self.question(id).await? {
            // Not given anew so far, so that it stands for what it stood for.
            Answer::Unknown => warn!(
                id,
                "the registry does not know a schema any more that records are read with; has it lost its data?"
            ),
            Answer::Schema { fingerprint, .. } => self.remember(id, fingerprint).await?,
            Answer::Unusable { fingerprint, .. } => {
                if let Some(fingerprint) = fingerprint {
                    self.remember(id, fingerprint).await?;
                }
            }
        }
        Ok(())
    }

    /// Whatever the answer will be, others are asked for before it is again.
    fn is_asked_for(&self, id: u32) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(Entry::Known { asked, .. }) = entries.get_mut(&id) {
            *asked = Instant::now();
        }
    }

    /// Forgets what a number stands for, so that it is asked for with the next record that has it.
    pub(crate) fn doubt(&self, id: u32) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.remove(&id);
        self.doubts.fetch_add(1, Ordering::Release);
    }

    /// The id of a schema under a subject; registers it if it is not there, if that is wanted. What it stands for is
    /// [learned](Self::learn) as if it had come with a record, and watched.
    ///
    /// # Errors
    /// Why there is none, or that it was another schema's before.
    pub(crate) async fn id_of(
        &self,
        subject: &str,
        schema: &str,
        register: bool,
    ) -> Result<u32, String> {
        let id = self.client.id_of(subject, schema, register).await;
        telemetry::registry_asked(if id.is_ok() { "known" } else { "failed" });
        let id = id.map_err(|why| format!("the schema of subject `{subject}` has no id: {why}"))?;
        if self.known(id).is_none() {
            self.ask(id).await.map_err(|unavailable| unavailable.why)?;
        }
        Ok(id)
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
                    "schema {id} of the registry is another one than it was on {first_seen}: the registry has lost its data, or is another one. Nothing is read or written with it. If it is another registry, give it another `schema_registry.name`; if it lost its data, restore it"
                ),
            }),
        }
    }
}

/// Asks now and then for what is known: a registry that has lost its data gives numbers anew, and a process that knows
/// them would read new records with old schemas.
async fn watch(registry: Weak<Registry>) {
    while let Some(every) = registry.upgrade().map(|registry| registry.verify_every) {
        tokio::time::sleep(every).await;
        if let Some(registry) = registry.upgrade() {
            registry.look_again().await;
        }
    }
}
