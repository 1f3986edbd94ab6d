//! One test's share of Kafka and Postgres, with its configuration.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;

use super::{
    Expected, Kafka, LONG, Launch, LogRecord, Message, Output, PgBouncer, Place, Process, Sender,
    Servers, Stream, TestDb, pgbouncer_keeps_statements, remember_failures, show, unique,
    wait_until,
};

/// A projection that applies and sends every record. It has neither gate nor inbox nor key, so a
/// record that is applied twice is there twice.
const JOURNAL: &str = r#"
[projections.journal]
topics  = ["@in@"]
gate    = "none"
setup   = "journal.sql"
columns = { account = "text" }

[[projections.journal.apply]]
sql = "INSERT INTO journal (partition, record_offset) SELECT _partition, _offset FROM events"
"#;

const JOURNAL_EMIT: &str = r#"
[[projections.journal.emit]]
name  = "copy"
topic = "@out@"
sql   = "SELECT _ref, account AS key, jsonb_build_object('offset', _offset) AS payload FROM events"
"#;

const JOURNAL_FILE: (&str, &str) = (
    "journal.sql",
    "CREATE TABLE journal (partition integer NOT NULL, record_offset bigint NOT NULL)",
);

/// The topics, deleted when the last world that uses them is gone.
struct Topics {
    kafka: Kafka,
    incoming: String,
    outgoing: String,
    outgoing_partitions: i32,
    /// Of the incoming one, which may get more.
    partitions: AtomicI32,
    groups: Vec<String>,
}

impl Topics {
    fn create(kafka: &Kafka, partitions: i32) -> Self {
        let topics = Self {
            kafka: kafka.clone(),
            incoming: format!("it-{}-in", unique()),
            outgoing: format!("it-{}-out", unique()),
            outgoing_partitions: partitions,
            partitions: AtomicI32::new(partitions),
            groups: Vec::new(),
        };
        kafka.create_topic(&topics.incoming, partitions);
        kafka.create_topic(&topics.outgoing, partitions);
        topics
    }

    /// Whether accounts have moved to other partitions.
    fn have_grown(&self) -> bool {
        self.partitions.load(Ordering::SeqCst) != self.outgoing_partitions
    }

    fn none(kafka: &Kafka) -> Self {
        Self {
            kafka: kafka.clone(),
            incoming: String::new(),
            outgoing: String::new(),
            outgoing_partitions: 0,
            partitions: AtomicI32::new(0),
            groups: Vec::new(),
        }
    }
}

impl Drop for Topics {
    fn drop(&mut self) {
        if self.outgoing_partitions == 0 || self.kafka.is_private() {
            return;
        }
        let groups: Vec<&str> = self.groups.iter().map(String::as_str).collect();
        self.kafka
            .delete(&[&self.incoming, &self.outgoing], &groups);
    }
}

thread_local! {
    /// The pooler that worlds of this thread are behind.
    static POOLER: RefCell<Option<Arc<PgBouncer>>> = const { RefCell::new(None) };
}

/// Runs a test again with all processes of its worlds behind a pooler. What the test itself asks of the database, it
/// asks the server.
pub(crate) fn behind_a_pooler(test: fn()) {
    if pgbouncer_keeps_statements().is_some() {
        behind(test, false);
    }
}

/// The same behind one that keeps prepared statements, if there is one, and nobody is told of it.
pub(crate) fn behind_a_pooler_that_keeps_statements(test: fn()) {
    if pgbouncer_keeps_statements() == Some(true) {
        behind(test, true);
    }
}

fn behind(test: fn(), keeps: bool) {
    let options = PgConnectOptions::from_str(&Servers::shared().postgres).unwrap();
    let server = format!("{}:{}", options.get_host(), options.get_port());
    // Fewer sessions than a process has connections.
    POOLER.set(Some(Arc::new(PgBouncer::before(&server, 5, keeps))));
    test();
    POOLER.set(None);
}

