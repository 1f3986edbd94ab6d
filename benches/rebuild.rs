//! What a rebuild costs: against the same projection catching up by itself, and against the limit, which is the slower
//! of draining the topic and of COPY plus index build of the result.
//!
//! `cargo bench --bench rebuild` with Kafka and Postgres in the environment (`deploy/local/up`, then
//! `source target/local/env`); `-- fold`, `sql` or `live` runs one of them, `--rounds N` repeats it, `--events N` over
//! `--entities N` is its size, `--index` gives the table a further index. Figures are ratios of one run: the machine's
//! other work hits all sides.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark"
)]

use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde::Deserialize;
use sqlx::postgres::PgPoolCopyExt as _;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use tidegate::projection::{
    Columns, Event, Fold, Gate, HandlerError, Messages, Projection, Registry, Source, State,
};

const PARTITIONS: i32 = 6;
/// Says to this program that it is a Tidegate with a projection of its own, and of which topic and version.
const TOPIC: &str = "BENCH_TOPIC";
const VERSION: &str = "BENCH_VERSION";
const SETUP: &str =
    "CREATE TABLE seen (entity text PRIMARY KEY, sequence bigint NOT NULL, amount bigint NOT NULL)";
const INDEX: &str = "; CREATE INDEX seen_amount ON seen (amount)";

fn main() -> ExitCode {
    if let Ok(topic) = std::env::var(TOPIC) {
        return tidegate::cli::main(registry(&topic));
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)?.parse::<i64>().ok()
    };
    let asked = |name: &str| arguments.iter().any(|argument| argument == name);
    let all = !["fold", "sql", "live"].iter().any(|name| asked(name));
    let rounds = value("--rounds").unwrap_or(3);
    let events = value("--events").unwrap_or(2_000_000);
    let entities = value("--entities").unwrap_or(100_000);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let topic = format!("bench-{:08x}", fastrand::u32(..));
        produce(&topic, events, entities).await;
        let mut kinds = Vec::new();
        for (name, kind) in [("fold", Kind::Fold), ("sql", Kind::Sql)] {
            if all || asked(name) {
                kinds.push((name, kind, Vec::new()));
            }
        }
        for round in 1..=rounds {
            for (name, kind, ratios) in &mut kinds {
                let place = Place::new(&topic, *kind, asked("--index")).await;
                ratios.push(rebuild(place, name, round, events).await);
            }
        }
        for (name, _, ratios) in kinds {
            let median = |pick: fn(&(f64, f64)) -> f64| {
                let mut values: Vec<f64> = ratios.iter().map(pick).collect();
                values.sort_by(f64::total_cmp);
                values[values.len() / 2]
            };
            println!(
                "{name:4} median: {:.2} times the rate of catching up, {:.2} of the limit",
                median(|ratios| ratios.0),
                median(|ratios| ratios.1)
            );
        }
        if all || asked("live") {
            let place = Place::new(&topic, Kind::Fold, asked("--index")).await;
            live(place, events, entities).await;
        }
    });
    ExitCode::SUCCESS
}

// The projection in Rust; the one in SQL makes the same table.

#[derive(sqlx::FromRow)]
struct Seen {
    sequence: i64,
    amount: i64,
}

impl State for Seen {
    const TABLE: &'static str = "seen";
    const KEY: &'static str = "entity";

    fn columns(columns: &mut Columns<'_, Self>) {
        columns.column("sequence", |seen| seen.sequence);
        columns.column("amount", |seen| seen.amount);
    }
}

#[derive(Deserialize)]
struct Entry {
    sequence: i64,
    amount: i64,
}

struct Sum;

impl Fold for Sum {
    type State = Seen;

    fn fold(
        &self,
        state: Option<Seen>,
        event: &Event<'_>,
        _: &mut Messages,
    ) -> Result<Option<Seen>, HandlerError> {
        let entry: Entry = event.json()?;
        Ok(Some(Seen {
            sequence: entry.sequence,
            amount: state.map_or(0, |seen| seen.amount) + entry.amount,
        }))
    }
}

