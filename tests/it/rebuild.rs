//! A read model is built anew beside the live one, and takes its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{
    LONG, Output, Process, Session, Watch, World, configure_topic, delete_records_before,
    make_anew, unique, wait_until,
};

pub(crate) const NEXT_VERSION: (&str, &str) = (
    "[projections.balances]",
    "[projections.balances]\nversion = 2",
);

pub(crate) fn rebuild(world: &World, command: &[&str]) -> Output {
    let command: Vec<&str> = ["rebuild"]
        .into_iter()
        .chain(command.iter().copied())
        .collect();
    world.launch("rebuild").output(&command)
}

/// The live generation of a projection.
pub(crate) fn live(world: &World, projection: &str) -> i32 {
    world.db.one(&format!(
        "SELECT live_generation FROM tidegate.projection WHERE name = '{projection}'"
    ))
}

/// The schemas that a projection's generations have.
pub(crate) fn schemas(world: &World, projection: &str) -> Vec<String> {
    let rows: Vec<(String,)> = world.db.rows(&format!(
        "SELECT nspname::text FROM pg_namespace WHERE nspname ~ '^{projection}(__g\\d+)?$' ORDER BY 1"
    ));
    rows.into_iter().map(|(name,)| name).collect()
}

/// Somebody who reads a table all the time: neither an error, nor less than before.
pub(crate) struct Reader {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u32, Duration)>,
}

impl Reader {
    pub(crate) fn of(world: &World, query: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let (url, query) = (world.db.url(), query.to_owned());
        let thread = thread::spawn(move || {
            let mut session = Session::open(&url);
            let (mut before, mut reads, mut longest) = (0, 0, Duration::ZERO);
            while !told.load(Ordering::Relaxed) {
                let began = Instant::now();
                let now: i64 = session.one(&query);
                longest = longest.max(began.elapsed());
                assert!(now >= before, "{now} after {before}");
                (before, reads) = (now, reads + 1);
            }
            (reads, longest)
        });
        Self { stop, thread }
    }

    pub(crate) fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (reads, longest) = self.thread.join().unwrap();
        eprintln!("{reads} reads, the longest took {longest:?}");
        assert!(reads > 10);
    }
}

/// A process with small batches.
pub(crate) fn worker(world: &World, name: &str) -> Process {
    world.launch(name).batch_records_max(100).start()
}

/// Two processes of the ledger are amid a stream.
pub(crate) fn wait_until_both_work(world: &World, first: &Process, second: &Process) {
    for process in [first, second] {
        wait_until(LONG, "both work", || world.has_some_of("balances", process));
    }
    wait_until(LONG, "much is applied", || world.progress() > 5_000);
}

// I3, I5, I8: two processes with the old definition, a stream that goes on, with copies, and readers. What was live is as it
// was until it is replaced, at once and by the same rows.
#[test]
fn a_rebuild_under_load_reaches_the_same_rows_and_sends_nothing_again() {
    let mut world = World::ledger(4);
    let mut stream = world.stream();
    stream.produce(3_000);
    let (first, second) = (worker(&world, "first"), worker(&world, "second"));
    let feeder = stream.feed(300);
    wait_until_both_work(&world, &first, &second);
    world.change_projections(NEXT_VERSION.0, NEXT_VERSION.1);
    let reader = Reader::of(
        &world,
        "SELECT coalesce(sum(entries), 0)::bigint FROM balances.balance",
    );
    let watch = Watch::over(&world.db);

    let told = rebuild(&world, &["start", "balances"]).expect(0).stdout;
    assert!(told.contains("caught up"), "{told}");
    assert_eq!(live(&world, "balances"), 1);
    assert_eq!(schemas(&world, "balances"), ["balances", "balances__g2"]);
    let held: i64 = world.db.one("SELECT count(*) FROM balances__g2._held");
    assert_eq!(held, 0, "no record has its right to emit still");
    let told = rebuild(&world, &["verify", "balances"]).expect(0).stdout;
    assert!(told.contains("same") && !told.contains("DIFFERS"), "{told}");
    let told = rebuild(&world, &["cut-over", "balances", "--yes"])
        .expect(0)
        .stdout;
    assert!(told.contains("generation 2 is live"), "{told}");
    eprintln!("{told}");
    assert_eq!(live(&world, "balances"), 2);
    assert_eq!(schemas(&world, "balances"), ["balances", "balances__g1"]);

    // The old ones say why they do nothing any more, and leave the group.
    first.wait_for_log(LONG, &["not claimed", "another definition", "rebuild"]);
    let _third = worker(&world, "third");
    first.stop();
    second.stop();
    feeder.finish();
    world.assert_exact();
    watch.assert_only_grown();
    reader.finish();
}

