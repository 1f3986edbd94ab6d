//! The rows of one entity are made anew, while everything goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::harness::{LONG, Output, World, configure_topic, message_id, wait_until};
use crate::rebuild::{live, rebuild};

/// A sum and a list of each entity; cannot apply some events, and sends a message for each.
const TOTALS: &str = r#"
[projections.totals]
topics   = ["@in@"]
entity   = "/e"
sequence = "/s"
gate     = "next"
setup    = "totals.sql"
columns  = { e = "text", s = "bigint", d = "bigint" }
entity_rows = ["entry.e", "total.e"]

[[projections.totals.apply]]
sql = """
INSERT INTO total AS t (e, n) SELECT e, count(*) FROM events GROUP BY e
ON CONFLICT (e) DO UPDATE SET n = t.n + excluded.n"""

[[projections.totals.apply]]
sql = "INSERT INTO entry (e, s, share) SELECT e, s, 100 / d FROM events"

[[projections.totals.emit]]
name  = "step"
topic = "@out@"
sql   = "SELECT _ref, e AS key, jsonb_build_object('s', s) AS payload FROM events"
"#;
const SETUP: (&str, &str) = (
    "totals.sql",
    "CREATE TABLE total (e text PRIMARY KEY, n bigint NOT NULL);
     CREATE TABLE entry (e text NOT NULL REFERENCES total (e), s bigint NOT NULL, share bigint,
                         twice bigint GENERATED ALWAYS AS (share * 2) STORED, PRIMARY KEY (e, s));",
);

fn repair(world: &mut World) {
    world.change_projections("100 / d FROM", "100 / nullif(d, 0) FROM");
}

fn entity(world: &World, entity: &str) -> Output {
    rebuild(world, &["entity", "totals", entity, "--yes"])
}

/// Each entity's sum and list.
fn rows(world: &World) -> BTreeMap<String, (i64, Vec<i64>)> {
    let rows: Vec<(String, i64, Vec<i64>)> = world.db.rows(
        "SELECT t.e, t.n, array_remove(array_agg(y.s ORDER BY y.s), NULL) FROM totals.total t
         LEFT JOIN totals.entry y ON y.e = t.e AND y.twice IS NOT DISTINCT FROM y.share * 2 GROUP BY t.e, t.n",
    );
    rows.into_iter()
        .map(|(e, n, list)| (e, (n, list)))
        .collect()
}

/// What the rows are to be: sequences 1 to as many as each entity has.
fn whole(highest: &BTreeMap<String, i64>) -> BTreeMap<String, (i64, Vec<i64>)> {
    let of = |(e, high): (&String, &i64)| (e.clone(), (*high, (1..=*high).collect()));
    highest.iter().map(of).collect()
}

fn send(world: &World, events: &[(&str, i64, i64)]) {
    let sender = world.sender();
    for (e, s, d) in events {
        let partition = i32::from(e.as_bytes()[0]) % world.partitions();
        sender.send_json(partition, &json!({ "e": e, "s": s, "d": d }));
    }
    sender.flush();
}

/// The messages in the outbox, by entity; none is there twice.
fn messages(world: &World) -> BTreeMap<String, BTreeSet<i64>> {
    let mut found: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    for message in world.outbox().into_values().flatten() {
        let key = message.key;
        let s = message.payload["s"].as_i64().unwrap();
        assert!(
            found.entry(key.clone()).or_default().insert(s),
            "{key} {s} is there twice"
        );
    }
    found
}