/// A database, two topics, and a configuration.
pub(crate) struct World {
    pub(crate) db: TestDb,
    pub(crate) kafka: Kafka,
    pub(crate) seed: u64,
    prefix: String,
    projections: String,
    files: Vec<(String, String)>,
    folder: tempfile::TempDir,
    topics: Arc<Topics>,
    pooler: Option<Arc<PgBouncer>>,
    _place: Option<Place>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
            let folder = self.folder().display().to_string();
            show("configuration and logs stay in", &folder);
        }
    }
}

impl World {
    /// `projections` is the configuration without its connections; `@in@` and `@out@` in it are the two
    /// topics. `files` are put beside it. The database is migrated.
    pub(crate) fn new(partitions: i32, projections: &str, files: &[(&str, &str)]) -> Self {
        Self::new_at(&Servers::shared(), partitions, projections, files)
    }

    /// The same on other servers than those that all tests share.
    pub(crate) fn new_at(
        servers: &Servers,
        partitions: i32,
        projections: &str,
        files: &[(&str, &str)],
    ) -> Self {
        let place = Place::take();
        let topics = Arc::new(Topics::create(&servers.kafka, partitions));
        let own = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        let files = files.iter().map(own).collect();
        let projections = projections.to_owned();
        Self::with_topics(servers, topics, projections, files, Some(place))
    }

    /// The projections of `examples/ledger`, and the journal.
    pub(crate) fn ledger(partitions: i32) -> Self {
        Self::ledger_at(&Servers::shared(), partitions)
    }

    pub(crate) fn ledger_at(servers: &Servers, partitions: i32) -> Self {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/ledger");
        let read = |name: &str| fs::read_to_string(example.join(name)).unwrap();
        let config = read("tidegate.toml");
        // From the first projection on; the connections are the test's.
        let projections = config[config.find("[projections.").unwrap()..]
            .replace("ledger.entries", "@in@")
            .replace("ledger.overdrafts", "@out@");
        let (balances, turnover) = (read("balances.sql"), read("turnover.sql"));
        Self::new_at(
            servers,
            partitions,
            &format!("{projections}\n{JOURNAL}{JOURNAL_EMIT}"),
            &[
                ("balances.sql", &balances),
                ("turnover.sql", &turnover),
                JOURNAL_FILE,
            ],
        )
    }

    /// The journal alone, and it sends nothing: the positions are all that keeps it exact.
    pub(crate) fn journal(partitions: i32) -> Self {
        Self::journal_at(&Servers::shared(), partitions)
    }

    pub(crate) fn journal_at(servers: &Servers, partitions: i32) -> Self {
        Self::new_at(servers, partitions, JOURNAL, &[JOURNAL_FILE])
    }

    /// A migrated database, for what needs no topic.
    pub(crate) fn without_kafka() -> Self {
        let servers = Servers::shared();
        let topics = Arc::new(Topics::none(&servers.kafka));
        Self::with_topics(&servers, topics, String::new(), Vec::new(), None)
    }

    /// The same topics and projections, in a database and with groups of its own.
    pub(crate) fn sibling(&self) -> Self {
        let servers = Servers {
            kafka: self.kafka.clone(),
            postgres: self.db.server().to_owned(),
        };
        let topics = Arc::clone(&self.topics);
        let (projections, files) = (self.projections.clone(), self.files.clone());
        Self::with_topics(&servers, topics, projections, files, None)
    }

    fn with_topics(
        servers: &Servers,
        topics: Arc<Topics>,
        projections: String,
        files: Vec<(String, String)>,
        place: Option<Place>,
    ) -> Self {
        remember_failures();
        let seed = match std::env::var("TIDEGATE_TEST_SEED") {
            Ok(seed) => seed.parse().unwrap(),
            Err(_) => fastrand::u64(..),
        };
        eprintln!("seed {seed} (TIDEGATE_TEST_SEED={seed} repeats what is random here)");
        let mut world = Self {
            db: TestDb::create_at(&servers.postgres),
            kafka: servers.kafka.clone(),
            seed,
            prefix: format!("it-{}", unique()),
            projections: String::new(),
            files,
            folder: tempfile::tempdir().unwrap(),
            topics,
            pooler: POOLER.with_borrow(Clone::clone),
            _place: place,
        };
        for (name, text) in &world.files {
            fs::write(world.folder().join(name), text).unwrap();
        }
        // Without projections: what is wrong with them is for the test to find.
        world.tidegate(&["migrate"]).expect(0);
        world.projections = projections;
        world
    }