// I3, I5: without a gate and without an inbox, what two of them apply is there twice. The processes have the definition of the
// new tables, and go on in them by themselves.
#[test]
fn processes_of_the_same_definition_go_on_in_the_new_tables() {
    let world = World::ledger(4);
    let mut stream = world.stream();
    stream.produce(1_000);
    let start = |name: &str| world.launch(name).batch_records_max(20).start();
    let (first, second) = (start("first"), start("second"));
    let feeder = stream.feed(400);
    for process in [&first, &second] {
        wait_until(LONG, "both work", || world.has_some_of("journal", process));
    }
    for generation in 2..=3 {
        let told = rebuild(&world, &["start", "journal", "--cut-over", "--yes"])
            .expect(0)
            .stdout;
        assert!(
            told.contains(&format!("generation {generation} is live")),
            "{told}"
        );
    }
    let back = ["rollback", "journal", "--to", "2", "--yes"];
    let told = rebuild(&world, &back).expect(0).stdout;
    assert!(told.contains("generation 2 is live"), "{told}");
    feeder.finish();
    world.assert_exact();
    let operations: Vec<(String,)> = world
        .db
        .rows("SELECT kind FROM tidegate.operation WHERE projection = 'journal' ORDER BY at");
    let kinds: Vec<&str> = operations.iter().map(|(kind,)| &**kind).collect();
    assert_eq!(
        kinds,
        [
            "rebuild", "cut-over", "rebuild", "cut-over", "rollback", "cut-over"
        ]
    );
}

// I2: whose answer was lost repeats a rollback; that leads nowhere else. Which generation is never guessed: the former one
// of a rollback is what it led away from.
#[test]
fn a_rollback_that_is_repeated_goes_nowhere_else() {
    let world = World::journal(2);
    world.stream().produce(100);
    let process = world.start("a");
    world.wait_until_done(LONG);
    let none = rebuild(&world, &["rollback", "journal"]).expect(64);
    assert!(none.stderr.contains("nothing to go back to"));
    rebuild(&world, &["start", "journal", "--cut-over", "--yes"]).expect(0);
    let asked = rebuild(&world, &["rollback", "journal", "--yes"]).expect(64);
    for words in [
        "generation 2 is live",
        "rollback journal --to 1    (version 1;",
    ] {
        assert!(
            asked.stderr.contains(words),
            "{words:?} in {}",
            asked.stderr
        );
    }
    let refused = rebuild(&world, &["rollback", "journal", "--to", "7", "--yes"]).expect(70);
    assert!(
        refused.stderr.contains("those that are: 1"),
        "{}",
        refused.stderr
    );
    let operations = || -> i64 { world.db.one("SELECT count(*) FROM tidegate.operation") };
    let back = ["rollback", "journal", "--to", "1", "--yes"];
    rebuild(&world, &back).expect(0);
    let before = operations();
    let told = rebuild(&world, &back).expect(0).stdout;
    assert!(
        told.contains("generation 1 of `journal` is live already"),
        "{told}"
    );
    assert_eq!((live(&world, "journal"), operations()), (1, before));
    assert_eq!(schemas(&world, "journal"), ["journal", "journal__g2"]);

    // What is built and never was live is no way back, and keeps from going any.
    let ends = world
        .launch("rebuild")
        .failpoints("rebuild-after-begin=0*off->return");
    ends.output(&["rebuild", "start", "journal"]).expect(-9);
    let refused = rebuild(&world, &["rollback", "journal", "--to", "2", "--yes"]).expect(70);
    assert!(
        refused.stderr.contains("generation 3 is being built"),
        "{}",
        refused.stderr
    );
    let refused = rebuild(&world, &["rollback", "journal", "--to", "3", "--yes"]).expect(70);
    assert!(
        refused.stderr.contains("has never been live"),
        "{}",
        refused.stderr
    );
    world.stream().produce(50);
    world.wait_until_done(LONG);
    process.stop();
}

/// Sends a copy of every record, and cannot apply some.
pub(crate) const COPIES: &str = r#"
[projections.copies]
version = 1
topics  = ["@in@"]
gate    = "none"
setup   = "copies.sql"
columns = { amount = "bigint" }

