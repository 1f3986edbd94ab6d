//! Builds that are left to the service: its processes build beside their live work, and cut over.

use serde_json::Value;

use crate::harness::{LONG, Launch, Process, Session, Watch, World, wait_until};
use crate::http::Asked;
use crate::rebuild::{
    COPIES_FILE, NEXT_VERSION, Reader, copies, live, rebuild, schemas, send, wait_until_both_work,
    worker,
};

/// Leaves a build to the service.
fn leave(world: &World, projection: &str, more: &[&str]) -> String {
    let command = ["start", projection, "--detach"];
    rebuild(world, &[&command, more].concat()).expect(0).stdout
}

fn status(world: &World, projection: &str) -> Value {
    let told = rebuild(world, &["status", projection, "--json"]);
    told.expect(0).json()
}

/// Why the service does not go on; empty if it does, or has nothing to build.
fn trouble(world: &World, projection: &str) -> String {
    world.db.one(&format!(
        "SELECT coalesce(max(trouble), '') FROM tidegate.generation WHERE projection = '{projection}'"
    ))
}

fn wait_until_live(world: &World, projection: &str, generation: i32) {
    let what = format!("generation {generation} is live");
    wait_until(LONG, &what, || live(world, projection) == generation);
}

/// How many records are in the generation that is being built.
fn built(world: &World, projection: &str) -> i64 {
    let built: Option<i64> = world.db.one(&format!(
        "SELECT sum(consumed)::bigint FROM tidegate.position q
         JOIN tidegate.generation g USING (projection) WHERE g.number = q.generation
         AND g.state = 'building' AND projection = '{projection}'"
    ));
    built.unwrap_or(0)
}

fn builds(process: &Process) -> bool {
    process.has_logged(&["building for the service"])
}

/// Builds so slowly that something can happen meanwhile.
fn slow<'w>(world: &'w World, name: &str) -> Launch<'w> {
    let launch = world.launch(name).batch_records_max(20);
    launch.failpoints("apply-before-commit=sleep(50)")
}

// I3, I5, I8: what a rolling deployment does. The first process with the new definition builds, and has no partition
// until that is live; those with the old one go on. Readers see complete tables all the while.
#[test]
fn a_new_version_is_built_by_its_first_process_while_the_old_ones_go_on() {
    let mut world = World::ledger(4);
    let mut stream = world.stream();
    stream.produce(3_000);
    let (first, second) = (worker(&world, "first"), worker(&world, "second"));
    let feeder = stream.feed(300);
    wait_until_both_work(&world, &first, &second);
    world.change_projections(NEXT_VERSION.0, NEXT_VERSION.1);
    let sum = "SELECT coalesce(sum(entries), 0)::bigint FROM balances.balance";
    let reader = Reader::of(&world, sum);
    let watch = Watch::over(&world.db);

    let told = leave(&world, "balances", &["--cut-over", "--yes"]);
    assert!(told.contains("The service builds it"), "{told}");
    let told = rebuild(&world, &["status", "balances"]).expect(0).stdout;
    for words in [
        "cuts over if nothing differs",
        "no process does at the moment",
    ] {
        assert!(told.contains(words), "{words:?} in {told}");
    }
    // Nobody has its definition.
    assert!(!builds(&first) && !builds(&second));
    let third = Asked::start(slow(&world, "third"));
    third.wait_for("/readyz", Some("not_live"));
    assert_eq!(
        third.sum("tidegate_out_of_group{projection=\"balances\"}"),
        1.0
    );
    wait_until(LONG, "some is built", || built(&world, "balances") > 100);
    assert_eq!(world.owned_by("balances", third.process()), 0);
    assert_eq!(status(&world, "balances")["taken"], true);
    let before: i64 = world.db.one(sum);
    wait_until(LONG, "what is live goes on", || {
        world.db.one::<i64>(sum) > before
    });
    assert_eq!(live(&world, "balances"), 1, "all of that was meanwhile");

    wait_until_live(&world, "balances", 2);
    third
        .process()
        .wait_for_log(LONG, &["cut over", "pause_ms"]);
    third.wait_for("/readyz", None);
    // Nothing has to be replaced before it has all partitions.
    wait_until(LONG, "the old ones are out of the group", || {
        world.owned_by("balances", third.process()) == 4
    });
    first.stop();
    second.stop();
    feeder.finish();
    world.assert_exact();
    watch.assert_only_grown();
    reader.finish();
    assert_eq!(schemas(&world, "balances"), ["balances", "balances__g1"]);
}