fn registry(topic: &str) -> Registry {
    let version = std::env::var(VERSION).unwrap().parse().unwrap();
    let setup = format!("{SETUP}{}", std::env::var("BENCH_INDEX").unwrap());
    let projection = Projection::fold("seen", version, &[topic], Gate::NEXT, Sum)
        .entity(Source::Pointer("/entity".to_owned()))
        .sequence(Source::Pointer("/sequence".to_owned()))
        .setup(&setup);
    Registry::new().register(projection).unwrap()
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Fold,
    Sql,
}

/// A database and a configuration, for a topic that is there.
struct Place {
    connection: PgConnection,
    url: String,
    database: String,
    folder: tempfile::TempDir,
    topic: String,
    kind: Kind,
    index: &'static str,
}

impl Place {
    async fn new(topic: &str, kind: Kind, with_index: bool) -> Self {
        let server = std::env::var("TIDEGATE__POSTGRES__URL").unwrap();
        let name = format!("bench_{:08x}", fastrand::u32(..));
        let mut connection = PgConnection::connect(&server).await.unwrap();
        run(&mut connection, &format!("CREATE DATABASE {name}")).await;
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        let place = Self {
            connection: PgConnection::connect(&url).await.unwrap(),
            url,
            database: name,
            folder: tempfile::tempdir().unwrap(),
            topic: topic.to_owned(),
            kind,
            index: if with_index { INDEX } else { "" },
        };
        let setup = format!("{SETUP}{}", place.index);
        std::fs::write(place.folder.path().join("seen.sql"), setup).unwrap();
        for version in [1, 2] {
            let projection = match kind {
                Kind::Fold => String::new(),
                Kind::Sql => format!(
                    "[projections.seen]\nversion = {version}\ntopics = [\"{topic}\"]\n\
                     entity = \"/entity\"\nsequence = \"/sequence\"\ngate = \"next\"\nsetup = \"seen.sql\"\n\
                     columns = {{ entity = \"text\", sequence = \"bigint\", amount = \"bigint\" }}\n\n\
                     [[projections.seen.apply]]\nsql = \"INSERT INTO seen AS s (entity, sequence, amount) \
                     SELECT entity, max(sequence), sum(amount)::bigint FROM events GROUP BY entity \
                     ON CONFLICT (entity) DO UPDATE SET sequence = excluded.sequence, \
                     amount = s.amount + excluded.amount\"\n"
                ),
            };
            let text = format!(
                "[kafka]\ngroup_prefix = \"{}\"\n\n{projection}",
                place.database
            );
            std::fs::write(place.folder.path().join(format!("v{version}.toml")), text).unwrap();
        }
        place.tidegate(1, &["migrate"]).status().unwrap();
        place
    }

    fn tidegate(&self, version: i32, command: &[&str]) -> Command {
        let mut tidegate = match self.kind {
            Kind::Fold => Command::new(std::env::current_exe().unwrap()),
            Kind::Sql => Command::new(env!("CARGO_BIN_EXE_tidegate")),
        };
        if self.kind == Kind::Fold {
            tidegate
                .env(TOPIC, &self.topic)
                .env(VERSION, version.to_string())
                .env("BENCH_INDEX", self.index);
        }
        let quiet = std::env::var("BENCH_LOG").is_err();
        let config = self.folder.path().join(format!("v{version}.toml"));
        tidegate
            .args(command)
            .arg("--config")
            .arg(config)
            .env("TIDEGATE__POSTGRES__URL", &self.url)
            .stdout(if quiet {
                Stdio::null()
            } else {
                Stdio::inherit()
            })
            .stderr(if quiet {
                Stdio::null()
            } else {
                Stdio::inherit()
            });
        tidegate
    }

    async fn count(&mut self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&mut self.connection)
            .await
            .unwrap()
    }

    async fn wait_for(&mut self, goal: i64) {
        while self.count(CONSUMED).await < goal {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Seconds that a rebuild takes, from the command's start to its end.
    fn build(&self) -> f64 {
        let began = Instant::now();
        let done = self.tidegate(2, &["rebuild", "start", "seen"]).status();
        assert!(done.unwrap().success(), "the rebuild failed");
        began.elapsed().as_secs_f64()
    }

    async fn drop(mut self) {
        self.connection.close().await.unwrap();
        let server = std::env::var("TIDEGATE__POSTGRES__URL").unwrap();
        self.connection = PgConnection::connect(&server).await.unwrap();
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.database);
        run(&mut self.connection, &drop).await;
    }
}

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await
        .unwrap();
}