/// Tells a thread to stop when it is dropped.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// I1, I3, I5, I8: two processes at work and a stream with copies that goes on; somebody damages rows of some entities again
// and again, and they are made anew. In the end every row is what the log says, and every message was sent once.
#[test]
fn an_entity_is_made_anew_while_its_events_come_in() {
    const ENTITIES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let world = World::new(3, TOTALS, &[SETUP]);
    let start = |name: &str| world.launch(name).batch_records_max(20).start();
    let processes = [start("one"), start("two")];
    let stop = AtomicBool::new(false);
    let highest = thread::scope(|scope| {
        let (world, stop) = (&world, &stop);
        // Also where something fails, or it would go on for ever.
        let stops = Stops(stop);
        let feeding = scope.spawn(move || {
            let (sender, mut random) = (world.sender(), world.random());
            let mut highest: BTreeMap<String, i64> = BTreeMap::new();
            while !stop.load(Ordering::Relaxed) {
                let e = ENTITIES[random.usize(0..ENTITIES.len())];
                let high = highest.entry(e.to_owned()).or_default();
                // One in five is a copy of an earlier one.
                let s = match *high > 0 && random.u8(0..5) == 0 {
                    true => random.i64(1..=*high),
                    false => *high + 1,
                };
                *high = s.max(*high);
                let partition = i32::from(e.as_bytes()[0]) % 3;
                sender.send_json(partition, &json!({ "e": e, "s": s, "d": 1 }));
                thread::sleep(Duration::from_millis(2));
            }
            sender.flush();
            highest
        });
        wait_until(LONG, "all are met", || {
            world.progress() > 200 && rows(world).len() == ENTITIES.len()
        });
        for damaged in ["a", "d", "a"] {
            world.db.run(&format!(
                "DELETE FROM totals.entry WHERE e = '{damaged}' AND s % 2 = 0;
                 UPDATE totals.total SET n = n + 1000 WHERE e = '{damaged}'"
            ));
            let others = |world: &World| {
                let mut rows = rows(world);
                rows.remove(damaged);
                rows
            };
            let before = others(world);
            let told = entity(world, damaged).expect(0).stdout;
            assert!(told.contains("total: 1 row before, 1 now"), "{told}");
            for (e, (n, list)) in others(world) {
                assert!(n >= before[&e].0, "{e}");
                assert_eq!(list, (1..=n).collect::<Vec<_>>(), "{e}");
            }
        }
        drop(stops);
        feeding.join().unwrap()
    });
    world.wait_until_done(LONG);
    assert_eq!(rows(&world), whole(&highest));
    let sent: BTreeMap<String, BTreeSet<i64>> = highest
        .iter()
        .map(|(e, high)| (e.clone(), (1..=*high).collect()))
        .collect();
    assert_eq!(messages(&world), sent);
    processes.into_iter().for_each(|process| process.stop());
    world.tidegate(&["verify"]).expect(0);
    let built: i64 = world
        .db
        .one("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'totals\\_\\_%'");
    assert_eq!((built, live(&world, "totals")), (0, 1));
    let operations: Vec<(String, Value)> = world.db.rows(
        "SELECT arguments ->> 'entity', after FROM tidegate.operation WHERE kind = 'rebuild-entity' ORDER BY at",
    );
    let entities: Vec<&str> = operations.iter().map(|(entity, _)| &**entity).collect();
    assert_eq!(entities, ["a", "d", "a"]);
}