// Nobody would know: each process does well what it does.
#[test]
fn a_build_that_no_process_takes_says_since_when_and_what_is_missing() {
    let mut world = World::ledger(1);
    world.stream().produce(10);
    let _old = worker(&world, "old");
    world.assert_exact();
    world.change_projections(NEXT_VERSION.0, NEXT_VERSION.1);
    leave(&world, "balances", &[]);
    let tells = |world: &World, words: &str| {
        wait_until(LONG, words, || {
            let told = rebuild(world, &["status", "balances"]).expect(0).stdout;
            let seen = world.tidegate(&["status"]).expect(0).stdout;
            told.contains(words) && seen.contains(words)
        });
    };
    tells(
        &world,
        "UTC): it takes one of `tidegate run` with its configuration; the log of one",
    );
    let left = &status(&world, "balances")["beside"][0]["waiting"]["left_at"];
    assert!(left.is_string(), "{left}");
    assert_eq!(
        &world.status()["projections"][0]["build_waits"]["left_at"],
        left
    );

    // Each says what is the matter with it.
    let off = world
        .launch("off")
        .env("TIDEGATE__REBUILD__ENABLED", "false");
    let off = off.start();
    tells(&world, "has its definition, but `rebuild.enabled = false`");
    off.stop();
    let (right, wrong) = ("sum(amount), count(*)", "sum(amount), count(amount)");
    world.change_projections(right, wrong);
    let other = world.start("other");
    tells(
        &world,
        "has its definition, but other statements, or another seed or setup",
    );
    other.stop();
    world.change_projections(wrong, right);
    let _able = world.start("able");
    wait_until(LONG, "one takes it", || {
        status(&world, "balances")["taken"] == true
    });
    assert_eq!(world.status()["projections"][0]["build_waits"], Value::Null);
}

// I1, I3, I8: one of two processes builds, and the other one does when that is gone, in whatever way.
#[test]
fn a_build_goes_on_in_another_process_and_never_in_two() {
    let world = World::journal(2);
    world.stream().produce(2_000);
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    let start = |name: &str| slow(&world, name).batch_records_max(5).start();
    let mut processes = vec![start("b"), start("c")];
    for process in &processes {
        process.wait_for_log(LONG, &["claimed"]);
    }
    leave(&world, "journal", &["--cut-over", "--yes"]);
    for round in 1.. {
        wait_until(LONG, "one builds", || processes.iter().any(builds));
        let least = built(&world, "journal") + 100;
        wait_until(LONG, "more is built", || built(&world, "journal") > least);
        assert_eq!(
            processes.iter().filter(|process| builds(process)).count(),
            1
        );
        let owners: i64 = world.db.one(
            "SELECT count(DISTINCT owner) FROM tidegate.position WHERE generation = 2 AND owner <> ''",
        );
        assert_eq!(owners, 1, "two take the build's partitions from each other");
        let at = processes.iter().position(builds).unwrap();
        let mut building = processes.remove(at);
        match round {
            1 => building.kill(),
            2 => building.stop(),
            _ => {
                processes.push(building);
                break;
            }
        }
        assert_eq!(live(&world, "journal"), 1);
        processes.push(start(&format!("more-{round}")));
    }
    wait_until_live(&world, "journal", 2);
    world.assert_exact();
}

// I8: the process that builds is told, and goes on with what is live.
#[test]
fn a_build_can_be_given_up_while_the_service_works_on_it() {
    let world = World::journal(2);
    world.stream().produce(1_000);
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    let mut process = slow(&world, "b").start();
    leave(&world, "journal", &["--cut-over", "--yes"]);
    let refused = world.tidegate(&["reset", "journal", "--to", "earliest", "--yes"]);
    assert!(refused.expect(70).stderr.contains("rebuild"));
    wait_until(LONG, "some is built", || built(&world, "journal") > 100);
    rebuild(&world, &["abandon", "journal", "--yes"]).expect(0);
    process.wait_for_log(LONG, &["is not being built any more"]);
    assert_eq!(schemas(&world, "journal"), ["journal"]);
    world.stream().produce(100);
    world.assert_exact();
    assert!(process.is_running());
    process.stop();
}