    /// Adds partitions to the topic that the projections read.
    pub(crate) fn add_partitions(&self, partitions: i32) {
        self.kafka.add_partitions(self.incoming(), partitions);
        self.topics.partitions.store(partitions, Ordering::SeqCst);
    }

    /// How a command reaches the database. What takes a session's lock needs the server itself.
    pub(crate) fn way_to_postgres(&self, command: &str) -> Vec<(&'static str, String)> {
        const URL: &str = "TIDEGATE__POSTGRES__URL";
        match &self.pooler {
            Some(pooler) if !["migrate", "rebuild"].contains(&command) => vec![
                (URL, self.db.url_by(&pooler.address())),
                (
                    "TIDEGATE__POSTGRES__POOLER",
                    if pooler.keeps { "none" } else { "transaction" }.to_owned(),
                ),
            ],
            _ => vec![(URL, self.db.url())],
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The topic that the projections read.
    pub(crate) fn incoming(&self) -> &str {
        &self.topics.incoming
    }

    /// The topic that their messages go to.
    pub(crate) fn outgoing(&self) -> &str {
        &self.topics.outgoing
    }

    /// How many the topic that the projections read has.
    pub(crate) fn partitions(&self) -> i32 {
        self.topics.partitions.load(Ordering::SeqCst)
    }

    /// Everything that was sent.
    pub(crate) fn sent(&self) -> Vec<LogRecord> {
        let topics = &self.topics;
        self.kafka
            .read_log(&topics.outgoing, topics.outgoing_partitions)
    }

    /// The consumer group of a projection.
    pub(crate) fn group(&self, projection: &str) -> String {
        format!("{}.{projection}", self.prefix)
    }

    /// One more projection, with its setup, for processes that start from now on.
    pub(crate) fn add_projection(&mut self, projection: &str, (name, text): (&str, &str)) {
        self.projections.push_str(projection);
        fs::write(self.folder().join(name), text).unwrap();
    }

    /// Changes the projections for processes that start from now on.
    pub(crate) fn change_projections(&mut self, from: &str, to: &str) {
        assert!(
            self.projections.contains(from),
            "nothing to replace: {from}"
        );
        self.projections = self.projections.replace(from, to);
    }

    pub(super) fn write_config(&self, name: &str, options: &[(String, String)]) -> PathBuf {
        let options: Vec<String> = options
            .iter()
            .map(|(key, value)| format!("\"{key}\" = \"{value}\""))
            .collect();
        let projections = self
            .projections
            .replace("@in@", self.incoming())
            .replace("@out@", self.outgoing());
        // The environment has the addresses.
        let text = format!(
            "[kafka]\ngroup_prefix = \"{}\"\noptions = {{ {} }}\n\n{projections}",
            self.prefix,
            options.join(", ")
        );
        let path = self.folder().join(format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        path
    }

    /// A process to be started, or a command to be run, under a name of the test's.
    pub(crate) fn launch(&self, name: &str) -> Launch<'_> {
        Launch::new(self, name)
    }

    pub(crate) fn start(&self, name: &str) -> Process {
        self.launch(name).start()
    }

    /// Runs a command of the service.
    pub(crate) fn tidegate(&self, command: &[&str]) -> Output {
        self.launch("command").output(command)
    }

    pub(crate) fn sender(&self) -> Sender {
        self.kafka.sender(self.incoming())
    }

    /// A random ledger; 40 accounts.
    pub(crate) fn stream(&self) -> Stream {
        let (topic, partitions) = (self.incoming(), self.partitions());
        Stream::new(self.seed, &self.kafka, topic, partitions, 40)
    }

    pub(crate) fn random(&self) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed ^ 0x5eed)
    }

