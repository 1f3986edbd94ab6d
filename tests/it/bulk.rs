//! What a build takes in from memory and writes at once is what it would have written batch by batch: `examples/folds.rs`.

use crate::harness::{LONG, Launch, Output, PostgresServer, Sender, Servers, World, wait_until};

const PROJECTIONS: [&str; 2] = ["newest", "next"];

/// Of a batch; what is far behind, and what goes the ordinary way, is reckoned in it.
const BATCH: usize = 20;

pub(crate) fn launch<'w>(world: &'w World, name: &str) -> Launch<'w> {
    world
        .launch(name)
        .example("folds")
        .env("INCOMING_TOPIC", world.incoming())
        .env("OUTGOING_TOPIC", world.outgoing())
        .env("TIDEGATE__REBUILD__WRITERS", 1)
        .env("NO_COLOR", 1)
        .batch_records_max(BATCH)
}

fn rebuild(launch: Launch<'_>, projection: &str) -> Output {
    launch.output(&["rebuild", "start", projection]).expect(0)
}

/// A world whose live tables were made batch by batch.
pub(crate) fn applied(partitions: i32, fill: impl FnOnce(&World)) -> World {
    let world = World::new(partitions, "", &[]);
    fill(&world);
    apply(launch(&world, "live"), &world);
    world
}

/// Applies all that there is, and what waited for it: that follows a batch.
fn apply(live: Launch<'_>, world: &World) {
    let process = live.start();
    world.wait_until_done(LONG);
    wait_until(LONG, "all that is early has followed", || {
        let due: i64 = world.db.one(
            "SELECT count(*) FROM tidegate.dead_letter d JOIN next._gate g USING (entity)
             WHERE d.projection = 'next' AND d.state = 'waiting' AND d.reason IN ('gap', 'behind')
               AND d.sequence - 1 <= g.sequence",
        );
        due == 0
    });
    process.stop();
}

fn send(sender: &Sender, entity: &str, sequence: i64, partition: i32, value: Option<&str>) {
    let (key, value) = (Some(entity.as_bytes()), value.map(str::as_bytes));
    let sequence = sequence.to_string();
    sender.send_with_headers(partition, key, value, &[("sequence", sequence.as_bytes())]);
}

type Row = (String, i64, Option<String>, String, i32, String);

/// Rows, gates and what has become of the records, of one generation. Whether an early record waits for a moment or
/// is applied at once depends on where batches are cut, in any build: what was parked and has followed counts as what it
/// has become.
#[derive(Debug, PartialEq)]
struct Built {
    rows: Vec<Row>,
    gates: Vec<(String, i64, bool)>,
    totals: Vec<(i32, i64, i64, i64, i64, i64, i64)>,
    waiting: Vec<(i32, i64)>,
}

fn built(world: &World, projection: &str, generation: i32) -> Built {
    let schema = match generation {
        1 => projection.to_owned(),
        n => format!("{projection}__g{n}"),
    };
    let of = format!("projection = '{projection}' AND generation = {generation}");
    let letters = |state: &str| {
        format!(
            "(SELECT count(*) FROM tidegate.dead_letter l
              WHERE {of} AND l.partition = p.partition AND l.state = '{state}')"
        )
    };
    Built {
        rows: world.db.rows(&format!(
            "SELECT entity, amount, note, offsets::text, events, at::text FROM {schema}.sum ORDER BY 1"
        )),
        gates: world.db.rows(&format!(
            "SELECT entity, sequence, parked FROM {schema}._gate ORDER BY 1"
        )),
        totals: world.db.rows(&format!(
            "SELECT partition, next_offset, consumed, applied + {}, stale + {}, duplicate, filtered
             FROM tidegate.position p WHERE {of} ORDER BY 1",
            letters("applied"),
            letters("stale")
        )),
        waiting: world.db.rows(&format!(
            "SELECT partition, record_offset FROM tidegate.dead_letter
             WHERE {of} AND state = 'waiting' ORDER BY 1, 2"
        )),
    }
}