// I8, I10: what no record can pass halts the build, is told wherever somebody may look, and harms nothing else.
#[test]
fn a_build_of_the_service_that_halts_is_shown_and_goes_on_once_repaired() {
    let mut world = copies();
    send(&world, &[1, 2, 3]);
    let old = world.start("old");
    world.wait_until_done(LONG);
    world.change_projections("version = 1", "version = 2");
    let table = COPIES_FILE.1;
    let setup = format!(
        "{table};
         CREATE FUNCTION spread() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN INSERT INTO copies.copies VALUES (-1, 0); RETURN NULL; END $$;
         CREATE TRIGGER spread AFTER INSERT ON copies FOR EACH STATEMENT EXECUTE FUNCTION spread();"
    );
    std::fs::write(world.folder().join("copies.sql"), setup).unwrap();
    let new = Asked::start(world.launch("new"));
    leave(&world, "copies", &["--cut-over", "--yes"]);
    let halted = "tidegate_rebuild_halted{projection=\"copies\"}";
    let told = new.wait_for("/progress", Some("build_halted"));
    assert_eq!(told["builds"][0]["generation"], 2, "{told}");
    assert_eq!(new.sum(halted), 1.0);
    let told = rebuild(&world, &["status", "copies"]).expect(0).stdout;
    for words in ["it does not go on: the build is halted", "was written to"] {
        assert!(told.contains(words), "{words:?} in {told}");
    }
    send(&world, &[4, 5]);
    world.wait_until_done(LONG);
    let rows = || -> i64 { world.db.one("SELECT count(*) FROM copies.copies") };
    assert_eq!((live(&world, "copies"), rows()), (1, 5));

    world.db.run("DROP TRIGGER spread ON copies__g2.copies");
    leave(&world, "copies", &["--cut-over", "--yes"]);
    wait_until_live(&world, "copies", 2);
    assert_eq!((trouble(&world, "copies"), rows()), (String::new(), 5));
    new.wait_for("/progress", None);
    old.stop();
    send(&world, &[6]);
    wait_until(LONG, "it goes on with what is live", || rows() == 6);
}

// What differs needs a yes, a pause is a pause, and a person who wants the build has it.
#[test]
fn the_service_cuts_over_what_differs_only_if_told_so_and_gives_way_to_a_person() {
    let mut world = copies();
    send(&world, &[1, 2, 5]);
    let old = world.start("old");
    world.wait_until_done(LONG);
    old.stop();
    world.change_projections("version = 1", "version = 2");
    world.change_projections("100 / amount", "200 / amount");
    leave(&world, "copies", &["--cut-over", "--yes"]);
    let new = world.start("new");
    wait_until(LONG, "the difference is told", || {
        trouble(&world, "copies").contains("the tables differ: copies")
    });
    assert_eq!(live(&world, "copies"), 1);

    // Lent for a command, and taken back for good by another.
    let told = rebuild(&world, &["verify", "copies"]).expect(70).stdout;
    assert!(told.contains("DIFFERS"), "{told}");
    let detached = |world: &World| status(world, "copies")["beside"][0]["detached"].clone();
    assert_eq!(detached(&world), "cut over if same");
    wait_until(LONG, "the service goes on with it", || {
        status(&world, "copies")["taken"] == true
    });
    let told = rebuild(&world, &["start", "copies"]).expect(0).stdout;
    assert!(told.contains("lets go of it"), "{told}");
    assert_eq!(detached(&world), Value::Null);
    assert_eq!(status(&world, "copies")["taken"], false);

    world.tidegate(&["pause", "copies"]).expect(0);
    let anyway = ["--cut-over", "--accept-differences", "--yes"];
    leave(&world, "copies", &anyway);
    wait_until(LONG, "it is built again", || {
        status(&world, "copies")["taken"] == true
    });
    assert_eq!(live(&world, "copies"), 1);
    world.tidegate(&["resume", "copies"]).expect(0);
    wait_until_live(&world, "copies", 2);
    let shares: i64 = world.db.one("SELECT sum(share)::bigint FROM copies.copies");
    assert_eq!(shares, 200 + 100 + 40);
    let kinds: Vec<(String,)> = world.db.rows(
        "SELECT kind FROM tidegate.operation WHERE kind IN ('rebuild', 'cut-over') ORDER BY at",
    );
    let kinds: Vec<&str> = kinds.iter().map(|(kind,)| &**kind).collect();
    assert_eq!(kinds, ["rebuild", "rebuild", "rebuild", "cut-over"]);
    new.stop();
}

