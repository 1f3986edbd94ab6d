//! How fast values are read, beside the library that reads the whole of them.
//!
//! Four fields of seven are wanted, as a projection wants them. `cargo bench --bench decode`; nothing but a CPU is needed.
//! The modules under test are private, so they are taken in by their paths.

#![allow(
    dead_code,
    unused_imports,
    reason = "a part of the modules is measured"
)]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program to be run by hand"
)]

#[path = "../src/avro/mod.rs"]
mod avro;
#[path = "../src/codec/json.rs"]
mod json;

use std::hint::black_box;
use std::time::{Duration, Instant};

use apache_avro::reader::datum::GenericDatumReader;
use serde_json::json;

const SCHEMA: &str = include_str!("../schemas/entry.avsc");
const OLD_SCHEMA: &str = include_str!("../schemas/entry.v1.avsc");
const WANTED: [&str; 4] = ["/account", "/seq", "/amount", "/booked_at"];
const LIMITS: avro::Limits = avro::Limits {
    nesting_max: 64,
    items_max: 1_000_000,
    text_bytes_max: 16 << 20,
};

/// Prints how often a second something can be done, and how many bytes that are.
fn measure(name: &str, bytes: usize, mut read: impl FnMut()) -> f64 {
    for _ in 0..10_000 {
        read();
    }
    let (began, mut reads) = (Instant::now(), 0_u32);
    while began.elapsed() < Duration::from_secs(2) {
        for _ in 0..1_000 {
            read();
        }
        reads += 1_000;
    }
    let per_second = f64::from(reads) / began.elapsed().as_secs_f64();
    let megabytes = per_second * bytes as f64 / 1e6;
    println!("{name:<42} {per_second:>12.0} values/s {megabytes:>8.0} MB/s");
    per_second
}

fn main() {
    let event = json!({
        "id": "5f0c8c1e2d3b4a59", "account": "a-1234", "seq": 17, "amount": -250,
        "booked_at": "2026-01-31T09:30:00Z", "kind": "FEE", "memo": "for January",
    });
    let text = event.to_string();
    let wanted: Vec<json::Wanted> = WANTED
        .iter()
        .map(|pointer| json::Wanted {
            pointer: (*pointer).to_owned(),
            strict: true,
        })
        .collect();
    let layout = json::Layout::new(&wanted);
    let mut raw = vec![None; WANTED.len()];
    let whole = measure("JSON, serde_json's tree", text.len(), || {
        let tree: serde_json::Value = serde_json::from_slice(text.as_bytes()).unwrap();
        black_box(tree);
    });
    let ours = measure("JSON, the wanted fields", text.len(), || {
        layout.extract(text.as_bytes(), &mut raw).unwrap();
        black_box(&raw);
    });
    println!("{:<42} {:>12.1} times", "", ours / whole);

    let (reader, old) = (
        avro::Schema::parse(SCHEMA, &[]).unwrap(),
        avro::Schema::parse(OLD_SCHEMA, &[]).unwrap(),
    );
    let old_event = json!({
        "id": "5f0c8c1e2d3b4a59", "account": "a-1234", "seq": 17, "amount": -250,
        "booked": "2026-01-31T09:30:00Z", "clerk": "c-1",
    });
    let libraries = [SCHEMA, OLD_SCHEMA].map(|text| apache_avro::Schema::parse_str(text).unwrap());
    for (name, writer, library, event) in [
        ("the same schema", &reader, &libraries[0], &event),
        ("an older schema", &old, &libraries[1], &old_event),
    ] {
        let datum = avro::encode(writer, event).unwrap();
        let paths = WANTED.iter().enumerate().map(|(slot, path)| avro::Wanted {
            path: path.split('/').skip(1).map(str::to_owned).collect(),
            slot,
        });
        let plan = avro::Plan::new(writer, &reader, &paths.collect::<Vec<_>>()).unwrap();
        // Without resolution: it knows no aliases, so it cannot read the older schema as the newer.
        let theirs = GenericDatumReader::builder(library).build().unwrap();
        let whole = measure(&format!("Avro, {name}, apache-avro"), datum.len(), || {
            black_box(theirs.read_value(&mut &datum[..]).unwrap());
        });
        let mut found = vec![None; WANTED.len()];
        let ours = measure(
            &format!("Avro, {name}, the wanted fields"),
            datum.len(),
            || {
                plan.extract(&datum, LIMITS, &mut found).unwrap();
                black_box(&found);
            },
        );
        println!("{:<42} {:>12.1} times", "", ours / whole);
    }
}