[[projections.copies.apply]]
sql = "INSERT INTO copies (record_offset, share) SELECT _offset, 100 / amount FROM events"

[[projections.copies.emit]]
name  = "copy"
topic = "@out@"
sql   = "SELECT _ref, _offset::text AS key, jsonb_build_object('offset', _offset) AS payload FROM events"
"#;
pub(crate) const COPIES_FILE: (&str, &str) = (
    "copies.sql",
    "CREATE TABLE copies (record_offset bigint NOT NULL, share bigint)",
);

pub(crate) fn copies() -> World {
    World::new(1, COPIES, &[COPIES_FILE])
}

pub(crate) fn send(world: &World, amounts: &[i64]) {
    let sender = world.sender();
    for amount in amounts {
        sender.send_json(0, &json!({ "amount": amount }));
    }
    sender.flush();
}

// I8: a trigger that names the live schema writes there from the build too.
#[test]
fn a_build_that_writes_to_the_live_tables_halts() {
    let mut world = copies();
    send(&world, &[1, 2, 3]);
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    world.change_projections("version = 1", "version = 2");
    let setup = "CREATE TABLE copies (record_offset bigint NOT NULL, share bigint);
        CREATE FUNCTION spread() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO copies.copies VALUES (-1, 0); RETURN NULL; END $$;
        CREATE TRIGGER spread AFTER INSERT ON copies FOR EACH STATEMENT EXECUTE FUNCTION spread();";
    std::fs::write(world.folder().join("copies.sql"), setup).unwrap();
    let refused = rebuild(&world, &["start", "copies"]).expect(70);
    for words in ["halted", "`copies.copies` was written to", "copies__g2"] {
        assert!(
            refused.stderr.contains(words),
            "{words:?} in {}",
            refused.stderr
        );
    }
    let rows: i64 = world.db.one("SELECT count(*) FROM copies.copies");
    assert_eq!(rows, 3);
    let built = || -> i64 { world.db.one("SELECT count(*) FROM copies__g2.copies") };
    assert_eq!(built(), 0);
    // Repaired, it goes on.
    world
        .db
        .run("DROP TRIGGER spread ON copies__g2.copies; UPDATE tidegate.position SET since = now() - interval '1 minute'");
    rebuild(&world, &["start", "copies"]).expect(0);
    assert_eq!(built(), 3);
    rebuild(&world, &["abandon", "copies", "--yes"]).expect(0);
    assert_eq!(schemas(&world, "copies"), ["copies"]);

    // So does a setup that names it.
    let setup = "CREATE TABLE copies (record_offset bigint NOT NULL, share bigint);
        CREATE INDEX ON copies.copies (share);";
    std::fs::write(world.folder().join("copies.sql"), setup).unwrap();
    let refused = rebuild(&world, &["start", "copies"]).expect(70);
    assert!(
        refused.stderr.contains("does something to `copies`"),
        "{}",
        refused.stderr
    );
    assert_eq!(schemas(&world, "copies"), ["copies"]);
}