// I5, I6: what was parked of it and can be applied now is, with its messages; what still cannot be stays parked; nobody
// else's letters, rights and rows are touched.
#[test]
fn parked_records_of_an_entity_come_out_right() {
    let mut world = World::new(2, TOTALS, &[SETUP]);
    send(
        &world,
        &[
            ("a", 1, 1),
            ("b", 1, 1),
            ("a", 2, 0),
            ("b", 2, 0),
            ("a", 3, 1),
            ("b", 3, 1),
            ("c", 1, 1),
        ],
    );
    let process = world.start("old");
    world.wait_until_done(LONG);
    assert_eq!(world.parked(), 4);
    world.db.run("UPDATE totals.total SET n = 77 WHERE e = 'a'");

    // With the same statements the same records wait, behind the right rows.
    let told = entity(&world, "a").expect(0).stdout;
    assert!(!told.contains("parked record"), "{told}");
    assert_eq!(world.parked(), 4);
    assert_eq!(rows(&world)["a"], (1, vec![1]));

    process.stop();
    repair(&mut world);
    let process = world.start("new");
    let told = entity(&world, "a").expect(0).stdout;
    assert!(
        told.contains("2 parked records of it are applied now, 2 messages of theirs"),
        "{told}"
    );
    assert_eq!(world.parked(), 2);
    assert_eq!(rows(&world)["a"], (3, vec![1, 2, 3]));
    assert_eq!(rows(&world)["b"], (1, vec![1]));
    let sent = |world: &World, e: &str| messages(world)[e].len();
    assert_eq!((sent(&world, "a"), sent(&world, "b")), (3, 1));

    // It goes on from there, and so do the others.
    send(&world, &[("a", 4, 1), ("b", 4, 1)]);
    world.wait_until_done(LONG);
    world
        .tidegate(&["dead-letters", "redrive", "totals"])
        .expect(0);
    assert_eq!(world.parked(), 0);
    let highest = [("a", 4), ("b", 4), ("c", 1)].map(|(e, high)| (e.to_owned(), high));
    assert_eq!(rows(&world), whole(&highest.into()));
    assert_eq!(
        (sent(&world, "a"), sent(&world, "b"), sent(&world, "c")),
        (4, 4, 1)
    );
    let rights: i64 = world.db.one("SELECT count(*) FROM tidegate.unemitted");
    assert_eq!(rights, 0);
    process.stop();
    world.tidegate(&["verify"]).expect(0);
    // Nothing is sent again afterwards either.
    let process = world.start("again");
    world
        .tidegate(&["reset", "totals", "--to", "earliest", "--yes"])
        .expect(0);
    world.wait_until_done(LONG);
    assert_eq!((sent(&world, "a"), sent(&world, "b")), (4, 4));
    let log = world.log();
    let ids: BTreeSet<Uuid> = log
        .iter()
        .map(|record| message_id("totals", 1, world.incoming(), record, "step", 0))
        .collect();
    let found: BTreeSet<Uuid> = world
        .outbox()
        .into_values()
        .flatten()
        .map(|m| m.id)
        .collect();
    assert_eq!(found, ids);
    process.stop();
}

// I8: a process that ends anywhere leaves the live rows, and the same command goes on; giving it up leaves nothing.
#[test]
fn an_entity_whose_rebuild_ends_halfway_is_as_it_was() {
    let world = World::new(2, TOTALS, &[SETUP]);
    send(&world, &[("a", 1, 1), ("b", 1, 1), ("a", 2, 1)]);
    let process = world.start("a");
    world.wait_until_done(LONG);
    world.db.run("UPDATE totals.total SET n = 77 WHERE e = 'a'");
    let before = rows(&world);
    let ends = |point: &str| {
        let launch = world
            .launch("rebuild")
            .failpoints(&format!("{point}=0*off->return"));
        launch
            .output(&["rebuild", "entity", "totals", "a", "--yes"])
            .expect(-9);
    };
    for point in [
        "rebuild-after-begin",
        "apply-before-commit",
        "rebuild-holding",
        "rebuild-after-messages",
        "rebuild-before-cut-over",
    ] {
        ends(point);
        assert_eq!(rows(&world), before, "{point}");
    }
    // Nothing else goes on with it.
    for (command, words) in [
        (&["cut-over", "totals", "--yes"][..], "of entity `a` alone"),
        (&["start", "totals"], "of entity `a` alone"),
        (&["entity", "totals", "b", "--yes"], "of entity `a` alone"),
    ] {
        let refused = rebuild(&world, command).expect(70);
        assert!(
            refused.stderr.contains(words),
            "{words:?} in {}",
            refused.stderr
        );
    }
    let told = rebuild(&world, &["status", "totals"]).expect(0).stdout;
    assert!(told.contains("of entity `a` alone"), "{told}");
    rebuild(&world, &["abandon", "totals", "--yes"]).expect(0);
    assert_eq!(rows(&world), before);
    ends("rebuild-after-cut-over");
    assert_eq!(rows(&world)["a"], (2, vec![1, 2]));
    // Repeated, it is made anew once more.
    entity(&world, "a").expect(0);
    assert_eq!(rows(&world)["a"], (2, vec![1, 2]));
    send(&world, &[("a", 3, 1)]);
    world.wait_until_done(LONG);
    assert_eq!(rows(&world)["a"], (3, vec![1, 2, 3]));
    process.stop();
}