/// How often a build has written what it had taken in.
fn writes(output: &Output) -> usize {
    output
        .stderr
        .matches("what was taken in is written")
        .count()
}

/// Each entity in one partition: copies, old ones, early ones, tombstones, and, from time to time, one that cannot be
/// applied, for every reason that there is.
fn disordered(world: &World) {
    let mut random = world.random();
    let sender = world.sender();
    let mut sequences = vec![0; 1_500];
    for number in 0..6_000 {
        let entity = random.usize(..sequences.len());
        let last = &mut sequences[entity];
        let (partition, name) = (i32::try_from(entity % 3).unwrap(), format!("e-{entity}"));
        let is_rare = number % 500 == 499;
        let sequence = match random.u8(..100) {
            ..5 => *last,
            5 => *last - 1,
            _ if is_rare && number % 1_000 == 999 => *last + 2,
            _ => {
                *last += 1;
                *last
            }
        };
        let amount = random.i64(-50..50);
        let value = match (is_rare, number / 500 % 4, random.u8(..100)) {
            (true, 0, _) => Some("not json".to_owned()),
            (true, 1, _) => Some(r#"{"amount":1,"note":"reject"}"#.to_owned()),
            (true, 2, _) => Some(r#"{"amount":1,"note":"panic"}"#.to_owned()),
            (true, _, _) => {
                // No entity at all; no sequence.
                sender.send(partition, None, Some(b"{}"));
                sender.send(partition, Some(b"unnumbered"), Some(b"{}"));
                Some(r#"{"amount":1}"#.to_owned())
            }
            (false, _, ..4) => None,
            (false, ..) => Some(format!(r#"{{"amount":{amount}}}"#)),
        };
        send(&sender, &name, sequence, partition, value.as_deref());
    }
    // Only the database refuses it.
    send(&sender, "refused", 1, 0, Some(r#"{"amount":4711}"#));
    send(&sender, "refused", 2, 0, Some(r#"{"amount":1}"#));
    sender.flush();
}

// I4, I6: over streams that are disordered in every way, rows, gates, totals and letters are the same.
#[test]
fn what_is_taken_in_from_memory_is_what_batches_make() {
    let world = applied(3, disordered);
    for projection in PROJECTIONS {
        let output = rebuild(launch(&world, "rebuild"), projection);
        let (by_batch, from_memory) = (built(&world, projection, 1), built(&world, projection, 2));
        assert!(by_batch.waiting.len() > 5);
        assert_eq!(from_memory, by_batch, "{projection}");
        assert!(writes(&output) > 1, "{projection}: {}", output.stderr);
    }
    launch(&world, "verify").output(&["verify"]).expect(0);
}

// I4: entities whose events two writers take in at once are noticed in the database, and nothing of them is lost.
#[test]
fn an_entity_that_two_writers_take_in_is_noticed() {
    let world = applied(2, |world| {
        let sender = world.sender();
        for sequence in 1..=10 {
            for entity in 0..200 {
                let partition = i32::from(sequence > 5);
                let (name, value) = (format!("e-{entity}"), format!(r#"{{"amount":{sequence}}}"#));
                send(&sender, &name, sequence, partition, Some(&value));
            }
        }
        sender.flush();
    });
    for projection in PROJECTIONS {
        // The first one that writes does so while the other one takes in.
        let two = launch(&world, "rebuild")
            .env("TIDEGATE__REBUILD__WRITERS", 2)
            .failpoints("bulk-after-gates=1*sleep(1000)");
        let output = rebuild(two, projection);
        let is_noticed = output
            .stderr
            .contains("in partitions of another writer too");
        // Behind gate `next` the second half is early, and goes the ordinary way from its beginning.
        assert!(is_noticed || projection == "next", "{}", output.stderr);
        let (by_batch, built) = (built(&world, projection, 1), built(&world, projection, 2));
        assert_eq!(built.gates, by_batch.gates, "{projection}");
        let applied: i64 = built.totals.iter().map(|totals| totals.3).sum();
        let events: i64 = built.rows.iter().map(|row| i64::from(row.4)).sum();
        match projection {
            "next" => assert_eq!(built.rows, by_batch.rows),
            // What comes late is old.
            _ => assert_eq!(events, applied),
        }
    }
    launch(&world, "verify").output(&["verify"]).expect(0);
}

// I5: a message of a record that was parked while it was live is kept, once; no other is.
#[test]
fn messages_of_records_that_have_their_right_still_are_kept() {
    let world = applied(1, |world| {
        let sender = world.sender();
        for number in 0..3_000 {
            let value = match number {
                500 => r#"{"amount":7,"note":"reject"}"#,
                2_500 => r#"{"amount":7,"note":"panic"}"#,
                _ => r#"{"amount":14}"#,
            };
            send(&sender, &format!("e-{number}"), 1, 0, Some(value));
        }
        sender.flush();
    });
    for projection in PROJECTIONS {
        let output = rebuild(launch(&world, "rebuild").env("VERSION", 2), projection);
        assert!(writes(&output) > 1, "{projection}: {}", output.stderr);
        let held: Vec<(i64,)> = world.db.rows(&format!(
            "SELECT record_offset FROM {projection}__g2._held ORDER BY 1"
        ));
        assert_eq!(held, [(500,), (2_500,)], "{projection}");
        assert_eq!(built(&world, projection, 2).rows.len(), 3_000);
    }
}

/// The memory that a writer says it took when it wrote.
fn largest(output: &Output) -> usize {
    let figures = output.stderr.split("bytes=").skip(1);
    let figures = figures.filter_map(|rest| rest.split_whitespace().next()?.parse().ok());
    figures.max().unwrap_or(0)
}

// I4, I6: where memory does not hold all entities, what is there is written, forgotten and loaded again.
#[test]
fn memory_is_bounded_and_what_does_not_fit_is_written_before() {
    const ENTITIES: i64 = 12_000;
    let world = applied(2, |world| {
        let sender = world.sender();
        for sequence in 1..=3 {
            for entity in 0..ENTITIES {
                let partition = i32::try_from(entity % 2).unwrap();
                let value = match (entity, sequence) {
                    (..50, 3) => None,
                    _ => Some(r#"{"amount":1,"note":"x"}"#),
                };
                send(&sender, &format!("e-{entity}"), sequence, partition, value);
            }
        }
        sender.flush();
    });
    for projection in PROJECTIONS {
        let little = launch(&world, "rebuild")
            .env("TIDEGATE__REBUILD__MEMORY_MB_MAX", 1)
            .batch_records_max(500);
        let output = rebuild(little, projection);
        assert_eq!(built(&world, projection, 2), built(&world, projection, 1));
        assert!(writes(&output) > 5, "{projection}: {}", output.stderr);
        // A batch may come on top, and with it a larger table of entities.
        let largest = largest(&output);
        assert!(largest > 500_000 && largest < 2_100_000, "{largest}");
    }
}

// I4, I6: a state counts as it is, however few are as wide.
#[test]
fn wide_states_count_in_memory_however_few_they_are() {
    const WIDE: usize = 64_000;
    let note = "x".repeat(WIDE);
    let world = applied(1, |world| {
        let sender = world.sender();
        for entity in 0..2_000 {
            let note = if entity % 8 == 4 { &*note } else { "x" };
            let value = format!(r#"{{"amount":1,"note":"{note}"}}"#);
            send(&sender, &format!("e-{entity}"), 1, 0, Some(&value));
        }
        sender.flush();
    });
    for projection in PROJECTIONS {
        let little = launch(&world, "rebuild").env("TIDEGATE__REBUILD__MEMORY_MB_MAX", 4);
        let output = rebuild(little, projection);
        assert!(writes(&output) >= 4, "{projection}: {}", output.stderr);
        assert_eq!(built(&world, projection, 2), built(&world, projection, 1));
    }
}

// A trigger may make another row than was written, which only who reads it back knows.
#[test]
fn a_table_with_a_trigger_is_built_batch_by_batch() {
    let world = World::new(1, "", &[]);
    let sender = world.sender();
    for number in 0..500 {
        let entity = format!("e-{}", number % 50);
        send(
            &sender,
            &entity,
            number / 50 + 1,
            0,
            Some(r#"{"amount":1}"#),
        );
    }
    sender.flush();
    let with_trigger = |name| launch(&world, name).env("TABLE", "with a trigger");
    apply(with_trigger("live"), &world);
    for projection in PROJECTIONS {
        let output = rebuild(with_trigger("rebuild"), projection);
        assert_eq!(writes(&output), 0, "{projection}: {}", output.stderr);
        let rows: i64 = world
            .db
            .one(&format!("SELECT count(*) FROM {projection}__g2.sum"));
        assert_eq!(rows, 50);
    }
}

// What a column rounds is rounded after each event, wherever batches are cut: those of a live generation, and of a build.
#[test]
fn a_table_that_rounds_keeps_the_same_rows_however_it_is_filled() {
    let world = World::new(1, "", &[]);
    let sender = world.sender();
    for number in 0..500 {
        let entity = format!("e-{}", number % 5);
        send(&sender, &entity, number / 5 + 1, 0, Some(r#"{"amount":1}"#));
    }
    sender.flush();
    let that_rounds = |name| launch(&world, name).env("TABLE", "that rounds");
    apply(that_rounds("live"), &world);
    let output = rebuild(that_rounds("rebuild").batch_records_max(7), "newest");
    assert_eq!(writes(&output), 0, "{}", output.stderr);
    let why = "column `at` is of type `timestamp(0) without time zone`";
    assert!(output.stderr.contains(why), "{}", output.stderr);
    let (live, built) = (built(&world, "newest", 1), built(&world, "newest", 2));
    assert_eq!(built.rows, live.rows);
    assert!(live.rows.iter().all(|row| row.5 == "1970-01-01 00:00:00"));
    assert_eq!(live.rows.iter().map(|row| row.4).sum::<i32>(), 500);
}

// I1, I6: a crash of Postgres takes a write back that did not wait for the disk. What stayed in memory after it says that
// its events are old, which they are not any more.
#[test]
fn what_stays_in_memory_after_a_write_is_forgotten_when_a_crash_takes_the_write_back() {
    let mut postgres = PostgresServer::start();
    postgres.set("wal_writer_delay", "10s");
    postgres.set("wal_writer_flush_after", "1GB");
    let world = World::new_at(&Servers::shared().with_postgres(&postgres), 1, "", &[]);
    let fill = |entities: std::ops::Range<i32>| {
        let sender = world.sender();
        for entity in entities {
            send(
                &sender,
                &format!("e-{entity}"),
                1,
                0,
                Some(r#"{"amount":1}"#),
            );
        }
        sender.flush();
        apply(launch(&world, "live"), &world);
    };
    fill(0..1_000);
    let build = launch(&world, "rebuild")
        .instead("rebuild")
        .argument("start")
        .argument("newest")
        .failpoints("bulk-before-commit=1*sleep(1000);bulk-after-commit=1*sleep(6000)");
    let mut build = build.start();
    wait_until(LONG, "it writes", || {
        world.db.one(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE 'tidegate % bulk newest'
             AND query LIKE '%position%' AND state = 'idle in transaction')",
        )
    });
    // There is more to be read by the time that it is written, so that what is in memory stays there.
    build.signal("STOP");
    fill(1_000..3_000);
    build.signal("CONT");
    let position =
        "SELECT next_offset FROM tidegate.position WHERE projection = 'newest' AND generation = 2";
    wait_until(LONG, "it is written", || {
        world.db.one::<i64>(position) == 1_000
    });
    postgres.kill();
    postgres.start_again();
    world.db.reconnect();
    // Every ten seconds the WAL writer may come in between.
    let was_taken_back = world.db.one::<i64>(position) == 0;
    eprintln!("the write was taken back: {was_taken_back}");
    assert!(build.wait(LONG).success(), "{}", build.log());
    assert_eq!(built(&world, "newest", 2), built(&world, "newest", 1));
}