// I8: whatever a setup makes goes with the build, and nothing else.
#[test]
fn an_abandoned_rebuild_leaves_the_live_generation() {
    let mut world = World::ledger(2);
    world.stream().produce(300);
    let process = world.start("a");
    world.assert_exact();
    let epochs = |world: &World| -> i64 {
        world
            .db
            .one("SELECT sum(epoch)::bigint FROM tidegate.position WHERE generation = 1")
    };
    let before = (world.stored(), world.positions(), epochs(&world));
    world.change_projections(NEXT_VERSION.0, NEXT_VERSION.1);
    let setup = std::fs::read_to_string(world.folder().join("balances.sql")).unwrap();
    let more = "CREATE TYPE mood AS ENUM ('good', 'bad');
        CREATE DOMAIN cents AS bigint CHECK (value >= 0);
        CREATE FUNCTION one() RETURNS bigint LANGUAGE sql AS 'SELECT 1';
        CREATE SEQUENCE own;
        CREATE TABLE a (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, b bigint DEFAULT one(), m mood, c cents);
        CREATE TABLE b (id bigint PRIMARY KEY, a bigint REFERENCES a);
        ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b;
        CREATE VIEW seen AS SELECT * FROM a JOIN b USING (id);
        CREATE MATERIALIZED VIEW counted AS SELECT count(*) FROM seen;
        CREATE FUNCTION rows_of_a() RETURNS SETOF a LANGUAGE sql AS 'SELECT * FROM a';";
    std::fs::write(
        world.folder().join("balances.sql"),
        format!("{setup}{more}"),
    )
    .unwrap();
    rebuild(&world, &["start", "balances"]).expect(0);

    // While it is there, a reset would move what the build stays behind of.
    let refused = world
        .tidegate(&["reset", "balances", "--to", "earliest", "--yes"])
        .expect(70);
    assert!(refused.stderr.contains("rebuild"), "{}", refused.stderr);
    let status = rebuild(&world, &["status", "balances", "--json"])
        .expect(0)
        .json();
    assert_eq!(status["remaining"], 0);
    assert_eq!(world.status()["projections"][0]["building"], 2);
    assert_eq!(status["beside"][0]["schema"], "balances__g2");
    // Another configuration cannot go on with it.
    world.change_projections("version = 2", "version = 3");
    let refused = rebuild(&world, &["cut-over", "balances", "--yes"]).expect(70);
    assert!(
        refused.stderr.contains("another definition"),
        "{}",
        refused.stderr
    );

    // Somebody has made something of it already: that stays, and so the schema does.
    world
        .db
        .run("CREATE VIEW public.theirs AS SELECT * FROM balances__g2.a");
    rebuild(&world, &["abandon", "balances", "--yes"]).expect(70);
    world.db.run("DROP VIEW public.theirs");
    rebuild(&world, &["abandon", "balances", "--yes"]).expect(0);
    assert_eq!(schemas(&world, "balances"), ["balances"]);
    assert_eq!((world.stored(), world.positions(), epochs(&world)), before);
    rebuild(&world, &["abandon", "balances", "--yes"]).expect(70);
    process.stop();
}

// I8: whoever is at work is told, and writes nothing more.
#[test]
fn a_build_that_is_given_up_by_somebody_else_ends() {
    let world = World::journal(2);
    world.stream().produce(500);
    let process = world.start("a");
    world.wait_until_done(LONG);
    thread::scope(|scope| {
        let world = &world;
        let building = scope.spawn(move || {
            let slow = "apply-before-commit=sleep(200)";
            let launch = world.launch("rebuild").batch_records_max(5);
            launch
                .failpoints(slow)
                .output(&["rebuild", "start", "journal"])
        });
        wait_until(LONG, "some is built", || {
            let built: Option<i64> = world
                .db
                .one("SELECT sum(consumed)::bigint FROM tidegate.position WHERE generation = 2");
            built.is_some_and(|built| built > 0)
        });
        let abandoned = world.tidegate(&["rebuild", "abandon", "journal", "--yes"]);
        assert!(abandoned.expect(0).stdout.contains("is dropped"));
        let told = building.join().unwrap().expect(70).stderr;
        assert!(told.contains("is not being built any more"), "{told}");
    });
    assert_eq!(schemas(&world, "journal"), ["journal"]);
    process.stop();
    world.assert_exact();
}

// I8: nothing is made, and every reason is told.
#[test]
fn what_stands_in_the_way_of_a_rebuild_is_told_beforehand() {
    let mut world = copies();
    send(&world, &[1, 2, 3, 4]);
    let not_started = rebuild(&world, &["plan", "copies"]).expect(70);
    assert!(not_started.stderr.contains("never been started"));
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    let expect = |world: &World, words: &str| {
        for command in ["plan", "start"] {
            let refused = rebuild(world, &[command, "copies"]).expect(70);
            assert!(
                refused.stderr.contains(words),
                "{words:?} in {}",
                refused.stderr
            );
        }
        assert_eq!(schemas(world, "copies"), ["copies"]);
    };
    let told = rebuild(&world, &["plan", "copies"]).expect(0).stdout;
    assert!(told.contains("4 offsets to read"), "{told}");

    world.change_projections("100 / amount", "200 / amount");
    expect(&world, "raise `version`");
    world.change_projections("200 / amount", "100 / amount");

    world
        .db
        .run("CREATE VIEW public.report AS SELECT * FROM copies.copies");
    expect(&world, "view report depends on the live tables");
    world.db.run(
        "DROP VIEW public.report; ALTER TABLE copies.copies ADD UNIQUE (record_offset);
        CREATE TABLE public.note (o bigint REFERENCES copies.copies (record_offset))",
    );
    expect(&world, "constraint note_o_fkey on table note");
    world
        .db
        .run("DROP TABLE public.note; CREATE PUBLICATION everything FOR TABLE copies.copies");
    expect(&world, "publication everything");
    world.db.run("DROP PUBLICATION everything");

    configure_topic(world.incoming(), &[("cleanup.policy", "compact,delete")]);
    expect(&world, "is compacted");
    configure_topic(world.incoming(), &[("cleanup.policy", "delete")]);

    delete_records_before(world.incoming(), 0, 2);
    wait_until(LONG, "the beginning is gone", || {
        rebuild(&world, &["plan", "copies"]).code == 70
    });
    expect(&world, "its history is not complete any more");
    let started = rebuild(&world, &["start", "copies", "--accept-truncated"]);
    assert!(started.expect(0).stdout.contains("generation 2 is begun"));
    let accepted: bool = world.db.one(
        "SELECT (arguments ->> 'accept_truncated')::boolean FROM tidegate.operation WHERE kind = 'rebuild'",
    );
    assert!(accepted);
    let built: i64 = world.db.one("SELECT count(*) FROM copies__g2.copies");
    assert_eq!(built, 2);
}

