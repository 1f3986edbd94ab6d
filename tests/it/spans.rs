//! What a collector of OpenTelemetry is told: the spans of batches with the traces of their records, and nothing of what
//! the records say.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{LONG, Launch, World, wait_until};
use crate::logs::{CANARY, NOTES, SETUP};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// A request of OTLP/HTTP: its head, and its body in protocol buffers.
struct Told {
    head: String,
    body: Vec<u8>,
}

/// Takes what is exported to `address`.
struct Collector {
    address: String,
    told: Receiver<Told>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (sender, told) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let sender = sender.clone();
                thread::spawn(move || {
                    let mut stream = BufReader::new(stream);
                    while let Some(request) = read(&mut stream) {
                        let _ = sender.send(request);
                    }
                });
            }
        });
        Self { address, told }
    }
}

/// Reads a request and says that all is well; none at the end.
fn read(stream: &mut BufReader<TcpStream>) -> Option<Told> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.to_lowercase();
    let (_, length) = length.split_once("content-length: ")?;
    let mut body = vec![0; length.split("\r\n").next()?.parse().ok()?];
    stream.read_exact(&mut body).ok()?;
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    stream.get_mut().write_all(answer).ok()?;
    Some(Told { head, body })
}

/// What a message of protocol buffers has in a field that holds texts, bytes or messages.
fn field(mut message: &[u8], wanted: u64) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let length = match tag & 7 {
            0 => {
                varint(&mut message);
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut message)).unwrap(),
            5 => 4,
            kind => panic!("a field of kind {kind}"),
        };
        let (value, rest) = message.split_at(length);
        message = rest;
        if tag >> 3 == wanted {
            found.push(value);
        }
    }
    found
}

fn varint(message: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first().unwrap();
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The spans of a request: each its name, and the trace and span ids that it is linked to.
fn spans(request: &[u8]) -> Vec<(String, Vec<(String, String)>)> {
    let resources = field(request, 1).into_iter();
    let scopes = resources.flat_map(|resource| field(resource, 2));
    let spans = scopes.flat_map(|scope| field(scope, 2));
    let link = |link| (hex(field(link, 1)[0]), hex(field(link, 2)[0]));
    spans
        .map(|span| {
            let name = String::from_utf8(field(span, 5)[0].to_vec()).unwrap();
            (name, field(span, 13).into_iter().map(link).collect())
        })
        .collect()
}

fn exporting<'w>(launch: Launch<'w>, endpoint: &str) -> Launch<'w> {
    launch
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=hunter2")
        .env("OTEL_SERVICE_NAME", "shop-projections")
}

// Also what no five seconds have passed for yet: a stop sends the rest.
#[test]
fn the_span_of_a_batch_is_linked_to_the_traces_of_its_records() {
    let collector = Collector::start();
    let world = World::new(1, NOTES, &[SETUP]);
    let sender = world.sender();
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let send = |note: &str, headers: &[(&str, &[u8])]| {
        let value = json!({ "seq": 1, "account": CANARY, "note": note }).to_string();
        sender.send_with_headers(0, Some(note.as_bytes()), Some(value.as_bytes()), headers);
    };
    send("1", &[("traceparent", parent.as_bytes())]);
    // The database's error quotes what it cannot take.
    send(CANARY, &[]);
    sender.flush();
    let process = exporting(world.launch("a"), &collector.address).start();
    wait_until(LONG, "it has applied", || world.progress() == 2);
    let log = process.log();
    process.stop();

    let told: Vec<Told> = collector.told.try_iter().collect();
    let of_batches: Vec<_> = told
        .iter()
        .flat_map(|request| spans(&request.body))
        .filter(|(name, _)| name == "batch")
        .collect();
    let expected = (TRACE.to_owned(), SPAN.to_owned());
    assert!(
        of_batches
            .iter()
            .any(|(_, links)| *links == [expected.clone()]),
        "{of_batches:?}"
    );
    for Told { head, body } in &told {
        let head = head.to_lowercase();
        assert!(head.starts_with("post /v1/traces "), "{head}");
        assert!(head.contains("api-key: hunter2"), "{head}");
        let text = String::from_utf8_lossy(body);
        assert!(text.contains("shop-projections"), "{text}");
        assert!(
            !text.contains(CANARY) && !text.contains("hunter2"),
            "{text}"
        );
    }
    assert!(!log.contains("hunter2"), "{log}");
}

// Nobody listens at port 1; and somebody who takes a connection need not answer.
#[test]
fn a_collector_that_is_away_or_silent_holds_up_nothing() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let world = World::ledger(1);
    let mut stream = world.stream();
    for endpoint in ["http://127.0.0.1:1", &silent, "no address"] {
        let process = exporting(world.launch("a"), endpoint)
            .env("OTEL_BSP_SCHEDULE_DELAY", 10)
            .env("OTEL_BSP_MAX_QUEUE_SIZE", 4)
            .env("TIDEGATE__APPLY__BATCH_RECORDS_MAX", 5)
            .start();
        stream.produce(200);
        world.assert_exact();
        let began = Instant::now();
        process.stop();
        assert!(began.elapsed() < Duration::from_secs(8), "{endpoint}");
    }
}
