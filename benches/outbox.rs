//! What the outbox costs: the relay against librdkafka alone, a batch with messages against one without, and how
//! soon a message is on its way.
//!
//! `cargo bench --bench outbox` with Kafka and Postgres in the environment (`deploy/local/up`, then
//! `source target/local/env`); `-- relay`, `emit`, `latency` or `backlog` runs one of them, `--rounds N` repeats it,
//! `--messages N` is its size. Figures are ratios of one run: the machine's other work hits both sides.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark"
)]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer,
};
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

const PARTITIONS: i32 = 6;
const PAYLOAD: usize = 200;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)?.parse::<i64>().ok()
    };
    let asked = |name: &str| arguments.iter().any(|argument| argument == name);
    let all = !["relay", "emit", "latency", "backlog"]
        .iter()
        .any(|name| asked(name));
    let rounds = value("--rounds").unwrap_or(3);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for round in 1..=rounds {
            if all || asked("relay") {
                relay(round, value("--messages").unwrap_or(500_000)).await;
            }
            if all || asked("emit") {
                emit(round, value("--messages").unwrap_or(1_000_000)).await;
            }
            if all || asked("latency") {
                latency(round, value("--messages").unwrap_or(200)).await;
            }
        }
        if asked("backlog") {
            backlog(value("--messages").unwrap_or(10_000_000)).await;
        }
    });
}

/// A database, a topic, and a configuration.
struct Place {
    connection: PgConnection,
    url: String,
    database: String,
    kafka: String,
    folder: tempfile::TempDir,
    topic: String,
}