const CONSUMED: &str =
    "SELECT coalesce(sum(consumed), 0)::bigint FROM tidegate.position WHERE generation = 1";

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The rate of a rebuild, as a ratio to that of catching up, and to the limit.
async fn rebuild(mut place: Place, name: &str, round: i64, events: i64) -> (f64, f64) {
    let running = Running(place.tidegate(1, &["run"]).spawn().unwrap());
    place.wait_for(1).await;
    let (from, since) = (place.count(CONSUMED).await, Instant::now());
    place.wait_for(events).await;
    let catch_up = (events - from) as f64 / since.elapsed().as_secs_f64();
    drop(running);
    run(&mut place.connection, "CHECKPOINT").await;
    let rebuilt = events as f64 / place.build();
    let same = "SELECT (SELECT count(*) FROM (TABLE seen.seen EXCEPT TABLE seen__g2.seen) AS d)
                     + (SELECT count(*) FROM (TABLE seen__g2.seen EXCEPT TABLE seen.seen) AS d)";
    assert_eq!(place.count(same).await, 0, "the tables differ");
    let drained = events as f64 / drain(&place.topic, events);
    let copied = events as f64 / copy(&mut place).await;
    let limit = drained.min(copied);
    println!(
        "{name:4} round {round}: rebuild {rebuilt:9.0} events/s, catching up {catch_up:9.0}, ratio {:.2}; limit {limit:9.0} (drain {drained:.0}, copy {copied:.0}), ratio {:.2}",
        rebuilt / catch_up,
        rebuilt / limit
    );
    place.drop().await;
    (rebuilt / catch_up, rebuilt / limit)
}

/// Seconds that reading all records takes, and nothing else.
fn drain(topic: &str, events: i64) -> f64 {
    let kafka = std::env::var("TIDEGATE__KAFKA__BOOTSTRAP_SERVERS").unwrap();
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &kafka)
        .set("group.id", "bench")
        .create()
        .unwrap();
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(topic, partition, Offset::Beginning)
            .unwrap();
    }
    let began = Instant::now();
    consumer.assign(&all).unwrap();
    let mut read = 0;
    while read < events {
        if let Some(message) = consumer.poll(Duration::from_millis(100)) {
            message.unwrap();
            read += 1;
        }
    }
    began.elapsed().as_secs_f64()
}

/// Seconds that COPY and the indexes of the result take.
async fn copy(place: &mut Place) -> f64 {
    let pool = PgPool::connect(&place.url).await.unwrap();
    let mut took = Duration::ZERO;
    for (table, key) in [("seen", "entity"), ("_gate", "entity")] {
        let mut rows = Vec::new();
        let statement = format!("COPY seen__g2.{table} TO STDOUT WITH (FORMAT binary)");
        let mut out = pool.copy_out_raw(&statement).await.unwrap();
        while let Some(bytes) = futures_util::StreamExt::next(&mut out).await {
            rows.push(bytes.unwrap());
        }
        drop(out);
        let create = format!("CREATE TABLE public.{table} (LIKE seen__g2.{table})");
        run(&mut place.connection, &create).await;
        let began = Instant::now();
        let statement = format!("COPY public.{table} FROM STDIN WITH (FORMAT binary)");
        let mut copy = place.connection.copy_in_raw(&statement).await.unwrap();
        for bytes in rows {
            copy.send(bytes).await.unwrap();
        }
        copy.finish().await.unwrap();
        let index = match (table, place.index) {
            ("seen", INDEX) => "CREATE INDEX ON public.seen (amount)",
            _ => "",
        };
        let keyed = format!("ALTER TABLE public.{table} ADD PRIMARY KEY ({key}); {index}");
        run(&mut place.connection, &keyed).await;
        took += began.elapsed();
    }
    took.as_secs_f64()
}

fn producer() -> ThreadedProducer<DefaultProducerContext> {
    let kafka = std::env::var("TIDEGATE__KAFKA__BOOTSTRAP_SERVERS").unwrap();
    ClientConfig::new()
        .set("bootstrap.servers", &kafka)
        .set("linger.ms", "20")
        .set("compression.type", "lz4")
        .create()
        .unwrap()
}

