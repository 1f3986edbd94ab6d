//! What a process says of itself: metrics, and whether it is alive, able, and getting on.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{KafkaServer, LONG, Launch, Process, Route, Servers, World, wait_until};
use crate::rebuild::rebuild;

/// A process that answers questions.
pub(crate) struct Asked {
    process: Process,
    address: String,
}

impl Asked {
    pub(crate) fn start(launch: Launch<'_>) -> Self {
        let process = launch.env("TIDEGATE__HTTP__LISTEN", "127.0.0.1:0").start();
        process.wait_for_log(LONG, &["http: answering"]);
        let log = process.log();
        let line = log
            .lines()
            .find(|line| line.contains("http: answering"))
            .unwrap();
        let address = line.split("address=").nth(1).unwrap();
        let address = address.split_whitespace().next().unwrap().to_owned();
        Self { process, address }
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) fn ask(&self, request: &str) -> (u16, String) {
        self.ask_with(request, "X-It: it", "")
    }

    pub(crate) fn ask_with(&self, request: &str, headers: &str, body: &str) -> (u16, String) {
        self.speak(request, &format!("Host: it\r\n{headers}"), body)
    }

    /// Asks by another name of this machine.
    pub(crate) fn ask_as(&self, host: &str, request: &str) -> (u16, String) {
        self.speak(request, &format!("Host: {host}"), "")
    }

    fn speak(&self, request: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        write!(
            stream,
            "{request} HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    fn metrics(&self) -> String {
        let (status, text) = self.ask("GET /metrics");
        assert_eq!(status, 200);
        text
    }

    /// The sum of all series whose names and labels begin so.
    pub(crate) fn sum(&self, series: &str) -> f64 {
        let text = self.metrics();
        let found = text.lines().filter(|line| line.starts_with(series));
        found
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }

    /// Status, codes of the reasons, and the whole answer.
    fn verdict(&self, path: &str) -> (u16, Vec<String>, Value) {
        let (status, body) = self.ask(&format!("GET {path}"));
        let body: Value = serde_json::from_str(&body).unwrap();
        let reasons = body["reasons"].as_array().unwrap().iter();
        let mut codes: Vec<String> = reasons
            .map(|reason| reason["code"].as_str().unwrap().to_owned())
            .collect();
        codes.dedup();
        (status, codes, body)
    }

    /// Waits until the process says this of itself; nothing is wrong where no code is expected.
    #[track_caller]
    pub(crate) fn wait_for(&self, path: &str, code: Option<&str>) -> Value {
        let status = if code.is_some() { 503 } else { 200 };
        wait_until(LONG, &format!("{path} says {code:?}"), || {
            let (said, codes, _) = self.verdict(path);
            said == status && codes.iter().map(String::as_str).eq(code)
        });
        self.verdict(path).2
    }
}

/// The names that a text of metrics has, without what belongs to a histogram.
fn names(text: &str) -> BTreeSet<&str> {
    let series = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    series
        .map(|line| {
            let name = line.split(['{', ' ']).next().unwrap();
            let plain = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end));
            plain.unwrap_or(name)
        })
        .collect()
}

#[test]
fn metrics_count_what_was_applied_under_documented_names() {
    let world = World::ledger(2);
    let mut stream = world.stream();
    stream.produce(600);
    let asked = Asked::start(world.launch("a"));
    world.assert_exact();
    let copies = stream.copies() as f64;

    assert_eq!(
        asked.sum("tidegate_records_total{projection=\"journal\""),
        600.0
    );
    assert_eq!(
        asked.sum("tidegate_records_total{projection=\"balances\""),
        600.0
    );
    let stale = "tidegate_records_total{projection=\"balances\",outcome=\"stale\"}";
    wait_until(LONG, "the counters are folded", || {
        asked.sum(stale) == copies
    });
    assert_eq!(
        asked.sum("tidegate_batch_records_sum{projection=\"journal\"}"),
        600.0
    );
    let phases = asked.sum("tidegate_batch_phase_seconds_sum{projection=\"journal\"");
    let whole = asked.sum("tidegate_batch_seconds_sum{projection=\"journal\"}");
    assert!(phases > 0.0 && phases <= whole, "{phases} of {whole}");
    let positions: i64 = world
        .positions()
        .into_iter()
        .filter(|((p, _), _)| p == "journal")
        .map(|(_, next)| next)
        .sum();
    assert_eq!(
        asked.sum("tidegate_position_next_offset{projection=\"journal\""),
        positions as f64
    );
    wait_until(LONG, "the logs' ends are known", || {
        asked
            .metrics()
            .contains("tidegate_lag_seconds{projection=\"journal\"")
    });
    wait_until(LONG, "nothing lags", || {
        asked.sum("tidegate_lag_records") == 0.0
    });
    wait_until(LONG, "all is sent", || {
        let text = asked.metrics();
        text.contains("\ntidegate_outbox_unsent_messages 0\n")
    });

    let documented =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md")).unwrap();
    let text = asked.metrics();
    let names = names(&text);
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(
            documented.contains(&format!("| `{name}` |")),
            "{name} is not documented"
        );
    }
    for (request, status) in [("GET /", 404), ("POST /metrics", 405), ("HEAD /livez", 200)] {
        assert_eq!(asked.ask(request).0, status, "{request}");
    }
    asked.process.stop();
}