    /// The positions of the live generations, by projection and partition.
    pub(crate) fn positions(&self) -> BTreeMap<(String, i32), i64> {
        let rows: Vec<(String, i32, i64)> = self.db.rows(
            "SELECT q.projection, q.partition, q.next_offset FROM tidegate.position q
             JOIN tidegate.projection p ON p.name = q.projection AND p.live_generation = q.generation",
        );
        let entry = |(projection, partition, next)| ((projection, partition), next);
        rows.into_iter().map(entry).collect()
    }

    /// Records applied and skipped, of all live generations.
    pub(crate) fn progress(&self) -> i64 {
        self.positions().values().sum()
    }

    /// The owner of each partition of a projection.
    pub(crate) fn owners(&self, projection: &str) -> Vec<String> {
        let rows: Vec<(String,)> = self.db.rows(&format!(
            "SELECT q.owner FROM tidegate.position q
             JOIN tidegate.projection p ON p.name = q.projection AND p.live_generation = q.generation
             WHERE q.projection = '{projection}' ORDER BY q.partition"
        ));
        rows.into_iter().map(|(owner,)| owner).collect()
    }

    /// Whether every partition of a projection belongs to this process.
    pub(crate) fn is_owned_by(&self, projection: &str, process: &Process) -> bool {
        let owners = self.owners(projection);
        let infix = format!("-{}-", process.pid());
        !owners.is_empty() && owners.iter().all(|owner| owner.contains(&infix))
    }

    /// How many partitions of a projection belong to this process.
    pub(crate) fn owned_by(&self, projection: &str, process: &Process) -> i32 {
        let infix = format!("-{}-", process.pid());
        let owners = self.owners(projection).into_iter();
        let mine = owners.filter(|owner| owner.contains(&infix));
        i32::try_from(mine.count()).unwrap()
    }

    pub(crate) fn has_some_of(&self, projection: &str, process: &Process) -> bool {
        let infix = format!("-{}-", process.pid());
        self.owners(projection)
            .iter()
            .any(|owner| owner.contains(&infix))
    }

    pub(crate) fn status(&self) -> Value {
        self.tidegate(&["status", "--json"]).expect(0).json()
    }

    /// A partition of a projection, as `status --json` shows it.
    pub(crate) fn partition_status(&self, projection: &str, partition: i32) -> Value {
        let status = self.status();
        let projections = status["projections"].as_array().unwrap();
        let found = projections
            .iter()
            .find(|p| p["name"] == projection)
            .unwrap();
        let partitions = found["partitions"].as_array().unwrap();
        let is_it = |p: &&Value| p["partition"] == partition;
        partitions.iter().find(is_it).unwrap().clone()
    }