fn send(producer: &ThreadedProducer<DefaultProducerContext>, topic: &str, key: &str, value: &str) {
    let mut record = BaseRecord::to(topic).key(key).payload(value);
    while let Err((_, refused)) = producer.send(record) {
        record = refused;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Every entity's events in a run of their own, in another order of entities each time.
async fn produce(topic: &str, events: i64, entities: i64) {
    let kafka = std::env::var("TIDEGATE__KAFKA__BOOTSTRAP_SERVERS").unwrap();
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", &kafka)
        .create()
        .unwrap();
    let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
    let made = admin
        .create_topics(&[new], &AdminOptions::new())
        .await
        .unwrap();
    made.into_iter().next().unwrap().unwrap();
    let producer = producer();
    for number in 0..events {
        let (sequence, place) = (number / entities + 1, number % entities);
        // A step without a divisor in common with the number of entities visits each once.
        let entity = (place * 7_919 + sequence * 31) % entities;
        let key = format!("entity-{entity:08}");
        let value = format!(
            r#"{{"entity":"{key}","sequence":{sequence},"amount":{},"at":"2026-01-31T09:30:00Z"}}"#,
            number % 1_000
        );
        send(&producer, topic, &key, &value);
    }
    producer.flush(Duration::from_secs(120)).unwrap();
}

/// How long after it was sent an event's effects can be read, with and without a rebuild beside.
async fn live(mut place: Place, events: i64, entities: i64) {
    let running = Running(place.tidegate(1, &["run"]).spawn().unwrap());
    place.wait_for(events).await;
    let stop = Arc::new(AtomicBool::new(false));
    let (topic, told) = (place.topic.clone(), Arc::clone(&stop));
    let feeder = std::thread::spawn(move || {
        let producer = producer();
        let mut sequence = events / entities;
        'all: loop {
            sequence += 1;
            for entity in 0..entities {
                if told.load(Ordering::Relaxed) {
                    break 'all;
                }
                let key = format!("entity-{entity:08}");
                let value = format!(r#"{{"entity":"{key}","sequence":{sequence},"amount":1}}"#);
                send(&producer, &topic, &key, &value);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        producer.flush(Duration::from_secs(60)).unwrap();
    });
    let mut sequence = 0;
    let alone = latencies(&mut place, &mut sequence, Duration::from_secs(15), || false).await;
    let mut build = place
        .tidegate(2, &["rebuild", "start", "seen"])
        .spawn()
        .unwrap();
    let ended = || build.try_wait().unwrap().is_some();
    let beside = latencies(&mut place, &mut sequence, Duration::from_secs(300), ended).await;
    stop.store(true, Ordering::Relaxed);
    feeder.join().unwrap();
    drop(running);
    let at = |waited: &[Duration], share: usize| {
        waited[(waited.len() * share / 100).min(waited.len() - 1)].as_secs_f64() * 1_000.0
    };
    println!(
        "live: event to effect, median {:.1} ms alone, {:.1} ms beside a rebuild; 99 % {:.1} ms and {:.1} ms, ratio {:.2} ({} and {} probes)",
        at(&alone, 50),
        at(&beside, 50),
        at(&alone, 99),
        at(&beside, 99),
        at(&beside, 99) / at(&alone, 99),
        alone.len(),
        beside.len()
    );
    place.drop().await;
}

async fn latencies(
    place: &mut Place,
    sequence: &mut i64,
    limit: Duration,
    mut ended: impl FnMut() -> bool,
) -> Vec<Duration> {
    let kafka = std::env::var("TIDEGATE__KAFKA__BOOTSTRAP_SERVERS").unwrap();
    let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
        .set("bootstrap.servers", &kafka)
        .set("linger.ms", "0")
        .create()
        .unwrap();
    let mut waited = Vec::new();
    let began = Instant::now();
    while began.elapsed() < limit && !ended() {
        *sequence += 1;
        let value = format!(r#"{{"entity":"probe","sequence":{sequence},"amount":1}}"#);
        let sent = Instant::now();
        send(&producer, &place.topic, "probe", &value);
        let seen = "SELECT coalesce((SELECT sequence FROM seen.seen WHERE entity = 'probe'), 0)";
        while place.count(seen).await < *sequence {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        waited.push(sent.elapsed());
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..25))).await;
    }
    waited.sort_unstable();
    waited
}