// I8: nothing is changed where rows could be lost or mixed, and the reason is told.
#[test]
fn an_entity_is_left_alone_where_its_rows_cannot_be_told_or_its_events_are_missing() {
    let mut world = World::new(2, TOTALS, &[SETUP]);
    send(
        &world,
        &[("a", 1, 1), ("b", 1, 1), ("a", 2, 1), ("b", 2, 0)],
    );
    let process = world.start("a");
    world.wait_until_done(LONG);
    let before = rows(&world);
    let refuse = |world: &World, more: &[&str], words: &str| {
        let command = [&["entity", "totals", "a", "--yes"], more].concat();
        let refused = rebuild(world, &command).expect(70);
        assert!(
            refused.stderr.contains(words),
            "{words:?} in {}",
            refused.stderr
        );
        assert_eq!(rows(world), before);
    };
    let said = r#"entity_rows = ["entry.e", "total.e"]"#;
    for (instead, words) in [
        ("# none", "nobody has said"),
        (
            r#"entity_rows = ["entry.e"]"#,
            "table `total` may have rows",
        ),
        (
            r#"entity_rows = ["entry.e", "total.x"]"#,
            "table `total` has no column `x`",
        ),
        (
            r#"entity_rows = ["entry.e", "total.e", "sum.e"]"#,
            "there is no table `sum`",
        ),
        (
            r#"entity_rows = ["entry.s", "total.e"]"#,
            "column `s` of table `entry` is not of the type that entities are of (text)",
        ),
    ] {
        world.change_projections(said, instead);
        refuse(&world, &[], words);
        world.change_projections(instead, said);
    }
    // Equal is not the same there.
    let collation =
        |name: &str| format!("ALTER TABLE totals.entry ALTER COLUMN e TYPE text COLLATE {name}");
    world.db.run("CREATE COLLATION totals.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)");
    world.db.run(&collation("totals.ci"));
    refuse(
        &world,
        &[],
        "column `e` of table `entry` is not of the type",
    );
    world.db.run(&collation("\"default\""));
    world.change_projections("[projections.totals]", "[projections.totals]\nversion = 2");
    refuse(&world, &[], "made by another definition");
    world.change_projections("\nversion = 2", "");
    world
        .db
        .run("ALTER TABLE totals.entry ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY");
    refuse(
        &world,
        &[],
        "column `id` of table `entry` is numbered by Postgres",
    );
    world.db.run("ALTER TABLE totals.entry DROP COLUMN id");
    world
        .db
        .run("CREATE TABLE public.note (e text REFERENCES totals.total (e) ON DELETE CASCADE)");
    refuse(&world, &[], "would delete or change other rows");
    world.db.run("DROP TABLE public.note");
    world.db.run(
        "CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER again AFTER INSERT ON totals.entry FOR EACH ROW EXECUTE FUNCTION public.nothing()",
    );
    refuse(&world, &[], "trigger again of totals.entry would run");
    world.db.run(
        "DROP TRIGGER again ON totals.entry;
         CREATE RULE kept AS ON DELETE TO totals.total DO INSTEAD NOTHING",
    );
    refuse(&world, &[], "rule kept of totals.total would run");
    world.db.run("DROP RULE kept ON totals.total");

    // Not where it was: its gate tells.
    let elsewhere = format!("{}/{}", world.incoming(), (i32::from(b'a') + 1) % 2);
    refuse(
        &world,
        &["--partition", &elsewhere],
        "no event of it was met",
    );
    refuse(&world, &[], "is being built by another definition");
    rebuild(&world, &["abandon", "totals", "--yes"]).expect(0);
    refuse(
        &world,
        &["--partition", "nowhere/0"],
        "is none that the projection reads",
    );
    let there = format!("{}/{}", world.incoming(), i32::from(b'a') % 2);
    rebuild(
        &world,
        &["entity", "totals", "a", "--yes", "--partition", &there],
    )
    .expect(0);
    assert_eq!(rows(&world), before);

    // What an operator has given up is not for a build to apply.
    let number: i64 = world
        .db
        .one("SELECT number FROM tidegate.dead_letter WHERE state = 'waiting'");
    world
        .tidegate(&[
            "dead-letters",
            "discard",
            "totals",
            "--number",
            &number.to_string(),
            "--why",
            "test",
            "--yes",
        ])
        .expect(0);
    repair(&mut world);
    let refused = entity(&world, "b").expect(70);
    assert!(
        refused.stderr.contains("was given up by an operator"),
        "{}",
        refused.stderr
    );
    assert_eq!(rows(&world), before);
    process.stop();
}