    /// How a partition fares, and why: the `position` row's own words.
    pub(crate) fn condition(&self, projection: &str, partition: i32) -> (String, String) {
        let rows: Vec<(String, String)> = self.db.rows(&format!(
            "SELECT q.condition, q.cause FROM tidegate.position q
             JOIN tidegate.projection p ON p.name = q.projection AND p.live_generation = q.generation
             WHERE q.projection = '{projection}' AND q.partition = {partition}"
        ));
        rows.into_iter().next().unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn wait_until_halted(&self, projection: &str, partition: i32) -> String {
        let what = format!("{projection}[{partition}] is halted");
        wait_until(LONG, &what, || {
            self.condition(projection, partition).0 == "halted"
        });
        self.condition(projection, partition).1
    }

    /// Waits until all projections stand at the end of the log, for as long as they get on: fails when nothing has
    /// moved for the limit's time.
    #[track_caller]
    pub(crate) fn wait_until_done(&self, limit: Duration) {
        let ends = self.kafka.end_offsets(self.incoming(), self.partitions());
        let (mut before, mut since) = (BTreeMap::new(), Instant::now());
        loop {
            let positions = self.positions();
            let is_done = |((_, partition), next): (&(String, i32), &i64)| *next == ends[partition];
            if !positions.is_empty() && positions.iter().all(is_done) {
                return;
            }
            if positions != before {
                (before, since) = (positions, Instant::now());
            }
            if since.elapsed() > limit {
                self.give_up("the end of the log", limit);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Fails, and tells where everything is.
    #[track_caller]
    pub(crate) fn give_up(&self, what: &str, limit: Duration) -> ! {
        let status = self.tidegate(&["status"]);
        let (stdout, stderr) = (status.stdout, status.stderr);
        panic!("waited {limit:?} in vain for {what}\n{stdout}{stderr}");
    }

    /// How many records are parked.
    pub(crate) fn parked(&self) -> i64 {
        self.db
            .one("SELECT count(*) FROM tidegate.dead_letter WHERE state = 'waiting'")
    }

    /// Everything that was written for the projections.
    pub(crate) fn log(&self) -> Vec<LogRecord> {
        self.kafka.read_log(self.incoming(), self.partitions())
    }

    /// What the tables of the ledger's projections and the outbox hold; nothing where one has not started.
    pub(crate) fn stored(&self) -> Expected {
        let mut stored = Expected {
            messages: self.outbox(),
            ..Expected::default()
        };
        for (projection, _) in self.positions().into_keys().filter(|(_, p)| *p == 0) {
            match &*projection {
                "balances" => {
                    let rows: Vec<(String, i64, i64)> = self
                        .db
                        .rows("SELECT account, amount, entries FROM balances.balance");
                    stored.balances = rows.into_iter().map(|(a, b, c)| (a, (b, c))).collect();
                }
                "turnover" => {
                    let rows: Vec<(String, i64, i64, i64)> = self
                        .db
                        .rows("SELECT day::text, entries, credit, debit FROM turnover.turnover");
                    stored.turnover = rows
                        .into_iter()
                        .map(|(d, e, c, b)| (d, (e, c, b)))
                        .collect();
                }
                "newest" => {
                    let rows: Vec<(String, i64, i64)> = self
                        .db
                        .rows("SELECT account, seq, amount FROM newest.entry");
                    stored.newest = rows.into_iter().map(|(a, b, c)| (a, (b, c))).collect();
                }
                "journal" => {
                    stored.journal = self
                        .db
                        .rows("SELECT partition, record_offset FROM journal.journal ORDER BY 1, 2");
                }
                "lines" => {
                    stored.lines = self
                        .db
                        .rows("SELECT partition, record_offset FROM lines.line ORDER BY 1, 2");
                }
                // The kinds of Rust, which a test compares with the one in SQL.
                other if other.starts_with("balances_") => {}
                other => panic!("no oracle for {other}"),
            }
        }
        stored
    }

    fn expected(&self, applied: impl Fn(&str, i32) -> i64) -> Expected {
        let mut expected = Expected::of(self.incoming(), &self.log(), applied);
        if !self.projections.contains("projections.journal.emit") {
            expected
                .messages
                .retain(|stream, _| !stream.starts_with("journal/"));
        }
        expected
    }

    /// The outbox: each stream's messages in number order. Numbers must be dense from 1.
    #[track_caller]
    pub(crate) fn outbox(&self) -> BTreeMap<String, Vec<Message>> {
        type Row = (String, i64, Uuid, Vec<u8>, Vec<u8>);
        let rows: Vec<Row> = self.db.rows(
            "SELECT stream, number, id, key, payload FROM tidegate.outbox ORDER BY stream, number",
        );
        let mut outbox: BTreeMap<String, Vec<Message>> = BTreeMap::new();
        for (stream, number, id, key, payload) in rows {
            let messages = outbox.entry(stream).or_default();
            messages.push(Message {
                id,
                key: String::from_utf8(key).unwrap(),
                payload: serde_json::from_slice(&payload).unwrap(),
            });
            assert_eq!(
                number,
                i64::try_from(messages.len()).unwrap(),
                "numbers are dense"
            );
        }
        outbox
    }

    /// The number of messages of each stream.
    pub(crate) fn outbox_sizes(&self) -> BTreeMap<String, usize> {
        let rows: Vec<(String, i64)> = self
            .db
            .rows("SELECT stream, count(*) FROM tidegate.outbox GROUP BY stream");
        let size = |(stream, count): (String, i64)| (stream, usize::try_from(count).unwrap());
        rows.into_iter().map(size).collect()
    }

    /// The oracle for what is committed at this moment: whatever the positions are, tables and outbox
    /// are the fold up to exactly there (I1).
    #[track_caller]
    pub(crate) fn assert_tables_are_at_the_positions(&self) {
        let positions = self.positions();
        let expected = self.expected(|projection, partition| {
            let position = positions.get(&(projection.to_owned(), partition));
            position.copied().unwrap_or(0)
        });
        let stored = self.stored();
        match self.topics.have_grown() {
            false => assert_same(&stored, &expected),
            true => assert_same(&stored.by_key(), &expected.by_key()),
        }
    }

    /// Waits for the end of the log, and compares everything: tables = sequential fold over the log,
    /// outbox = each message once, position = end, account of every record (I6).
    #[track_caller]
    pub(crate) fn assert_exact(&self) {
        self.wait_until_done(LONG);
        self.assert_tables_are_at_the_positions();
        self.tidegate(&["verify"]).expect(0);
    }

    /// Whether a process is inside a batch's transaction and does nothing there: at a failpoint that
    /// lets it sleep.
    pub(crate) fn is_amid_batch(&self, projection: &str, process: &Process) -> bool {
        self.db.one(&format!(
            "SELECT count(*) > 0 FROM pg_stat_activity
             WHERE datname = current_database() AND state = 'idle in transaction'
               AND application_name LIKE 'tidegate %-{}-% apply {projection}'
               AND state_change < clock_timestamp() - interval '300 milliseconds'",
            process.pid()
        ))
    }
}

/// Compares piece by piece: the whole would be too long to read.
#[track_caller]
fn assert_same(stored: &Expected, expected: &Expected) {
    assert_eq!(stored.balances, expected.balances, "balances");
    assert_eq!(stored.turnover, expected.turnover, "turnover");
    assert_eq!(stored.newest, expected.newest, "newest");
    for (name, stored, expected) in [
        ("journal", &stored.journal, &expected.journal),
        ("lines", &stored.lines, &expected.lines),
    ] {
        let missing = difference(expected, stored);
        let surplus = difference(stored, expected);
        assert!(
            missing.is_empty() && surplus.is_empty(),
            "{name}: missing {missing:?}, too many {surplus:?}"
        );
    }
    let streams = |of: &Expected| of.messages.keys().cloned().collect::<Vec<_>>();
    assert_eq!(streams(stored), streams(expected), "streams");
    for (stream, messages) in &expected.messages {
        let found = &stored.messages[stream];
        let first = messages.iter().zip(found).position(|(a, b)| a != b);
        assert_eq!(
            first,
            None,
            "{stream}: {:?} and {:?}",
            first.map(|i| &found[i]),
            first.map(|i| &messages[i])
        );
        assert_eq!(found.len(), messages.len(), "{stream}: number of messages");
    }
}

/// What is in `a` more often than in `b`.
fn difference(a: &[(i32, i64)], b: &[(i32, i64)]) -> Vec<(i32, i64)> {
    let mut counts: BTreeMap<(i32, i64), i64> = BTreeMap::new();
    for entry in a {
        *counts.entry(*entry).or_default() += 1;
    }
    for entry in b {
        *counts.entry(*entry).or_default() -= 1;
    }
    let more = counts.into_iter().filter(|(_, count)| *count > 0);
    more.map(|(entry, _)| entry).take(20).collect()
}