// Owners and grants go with the names, to whatever has them afterwards.
#[test]
fn grants_and_owners_are_carried_over() {
    let world = copies();
    send(&world, &[1]);
    let process = world.start("a");
    world.wait_until_done(LONG);
    let (reader, owner) = (format!("r_{}", unique()), format!("o_{}", unique()));
    world.db.run(&format!(
        "CREATE ROLE {reader}; CREATE ROLE {owner};
         GRANT USAGE ON SCHEMA copies TO {reader}; GRANT SELECT (share) ON copies.copies TO {reader};
         GRANT SELECT ON copies._gate TO {reader} WITH GRANT OPTION;
         GRANT CREATE ON SCHEMA copies TO {owner};
         ALTER TABLE copies.copies OWNER TO {owner}; GRANT SELECT ON copies.copies TO PUBLIC;"
    ));
    let rights = || -> String {
        world.db.one(
            "SELECT string_agg(d, ' ' ORDER BY d) FROM (
                SELECT a::text AS d FROM pg_namespace, unnest(nspacl) a WHERE nspname = 'copies'
                UNION ALL
                SELECT relname || ' ' || relowner FROM pg_class WHERE relnamespace = 'copies'::regnamespace
                UNION ALL
                SELECT relname || ' ' || a FROM pg_class, unnest(relacl) a
                WHERE relnamespace = 'copies'::regnamespace
                UNION ALL
                SELECT attname || ' ' || a FROM pg_attribute, unnest(attacl) a
                WHERE attrelid = 'copies.copies'::regclass) AS rights",
        )
    };
    let before = rights();
    rebuild(&world, &["start", "copies", "--cut-over", "--yes"]).expect(0);
    assert_eq!(live(&world, "copies"), 2);
    assert_eq!(rights(), before);
    process.stop();
    // Policies are not carried over, so nothing may be shown that they hid.
    world
        .db
        .run("ALTER TABLE copies.copies ENABLE ROW LEVEL SECURITY");
    let refused = rebuild(&world, &["start", "copies", "--cut-over", "--yes"]).expect(70);
    assert!(
        refused.stderr.contains("row-level policies"),
        "{}",
        refused.stderr
    );
    assert_eq!(live(&world, "copies"), 2);
    world.db.run(&format!(
        "DROP OWNED BY {reader}; REASSIGN OWNED BY {owner} TO CURRENT_USER; DROP OWNED BY {owner};
         DROP ROLE {reader}; DROP ROLE {owner}"
    ));
}

// I3: whoever sleeps in the middle of a batch holds a cut-over up until its transaction is ended, and writes nothing when it
// wakes.
#[test]
fn a_worker_that_sleeps_through_a_cut_over_writes_nothing() {
    let world = World::journal(1);
    world.stream().produce(50);
    let process = world
        .launch("sleeper")
        .env("TIDEGATE__POSTGRES__IDLE_IN_TRANSACTION_TIMEOUT", "3s")
        .failpoints("apply-before-advance=1*off->1*sleep(4000)")
        .batch_records_max(20)
        .start();
    wait_until(LONG, "the second batch is open", || {
        world.is_amid_batch("journal", &process)
    });
    process.signal("STOP");
    let told = rebuild(&world, &["start", "journal", "--cut-over", "--yes"])
        .expect(0)
        .stdout;
    assert!(told.contains("generation 2 is live"), "{told}");
    process.signal("CONT");
    world.assert_exact();
}