/// Waits until a cut-over waits for the live generation, in an attempt that began a good second after this was asked:
/// then whoever builds has read its orders again.
fn wait_for_an_attempt(world: &World) {
    let asked: chrono::DateTime<chrono::Utc> = world.db.one("SELECT clock_timestamp()");
    wait_until(LONG, "a cut-over waits for an open batch", || {
        world.db.one(&format!(
            "SELECT count(*) > 0 FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'tidegate rebuild journal'
               AND wait_event_type = 'Lock' AND xact_start > '{asked}'::timestamptz + interval '1500 milliseconds'"
        ))
    });
}

// I2: an order that is changed, or a pause, while a cut-over waits for an open batch is heeded although whoever builds has
// read it before the cut-over happens.
#[test]
fn no_cut_over_happens_that_was_called_off_while_it_waited() {
    let world = World::journal(2);
    world.stream().produce(200);
    let process = world.start("a");
    world.wait_until_done(LONG);
    // As the commands do it, but for as long as it takes to get in between two attempts.
    let changes: [(&str, &[&str]); 2] = [
        (
            "UPDATE tidegate.generation SET detached = 'build' WHERE state = 'building'",
            &[
                "rebuild",
                "start",
                "journal",
                "--detach",
                "--cut-over",
                "--yes",
            ],
        ),
        (
            "UPDATE tidegate.projection SET desired_state = 'paused' WHERE name = 'journal'",
            &["resume", "journal"],
        ),
    ];
    for (off, on) in changes {
        let generation = live(&world, "journal");
        let told = process
            .log()
            .matches("or the projection was paused")
            .count();
        leave(&world, "journal", &[]);
        let mut batch = Session::open(&world.db.url());
        batch.run("BEGIN");
        batch.run("SELECT pg_advisory_xact_lock_shared(hashtextextended('tidegate.generation.journal', 0))");
        let anyway = ["--cut-over", "--accept-differences", "--yes"];
        leave(&world, "journal", &anyway);
        wait_for_an_attempt(&world);
        Session::open(&world.db.url()).run(off);
        wait_for_an_attempt(&world);
        batch.run("COMMIT");
        wait_until(LONG, "it is called off", || {
            process
                .log()
                .matches("or the projection was paused")
                .count()
                > told
        });
        assert_eq!(live(&world, "journal"), generation);
        world.tidegate(on).expect(0);
        wait_until_live(&world, "journal", generation + 1);
    }
    process.stop();
}

// A process with a definition that nobody builds is no member, however much is given up around it.
#[test]
fn a_process_whose_build_is_given_up_stays_out_of_the_group() {
    let mut world = copies();
    send(&world, &[1, 2]);
    let old = world.start("old");
    world.wait_until_done(LONG);
    world.change_projections("version = 1", "version = 2");
    leave(&world, "copies", &[]);
    let new = Asked::start(world.launch("new"));
    new.wait_for("/readyz", Some("not_live"));
    wait_until(LONG, "it builds", || builds(new.process()));
    rebuild(&world, &["abandon", "copies", "--yes"]).expect(0);
    new.process().wait_for_log(LONG, &["not building"]);
    send(&world, &[3, 4, 5]);
    world.wait_until_done(LONG);
    assert_eq!(world.owned_by("copies", new.process()), 0);
    new.wait_for("/readyz", Some("not_live"));
    old.stop();
}