impl Place {
    async fn new() -> Self {
        let kafka = std::env::var("TIDEGATE__KAFKA__BOOTSTRAP_SERVERS").unwrap();
        let server = std::env::var("TIDEGATE__POSTGRES__URL").unwrap();
        let name = format!("bench_{:08x}", fastrand::u32(..));
        let mut connection = PgConnection::connect(&server).await.unwrap();
        run(&mut connection, &format!("CREATE DATABASE {name}")).await;
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        let connection = PgConnection::connect(&url).await.unwrap();
        let topic = name.replace('_', "-");
        let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
            .set("bootstrap.servers", &kafka)
            .create()
            .unwrap();
        for topic in [format!("{topic}-in"), format!("{topic}-out")] {
            let new = NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(1));
            let made = admin
                .create_topics(&[new], &AdminOptions::new())
                .await
                .unwrap();
            made.into_iter().next().unwrap().unwrap();
        }
        let place = Self {
            connection,
            url,
            database: name,
            kafka,
            folder: tempfile::tempdir().unwrap(),
            topic,
        };
        std::fs::write(
            place.folder.path().join("seen.sql"),
            "CREATE TABLE seen (entity text PRIMARY KEY, sequence bigint NOT NULL, amount bigint NOT NULL)",
        )
        .unwrap();
        place.configure("");
        place.tidegate("migrate").spawn().unwrap().wait().unwrap();
        place
    }

    fn configure(&self, projections: &str) {
        let text = format!(
            "[kafka]\ngroup_prefix = \"{}\"\n\n{projections}",
            self.topic
        );
        std::fs::write(self.folder.path().join("tidegate.toml"), text).unwrap();
    }

    fn tidegate(&self, command: &str) -> Command {
        let mut tidegate = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        tidegate
            .arg(command)
            .arg("--config")
            .arg(self.folder.path().join("tidegate.toml"))
            .env("TIDEGATE__POSTGRES__URL", &self.url)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        tidegate
    }

    /// Fills the outbox with messages that are as long as those of [`alone`].
    async fn fill(&mut self, messages: i64, sent: bool) {
        let (topic, per_stream) = (
            format!("{}-out", self.topic),
            messages / i64::from(PARTITIONS),
        );
        run(
            &mut self.connection,
            &format!(
                "INSERT INTO tidegate.stream (stream, emitted)
                 SELECT 'bench/in/' || p, {per_stream} FROM generate_series(0, {PARTITIONS} - 1) AS p
                 ON CONFLICT (stream) DO UPDATE SET emitted = stream.emitted + excluded.emitted;
                 INSERT INTO tidegate.outbox (stream, number, id, topic, key, payload, type, source, created_at)
                 SELECT s.stream, s.emitted - {per_stream} + n, gen_random_uuid(), '{topic}',
                        convert_to(s.stream || '/' || n % 1000, 'UTF8'), convert_to(repeat('x', {PAYLOAD}), 'UTF8'),
                        'bench', '/tidegate/bench', now()
                 FROM tidegate.stream s, generate_series(1, {per_stream}) AS n
                 ORDER BY n, s.stream"
            ),
        )
        .await;
        if sent {
            run(
                &mut self.connection,
                "UPDATE tidegate.relay r SET sent_through = s.emitted FROM tidegate.stream s WHERE s.stream = r.stream",
            )
            .await;
        }
        run(&mut self.connection, "VACUUM ANALYZE tidegate.outbox").await;
        run(&mut self.connection, "CHECKPOINT").await;
    }

    async fn count(&mut self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&mut self.connection)
            .await
            .unwrap()
    }

    /// Records or messages a second, from the first step forward to the last.
    async fn rate(&mut self, sql: &'static str, goal: i64) -> f64 {
        let before = self.count(sql).await;
        let mut began = None;
        loop {
            let now = self.count(sql).await;
            let (from, since) = *began.get_or_insert((now, Instant::now()));
            if now == before {
                began = None;
            } else if now >= goal {
                return (goal - from) as f64 / since.elapsed().as_secs_f64();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
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

const SENT: &str = "SELECT coalesce(sum(sent_through), 0)::bigint FROM tidegate.relay";
const CONSUMED: &str = "SELECT coalesce(sum(consumed), 0)::bigint FROM tidegate.position";

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The relay against librdkafka alone, with the same settings and messages of the same size.
async fn relay(round: i64, messages: i64) {
    let mut place = Place::new().await;
    place.fill(messages, false).await;
    let alone = alone(&place, messages);
    let goal = messages / i64::from(PARTITIONS) * i64::from(PARTITIONS);
    let running = Running(place.tidegate("relay").spawn().unwrap());
    let relay = place.rate(SENT, goal).await;
    drop(running);
    println!(
        "relay    round {round}: {relay:9.0} messages/s, librdkafka alone {alone:9.0}, ratio {:.2}",
        relay / alone
    );
    place.drop().await;
}

struct Count;

impl ClientContext for Count {}

impl ProducerContext for Count {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _: ()) {
        assert!(result.is_ok(), "not delivered");
    }
}

/// What librdkafka does without a database: messages a second.
fn alone(place: &Place, messages: i64) -> f64 {
    let producer: ThreadedProducer<Count> = ClientConfig::new()
        .set("bootstrap.servers", &place.kafka)
        .set("enable.idempotence", "true")
        .set("enable.gapless.guarantee", "true")
        .set("acks", "all")
        .set("linger.ms", "5")
        .set("compression.type", "lz4")
        .set("partitioner", "murmur2_random")
        .create_with_context(Count)
        .unwrap();
    let topic = format!("{}-out", place.topic);
    let payload = "x".repeat(PAYLOAD);
    let began = Instant::now();
    for number in 0..messages {
        let key = format!("bench/in/{}/{}", number % 6, number % 1000);
        let id = uuid::Uuid::from_u128(fastrand::u128(..)).to_string();
        let headers = [
            ("ce_specversion", "1.0"),
            ("ce_id", &*id),
            ("ce_source", "/tidegate/bench"),
            ("ce_type", "bench"),
            ("ce_time", "2026-01-01T00:00:00.000Z"),
            ("ce_sequence", "1000000"),
        ];
        let headers =
            headers
                .iter()
                .fold(OwnedHeaders::new_with_capacity(6), |all, (key, value)| {
                    all.insert(Header {
                        key,
                        value: Some(*value),
                    })
                });
        let mut record = BaseRecord::to(&topic)
            .key(&*key)
            .payload(&*payload)
            .headers(headers);
        while let Err((_, refused)) = producer.send(record) {
            record = refused;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    producer.flush(Duration::from_secs(60)).unwrap();
    messages as f64 / began.elapsed().as_secs_f64()
}

/// A projection that sends a message for every event against the same one that sends none.
async fn emit(round: i64, events: i64) {
    let mut rates = Vec::new();
    for with in [false, true] {
        let mut place = Place::new().await;
        let emit = match with {
            true => format!(
                "[[projections.seen.emit]]\nname = \"copy\"\ntopic = \"{}-out\"\n\
                 sql = \"SELECT _ref, entity AS key, jsonb_build_object('sequence', sequence, 'amount', amount) AS payload \
                 FROM events\"\n",
                place.topic
            ),
            false => String::new(),
        };
        place.configure(&format!(
            "[relay]\nenabled = false\n\n[apply]\nbatch_records_max = 10000\n\n\
             [projections.seen]\ntopics = [\"{}-in\"]\nentity = \"/entity\"\nsequence = \"/sequence\"\n\
             gate = \"newest\"\nsetup = \"seen.sql\"\n\
             columns = {{ entity = \"text\", sequence = \"bigint\", amount = \"bigint\" }}\n\n\
             [[projections.seen.apply]]\nsql = \"INSERT INTO seen (entity, sequence, amount) \
             SELECT entity, sequence, amount FROM latest ON CONFLICT (entity) DO UPDATE \
             SET sequence = excluded.sequence, amount = excluded.amount\"\n\n{emit}",
            place.topic
        ));
        produce(&place, events);
        let running = Running(place.tidegate("run").spawn().unwrap());
        rates.push(place.rate(CONSUMED, events).await);
        drop(running);
        place.drop().await;
    }
    println!(
        "emit     round {round}: {:9.0} events/s with a message each, {:9.0} without, cost {:.0} %",
        rates[1],
        rates[0],
        (1.0 - rates[1] / rates[0]) * 100.0
    );
}

fn produce(place: &Place, events: i64) {
    let producer: ThreadedProducer<Count> = ClientConfig::new()
        .set("bootstrap.servers", &place.kafka)
        .set("linger.ms", "20")
        .create_with_context(Count)
        .unwrap();
    let topic = format!("{}-in", place.topic);
    for number in 0..events {
        let (entity, sequence) = (number % 50_000, number / 50_000 + 1);
        let key = format!("e-{entity}");
        let payload = format!(r#"{{"entity":"{key}","sequence":{sequence},"amount":{number}}}"#);
        let mut record = BaseRecord::to(&topic).key(&*key).payload(&*payload);
        while let Err((_, refused)) = producer.send(record) {
            record = refused;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    producer.flush(Duration::from_secs(60)).unwrap();
}

/// From the COMMIT of another session to a consumer that has the message, with an idle relay.
async fn latency(round: i64, messages: i64) {
    let mut place = Place::new().await;
    let running = Running(place.tidegate("relay").spawn().unwrap());
    let topic = format!("{}-out", place.topic);
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &place.kafka)
        .set("group.id", "bench")
        .set("fetch.wait.max.ms", "500")
        .create()
        .unwrap();
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(&topic, partition, Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&all).unwrap();
    let mut waited = Vec::new();
    for number in 1..=messages + 5 {
        // At no fixed place between two looks.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(50..150))).await;
        let sql = format!(
            "SELECT tidegate.emit('{topic}', 'k-{number}', jsonb_build_object('number', {number}))"
        );
        run(&mut place.connection, &sql).await;
        let committed = Instant::now();
        loop {
            if let Some(message) = consumer.poll(Duration::from_millis(100)) {
                message.unwrap().detach();
                break;
            }
        }
        waited.push(committed.elapsed());
    }
    drop(running);
    waited.drain(..5); // the first ones meet a relay that is starting
    waited.sort_unstable();
    let at = |share: usize| waited[waited.len() * share / 100].as_secs_f64() * 1_000.0;
    println!(
        "latency  round {round}: commit to consumer, median {:.1} ms, 90 % {:.1} ms, 99 % {:.1} ms",
        at(50),
        at(90),
        at(99)
    );
    place.drop().await;
}

/// The relay's rate with nothing behind it, and with many sent messages kept and a reader that holds an old snapshot.
async fn backlog(kept: i64) {
    const MESSAGES: i64 = 300_000;
    let (mut empty, mut full) = (Place::new().await, Place::new().await);
    full.fill(kept, true).await;
    let mut reader = PgConnection::connect(&full.url).await.unwrap();
    run(
        &mut reader,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tidegate.relay",
    )
    .await;
    let mut ratios = Vec::new();
    for round in 1..=5 {
        let mut rates = Vec::new();
        for place in [&mut empty, &mut full] {
            place.fill(MESSAGES, false).await;
            let goal = place
                .count("SELECT sum(emitted)::bigint FROM tidegate.stream")
                .await;
            let running = Running(place.tidegate("relay").spawn().unwrap());
            rates.push(place.rate(SENT, goal).await);
            drop(running);
        }
        let (without, with) = (rates[0], rates[1]);
        ratios.push(with / without);
        println!(
            "backlog  round {round}: {with:9.0} messages/s with {kept} kept, {without:9.0} with none, ratio {:.2}",
            with / without
        );
    }
    ratios.sort_by(f64::total_cmp);
    println!("backlog  median ratio {:.2}", ratios[ratios.len() / 2]);
    reader.close().await.unwrap();
    empty.drop().await;
    full.drop().await;
}