#[test]
fn series_of_a_partition_that_left_disappear_at_once() {
    let world = World::journal(2);
    let first = Asked::start(world.launch("a"));
    let series = |asked: &Asked| {
        let text = asked.metrics();
        text.matches("tidegate_partition_state{projection=\"journal\"")
            .count()
    };
    wait_until(LONG, "it has both", || series(&first) == 2);
    let second = Asked::start(world.launch("b"));
    wait_until(LONG, "each has one", || {
        world.owned_by("journal", &second.process) == 1
    });
    // At once: the second one has claimed, so the first one has given up.
    assert_eq!(series(&first), 1, "{}", first.metrics());
    wait_until(LONG, "the second one shows the other", || {
        series(&second) == 1
    });
    assert_eq!(
        first.sum("tidegate_partitions_revoked_total{projection=\"journal\"}"),
        1.0
    );
    second.process.stop();
    first.process.stop();
}

// I10: whatever is wrong is said, with its reason, for as long as it is wrong and no longer.
#[test]
fn each_fault_is_named_until_it_is_gone() {
    let mut kafka = KafkaServer::start();
    let shared = Servers::shared().with_kafka(&kafka);
    let world = World::journal_at(&shared, 1);
    let route = Route::to("127.0.0.1:1"); // where nobody listens
    let launch = world
        .launch("a")
        .env("TIDEGATE__POSTGRES__URL", world.db.url_by(route.address()))
        .env("TIDEGATE__POSTGRES__STATEMENT_TIMEOUT", "6s")
        .env("TIDEGATE__POSTGRES__LOCK_TIMEOUT", "5500ms");
    let asked = Asked::start(launch);
    let sender = world.sender();
    let send = || {
        sender.send_json(0, &serde_json::json!({ "account": "a" }));
        sender.flush();
    };

    // Its database is away at the start.
    wait_until(LONG, "it cannot start", || {
        let (status, codes, _) = asked.verdict("/readyz");
        status == 503 && codes.contains(&"starting".to_owned())
    });
    route.lead_to(&world.db.address());
    asked.wait_for("/readyz", None);
    send();
    wait_until(LONG, "it applies", || world.progress() == 1);
    asked.wait_for("/progress", None);

    // Paused is what somebody wants.
    world.tidegate(&["pause", "journal"]).expect(0);
    wait_until(LONG, "it says that it is paused", || {
        let (status, _, body) = asked.verdict("/progress");
        status == 200 && body["partitions"][0]["state"] == "paused"
    });
    assert_eq!(asked.verdict("/readyz").0, 200);
    world.tidegate(&["resume", "journal"]).expect(0);

    // A table is missing.
    world.db.run("ALTER TABLE journal.journal RENAME TO away");
    send();
    let said = asked.wait_for("/progress", Some("halted"));
    let text = said["reasons"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("journal") && text.contains("does not exist"),
        "{said:#}"
    );
    assert_eq!(
        asked.verdict("/readyz").0,
        200,
        "it is able to work all the same"
    );
    assert_eq!(asked.sum("tidegate_stalled"), 1.0);
    world.db.run("ALTER TABLE journal.away RENAME TO journal");
    world.tidegate(&["resume", "journal"]).expect(0);
    asked.wait_for("/progress", None);

    // Somebody holds a lock for long.
    let mut holder = world.db.session();
    let pid: i32 = holder.one("SELECT pg_backend_pid()");
    holder.run("BEGIN; LOCK TABLE journal.journal");
    send();
    let held = format!("held by pid {pid}, last since");
    wait_until(LONG, "it says who holds it", || {
        let (status, codes, body) = asked.verdict("/progress");
        status == 503
            && codes == ["retrying"]
            && body["reasons"][0]["text"].as_str().unwrap().contains(&held)
    });
    holder.run("ROLLBACK");
    asked.wait_for("/progress", None);

    // The database goes, and comes back.
    route.lead_to("127.0.0.1:1");
    asked.wait_for("/readyz", Some("database_unreachable"));
    assert_eq!(asked.sum("tidegate_database_up"), 0.0);
    route.lead_to(&world.db.address());
    asked.wait_for("/readyz", None);

    // So does Kafka.
    kafka.kill();
    asked.wait_for("/readyz", Some("kafka_unreachable"));
    assert_eq!(
        asked.verdict("/livez").0,
        200,
        "a restart would help nobody"
    );
    kafka.start_again();
    asked.wait_for("/readyz", None);
    send();
    wait_until(LONG, "all is applied", || world.progress() == 4);
    asked.wait_for("/progress", None);
    asked.process.stop();
}