// I5, I10: the log grows by a partition while a build is under way, and Postgres ends all sessions.
#[test]
fn a_build_goes_on_over_an_outage_and_with_new_partitions() {
    let world = World::ledger(2);
    let mut stream = world.stream();
    stream.produce(2_000);
    let process = world.start("a");
    wait_until(LONG, "all is applied", || world.progress() >= 6_000);
    let feeder = stream.feed(200);
    thread::scope(|scope| {
        let world = &world;
        let building = scope.spawn(move || {
            let slow = "apply-before-commit=sleep(100)";
            let launch = world
                .launch("rebuild")
                .batch_records_max(50)
                .failpoints(slow);
            launch.output(&["rebuild", "start", "balances", "--cut-over", "--yes"])
        });
        let built = |least: i64| {
            let sum: Option<i64> = world.db.one(
                "SELECT sum(next_offset)::bigint FROM tidegate.position WHERE projection = 'balances' AND generation = 2",
            );
            sum.is_some_and(|sum| sum >= least)
        };
        wait_until(LONG, "some is built", || built(200));
        let other = world.tidegate(&["rebuild", "start", "balances"]).expect(75);
        assert!(
            other.stderr.contains("another process is building"),
            "{}",
            other.stderr
        );
        world.add_partitions(3);
        feeder.spread(3);
        world.db.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        );
        let told = building.join().unwrap().expect(0).stdout;
        assert!(told.contains("generation 2 is live"), "{told}");
    });
    feeder.finish();
    world.assert_exact();
    drop(process);
}

// Whoever starts it with other statements on the same tables is told, and what it can do.
#[test]
fn changed_statements_are_told_at_a_start() {
    let mut world = copies();
    send(&world, &[1]);
    let process = world.start("a");
    world.wait_until_done(LONG);
    assert!(!process.has_logged(&["have changed"]));
    process.stop();
    world.change_projections("100 / amount", "200 / amount");
    let more = format!("{}; -- one more\n", COPIES_FILE.1);
    std::fs::write(world.folder().join("copies.sql"), more).unwrap();
    let process = world.start("a");
    process.wait_for_log(
        LONG,
        &["statements, columns or seed have changed", "rebuild start"],
    );
    process.wait_for_log(LONG, &["the setup SQL has changed", "rebuild start"]);
    send(&world, &[2]);
    world.wait_until_done(LONG);
    process.stop();
}

// I5, I6: a parked record that the log has lost would be in no live generation any more, and its message never sent.
#[test]
fn dead_letters_that_the_log_has_lost_are_decided_before_a_rebuild() {
    let mut world = copies();
    send(&world, &[1, 0, 2]);
    let process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(world.parked(), 1);
    world.change_projections("version = 1", "version = 2");
    rebuild(&world, &["plan", "copies"]).expect(0);
    delete_records_before(world.incoming(), 0, 2);
    let lost = "1 dead letters wait whose records the log does not have any more";
    wait_until(LONG, "the beginning is gone", || {
        let told = rebuild(&world, &["start", "copies", "--accept-truncated"]);
        told.expect(70).stderr.contains(lost)
    });
    assert_eq!(schemas(&world, "copies"), ["copies"]);
    world.change_projections("version = 2", "version = 1");
    let discard = [
        "dead-letters",
        "discard",
        "copies",
        "--why",
        "lost",
        "--yes",
    ];
    world.tidegate(&discard).expect(0);
    world.change_projections("version = 1", "version = 2");
    rebuild(&world, &["start", "copies", "--accept-truncated"]).expect(0);

    // One that comes later is in the way of the cut-over only if the build has not met it.
    send(&world, &[0, 3]);
    let all = ["cut-over", "copies", "--yes", "--accept-differences"];
    rebuild(&world, &all).expect(0);
    assert_eq!((live(&world, "copies"), world.parked()), (2, 2));
    process.stop();
}

// What the live generation has of a log that is gone is in no log any more.
#[test]
fn a_topic_that_was_made_anew_is_no_whole_history() {
    let mut world = copies();
    send(&world, &[1, 2, 3]);
    let process = world.start("a");
    world.wait_until_done(LONG);
    make_anew(world.incoming(), 1);
    world.wait_until_halted("copies", 0);
    let accept = ["accept-topic", "copies", world.incoming(), "--yes"];
    world.tidegate(&accept).expect(0);
    send(&world, &[4]);
    world.wait_until_done(LONG);
    process.stop();
    world.change_projections("version = 1", "version = 2");
    let refused = rebuild(&world, &["start", "copies"]).expect(70);
    let words = "was made anew while the live generation read it";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
}