/// An event with more in it, so that its value is longer than a limit.
fn long(e: &str, s: i64, d: i64) -> Value {
    json!({ "e": e, "s": s, "d": d, "more": "x".repeat(300) })
}

const LIMIT: (&str, &str) = ("TIDEGATE__DECODE__VALUE_BYTES_MAX", "200");

// I3, I8: a gate that only sees how far the events go does not tell that the first ones were not read, or are gone; fewer
// rows are not put in the place of more without a yes.
#[test]
fn an_entity_whose_first_events_may_be_missing_is_left_alone() {
    let newest = TOTALS.replace(r#"gate     = "next""#, r#"gate     = "newest""#);
    let world = World::new(1, &newest, &[SETUP]);
    send(&world, &[1, 2, 3, 4, 5].map(|s| ("a", s, 1)));
    let process = world.start("a");
    world.wait_until_done(LONG);
    let has = |n: i64| rows(&world).get("a") == Some(&(n, (1..=n).collect()));
    let entity = |more: &[&str]| {
        rebuild(
            &world,
            &[&["entity", "totals", "a", "--yes"], more].concat(),
        )
    };
    let refuse = |more: &[&str], words: &str| {
        let refused = entity(more).expect(70).stderr;
        assert!(refused.contains(words), "{words:?} in {refused}");
    };
    configure_topic(world.incoming(), &[("cleanup.policy", "compact,delete")]);
    refuse(&[], "is compacted: older events of an entity may be gone");
    entity(&["--accept-truncated"]).expect(0);
    assert!(has(5));
    configure_topic(world.incoming(), &[("cleanup.policy", "delete")]);

    world
        .db
        .run("INSERT INTO totals.entry (e, s, share) VALUES ('a', 0, 1)");
    refuse(&[], "there would be fewer (entry: 6 rows before, 5 built)");
    assert_eq!(rows(&world)["a"], (5, (0..=5).collect()));
    entity(&["--accept-fewer"]).expect(0);
    assert!(has(5));

    world.add_partitions(2);
    let sender = world.sender();
    for s in 6..=9 {
        sender.send_json(1, &json!({ "e": "a", "s": s, "d": 1 }));
    }
    sender.flush();
    wait_until(LONG, "all are applied", || has(9));
    let later = format!("{}/1", world.incoming());
    refuse(&["--partition", &later], "only gate `next`");
    assert!(has(9));
    process.stop();
}

// I4: behind gate `newest` which events of two partitions are applied depends on which is read first. That of a build is
// another one than it was.
#[test]
fn an_entity_whose_events_would_be_replayed_in_another_order_is_left_alone() {
    let newest = TOTALS.replace(r#"gate     = "next""#, r#"gate     = "newest""#);
    let one_row = newest
        .replace(r#""entry.e", "total.e""#, r#""total.e""#)
        .replace(
            "[[projections.totals.apply]]\nsql = \"INSERT INTO entry (e, s, share) SELECT e, s, 100 / d FROM events\"\n",
            "",
        );
    let table = "CREATE TABLE total (e text PRIMARY KEY, n bigint NOT NULL)";
    let world = World::new(2, &one_row, &[("totals.sql", table)]);
    let process = world.start("a");
    let sender = world.sender();
    let n = |e: &str| {
        let row = format!("SELECT coalesce(max(n), 0) FROM totals.total WHERE e = '{e}'");
        world.db.one::<i64>(&row)
    };
    // One by one, from the one partition and from the other.
    for s in 1..=6 {
        sender.send_json(s % 2, &json!({ "e": "to and fro", "s": s, "d": 1 }));
        sender.send_json(0, &json!({ "e": "stays", "s": s, "d": 1 }));
        sender.flush();
        wait_until(LONG, "it is applied", || n("to and fro") == i64::from(s));
    }
    wait_until(LONG, "all are applied", || n("stays") == 6);
    let entity = |e: &str, more: &[&str]| {
        rebuild(&world, &[&["entity", "totals", e, "--yes"], more].concat())
    };
    let refused = entity("to and fro", &[]).expect(70).stderr;
    assert!(refused.contains("events are in 2 partitions"), "{refused}");
    assert_eq!(n("to and fro"), 6);
    entity("to and fro", &["--accept-order"]).expect(0);
    assert!((3..6).contains(&n("to and fro")));
    // What is in one partition has its order.
    entity("stays", &[]).expect(0);
    assert_eq!(n("stays"), 6);
    process.stop();
}

// I6: a record whose entity cannot be read is not taken for another's, and none is called applied that the build was made to
// skip.
#[test]
fn a_parked_record_that_the_build_has_not_applied_stays_parked() {
    let world = World::new(1, TOTALS, &[SETUP]);
    let sender = world.sender();
    sender.send_json(0, &json!({ "e": "a", "s": 1, "d": 1 }));
    sender.send_json(0, &long("a", 2, 0));
    sender.send(0, None, Some(b"no event"));
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(world.parked(), 2);
    let command = ["rebuild", "entity", "totals", "a", "--yes"];
    let (limit, bytes) = LIMIT;
    let told = world.launch("short").env(limit, bytes).output(&command);
    let told = told.expect(70).stderr;
    assert!(told.contains("@1 cannot be applied"), "{told}");
    rebuild(&world, &["abandon", "totals", "--yes"]).expect(0);
    assert_eq!(world.parked(), 2);

    // What neither can read is no hindrance, and neither is one that was given up.
    entity(&world, "a").expect(0);
    assert_eq!(world.parked(), 2);
    let why = ["--reason", "undecodable", "--why", "test", "--yes"];
    world
        .tidegate(&[&["dead-letters", "discard", "totals"][..], &why].concat())
        .expect(0);
    entity(&world, "a").expect(0);

    let holding = world
        .launch("ends")
        .failpoints("rebuild-holding=0*off->return");
    holding.output(&command).expect(-9);
    world.db.run(
        "INSERT INTO tidegate.skipped
         SELECT q.projection, q.generation, q.topic, q.incarnation, q.partition, 1, 2, (SELECT id FROM tidegate.operation LIMIT 1)
         FROM tidegate.position q JOIN tidegate.generation g ON g.projection = q.projection AND g.number = q.generation
         WHERE g.state = 'building'",
    );
    let told = entity(&world, "a").expect(70).stderr;
    assert!(told.contains("skipped in the build alone"), "{told}");
    rebuild(&world, &["abandon", "totals", "--yes"]).expect(0);
    assert_eq!((world.parked(), rows(&world)["a"].0), (1, 1));
    process.stop();
}

// I4: without a gate and ids nothing keeps a letter from being applied again whose entity is not known.
#[test]
fn a_letter_without_an_entity_is_not_applied_twice() {
    let none = TOTALS.replace(r#"gate     = "next""#, r#"gate     = "none""#);
    let world = World::new(1, &none, &[SETUP]);
    let sender = world.sender();
    sender.send_json(0, &json!({ "e": "a", "s": 1, "d": 1 }));
    sender.send_json(0, &long("a", 2, 1));
    sender.flush();
    let (limit, bytes) = LIMIT;
    let process = world.launch("short").env(limit, bytes).start();
    world.wait_until_done(LONG);
    assert_eq!(world.parked(), 1);
    let told = entity(&world, "a").expect(70).stderr;
    assert!(told.contains("nothing says of which entity"), "{told}");
    assert_eq!(rows(&world)["a"], (1, vec![1]));
    rebuild(&world, &["abandon", "totals", "--yes"]).expect(0);

    process.stop();
    let process = world.start("long");
    world
        .tidegate(&["dead-letters", "redrive", "totals"])
        .expect(0);
    assert_eq!(world.parked(), 0);
    entity(&world, "a").expect(0);
    assert_eq!(rows(&world)["a"], (2, vec![1, 2]));
    process.stop();
}