#[test]
fn an_address_that_is_taken_is_named() {
    let world = World::journal(1);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let launch = world.launch("a").env("TIDEGATE__HTTP__LISTEN", &address);
    let ended = launch.output(&["run"]).expect(75);
    assert!(
        ended.stderr.contains("http.listen") && ended.stderr.contains(&address),
        "{}",
        ended.stderr
    );
}

// A client that asks nothing must not keep others waiting, nor the process from its end.
#[test]
fn clients_that_say_nothing_keep_nobody_waiting() {
    let world = World::journal(1);
    let asked = Asked::start(world.launch("a"));
    let silent: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(&asked.address).unwrap())
        .collect();
    assert_eq!(asked.verdict("/livez").0, 200);
    // Nor do they stay: their places are needed.
    let mut first = &silent[0];
    first.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "the connection is closed");
    let began = std::time::Instant::now();
    asked.process.stop();
    assert!(began.elapsed() < Duration::from_secs(20));
    drop(silent);
}

#[test]
fn metrics_tell_how_far_a_rebuild_is() {
    let world = World::journal(2);
    world.stream().produce(100);
    let asked = Asked::start(world.launch("a"));
    world.wait_until_done(LONG);
    let ends = world
        .launch("rebuild")
        .failpoints("rebuild-after-begin=0*off->return");
    ends.output(&["rebuild", "start", "journal"]).expect(-9);
    let left = "tidegate_rebuild_left_records{projection=\"journal\"";
    let done = "tidegate_rebuild_done_records{projection=\"journal\"";
    wait_until(LONG, "it is seen", || asked.sum(left) == 100.0);
    assert_eq!(asked.sum(done), 0.0);
    rebuild(&world, &["start", "journal"]).expect(0);
    wait_until(LONG, "nothing is left", || asked.sum(done) == 100.0);
    assert_eq!(asked.sum(left), 0.0);
    rebuild(&world, &["abandon", "journal", "--yes"]).expect(0);
    wait_until(LONG, "it is gone", || {
        !asked.metrics().contains("tidegate_rebuild_")
    });
}

// Each of its partitions is asked for, and each question waits.
#[test]
fn a_broker_that_falls_silent_is_told_of_however_many_partitions_there_are() {
    let kafka = KafkaServer::start();
    let world = World::journal_at(&Servers::shared().with_kafka(&kafka), 24);
    let asked = Asked::start(world.launch("a"));
    wait_until(LONG, "it has all partitions", || {
        world.owned_by("journal", asked.process()) == 24
    });
    asked.wait_for("/readyz", None);
    kafka.fall_silent();
    let soon = Duration::from_secs(60);
    wait_until(soon, "it says that Kafka is away", || {
        asked.verdict("/readyz").1 == ["kafka_unreachable"]
    });
}
