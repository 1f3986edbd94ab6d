//! A process stays within its memory budget, whatever comes and however slow it is applied.

use std::fs;

use serde_json::json;

use crate::harness::{LONG, Process, World, wait_until};

/// What a process needs besides its budget, as docs/configuration.md says.
const FIXED: u64 = 64 << 20;
const BUDGET: u64 = 64 << 20;
const PARTITIONS: i32 = 40;
const RECORDS: i32 = 8;
const NOTE_BYTES: usize = 400_000;

/// Each batch takes its time, and everything is sent on.
const SLOW: &str = r#"
[projections.notes]
topics  = ["@in@"]
gate    = "none"
setup   = "notes.sql"
columns = { note = "text" }

[[projections.notes.apply]]
sql = "INSERT INTO note (partition, record_offset, length) SELECT _partition, _offset, length(note) FROM events CROSS JOIN (SELECT pg_sleep(0.1)) AS slow"

[[projections.notes.emit]]
name  = "copy"
topic = "@out@"
sql   = "SELECT _ref, note AS payload FROM events"
"#;

/// The most that the process ever had.
fn peak(process: &Process) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().split_whitespace().next().unwrap();
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn many_partitions_of_large_records_stay_within_the_memory_budget() {
    let setup = "CREATE TABLE note (partition int, record_offset bigint, length int)";
    let world = World::new(PARTITIONS, SLOW, &[("notes.sql", setup)]);
    let sender = world.sender();
    // What differs cannot be told apart by a compressor either.
    let mut random = world.random();
    for _ in 0..RECORDS {
        let note: String = (0..NOTE_BYTES).map(|_| random.alphanumeric()).collect();
        for partition in 0..PARTITIONS {
            sender.send_json(partition, &json!({ "note": note }));
        }
        sender.flush();
    }
    let process = world
        .launch("bounded")
        .env("TIDEGATE__MEMORY__BUDGET", format!("{}MB", BUDGET >> 20))
        .start();
    wait_until(LONG * 3, "all is applied and sent", || {
        let streams = world
            .db
            .one::<i64>("SELECT coalesce(sum(sent_through), 0)::bigint FROM tidegate.relay");
        streams == i64::from(PARTITIONS * RECORDS)
    });
    let peak = peak(&process);
    eprintln!("peak {} MiB", peak >> 20);
    assert!(
        peak <= BUDGET + FIXED,
        "{} MiB, with a budget of {} MiB",
        peak >> 20,
        BUDGET >> 20
    );
    let lengths: Vec<i32> = world
        .db
        .rows("SELECT DISTINCT length FROM notes.note")
        .into_iter()
        .map(|(l,): (i32,)| l)
        .collect();
    assert_eq!(lengths, [i32::try_from(NOTE_BYTES).unwrap()]);
    process.stop();
}

// So that the test above measures what it says.
#[test]
fn an_idle_process_is_far_below_its_fixed_part() {
    let world = World::journal(1);
    let process = world.start("idle");
    wait_until(LONG, "it has its partition", || {
        world.has_some_of("journal", &process)
    });
    let peak = peak(&process);
    assert!(peak < FIXED, "{} MiB", peak >> 20);
    eprintln!("idle {} MiB", peak >> 20);
    process.stop();
}
