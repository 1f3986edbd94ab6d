//! Real Kafka, real Postgres, the real binary as a child process.
//!
//! A [`World`] is one test's share of them: a database, topics and consumer groups of its own, and a
//! folder for configuration and logs. Nothing sleeps for a fixed time to wait for something:
//! [`wait_until`] polls, with a limit. What is random comes from a seed that a failing test prints.

mod certificates;
mod database;
mod kafka;
mod ledger;
mod process;
mod proxy;
mod registry;
mod route;
mod servers;
mod watch;
mod world;

use std::cell::RefCell;
use std::future::Future;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};
use std::{panic, thread};

pub(crate) use certificates::Authority;
pub(crate) use database::{Session, TestDb};
pub(crate) use kafka::{
    Kafka, LogRecord, MockBroker, Sender, commit_offsets, committed_offsets, configure_topic,
    create_topic, delete, delete_records_before, end_offsets, make_anew, read_log, set_topic,
};
pub(crate) use ledger::{Expected, Feeder, Message, Stream, message_id};
pub(crate) use process::{Launch, Output, Process};
pub(crate) use proxy::{Proxy, Trouble};
pub(crate) use registry::{Mood, SchemaRegistry};
pub(crate) use route::Route;
pub(crate) use servers::{
    KafkaServer, Listener, PgBouncer, PostgresServer, RegistryServer, Servers, free_port,
    pgbouncer_keeps_statements,
};
pub(crate) use watch::Watch;
pub(crate) use world::{World, behind_a_pooler, behind_a_pooler_that_keeps_statements};

/// Enough for anything that happens at all, on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(90);

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
});

/// Tests are plain threads; what is asynchronous is awaited here.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.block_on(future)
}

/// Polls until the condition holds, or panics with what was waited for.
#[track_caller]
pub(crate) fn wait_until(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(
            began.elapsed() < limit,
            "waited {limit:?} in vain until {what}"
        );
        thread::sleep(Duration::from_millis(50));
    }
}

thread_local! {
    /// Why this thread has panicked.
    static FAILURE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Has every thread remember why it panics, for [`show`].
fn remember_failures() {
    static REMEMBERED: Once = Once::new();
    REMEMBERED.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            FAILURE.set(info.to_string());
            print(info);
        }));
    });
}

/// Shows what belongs to a test that is failing, and after it once more why: the message comes before all that
/// is dropped, and is the first thing to go where a long output is cut.
fn show(what: &str, text: &str) {
    const CHARS_MAX: usize = 2_000;
    let failure =
        FAILURE.with_borrow(|failure| failure.chars().take(CHARS_MAX).collect::<String>());
    eprintln!("== {what}\n{}\n== the test has {failure}", text.trim_end());
}

/// A setting that the script which starts Kafka and Postgres gives.
fn required(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: these tests need a Kafka and a Postgres. Run deploy/local/test, which starts both")
    })
}

pub(crate) fn bootstrap_servers() -> String {
    required("TIDEGATE__KAFKA__BOOTSTRAP_SERVERS")
}

/// A name that no other test and no earlier run has.
pub(crate) fn unique() -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    id[..12].to_owned()
}

/// How many tests may have processes of their own at a time, whatever `--test-threads` says.
const WORLDS_MAX: usize = 6;

struct Places {
    taken: Mutex<usize>,
    freed: Condvar,
}

static PLACES: Places = Places {
    taken: Mutex::new(0),
    freed: Condvar::new(),
};

/// A place among the tests that run at once; given back when dropped.
pub(crate) struct Place(());

impl Places {
    fn taken(&self) -> MutexGuard<'_, usize> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    pub(crate) fn take() -> Self {
        let mut taken = PLACES.taken();
        while *taken >= WORLDS_MAX {
            taken = PLACES
                .freed
                .wait(taken)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *taken += 1;
        Self(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *PLACES.taken() -= 1;
        PLACES.freed.notify_one();
    }
}
