//! What a build must not do to the live schema, and what operators do and see while something is built.

use serde_json::Value;

use crate::harness::{LONG, World};
use crate::rebuild::{COPIES, COPIES_FILE, copies, live, rebuild, send};

/// Ends a rebuild's process right after it has begun.
fn begin(world: &World, projection: &str) {
    let ends = world
        .launch("rebuild")
        .failpoints("rebuild-after-begin=0*off->return");
    ends.output(&["rebuild", "start", projection]).expect(-9);
}

// I8: what is neither a row nor a lock that others wait for is noticed too.
#[test]
fn a_build_that_counts_empties_or_redefines_what_is_live_is_stopped() {
    let mut world = copies();
    send(&world, &[1, 2, 3]);
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    world.db.run(
        "CREATE SEQUENCE copies.own; CREATE TABLE copies.more AS SELECT 1 AS a;
         CREATE FUNCTION copies.one() RETURNS integer LANGUAGE sql AS 'SELECT 1';",
    );
    world.change_projections("version = 1", "version = 2");
    let table = COPIES_FILE.1;
    let trigger = |does: &str| {
        format!(
            "{table};
             CREATE FUNCTION does() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {does}; RETURN NULL; END $$;
             CREATE TRIGGER does AFTER INSERT ON copies FOR EACH STATEMENT EXECUTE FUNCTION does();"
        )
    };
    let path = world.folder().join("copies.sql");
    for (does, words) in [
        (
            "PERFORM nextval('copies.own')",
            "`copies.own` was written to",
        ),
        ("TRUNCATE copies.more", "`copies.more` was written to"),
    ] {
        std::fs::write(&path, trigger(does)).unwrap();
        let refused = rebuild(&world, &["start", "copies"]).expect(70);
        assert!(
            refused.stderr.contains(words),
            "{words:?} in {}",
            refused.stderr
        );
        rebuild(&world, &["abandon", "copies", "--yes"]).expect(0);
    }
    let rows: i64 = world.db.one("SELECT count(*) FROM copies.more");
    assert_eq!(rows, 1);

    for does in [
        "CREATE OR REPLACE FUNCTION copies.one() RETURNS integer LANGUAGE sql AS 'SELECT 2'",
        "DO $$ BEGIN BEGIN ALTER FUNCTION copies.one() VOLATILE STRICT; EXCEPTION WHEN others THEN NULL; END; END $$",
        "GRANT USAGE ON SCHEMA copies TO PUBLIC",
        "SELECT nextval('copies.own')",
    ] {
        std::fs::write(&path, format!("{table}; {does};")).unwrap();
        let refused = rebuild(&world, &["start", "copies"]).expect(70);
        let told = refused.stderr;
        assert!(told.contains("live generation"), "{does}: {told}");
    }
    let one: i32 = world.db.one("SELECT copies.one()");
    assert_eq!(one, 1);
    // Reading is allowed.
    std::fs::write(&path, trigger("PERFORM a FROM copies.more")).unwrap();
    rebuild(&world, &["start", "copies"]).expect(0);
    rebuild(&world, &["abandon", "copies", "--yes"]).expect(0);
}

// I6: what nobody can apply is skipped in the build too, on record, and never what the live generation has not decided.
#[test]
fn what_was_skipped_live_can_be_skipped_in_a_build() {
    let halts = COPIES.replace("version = 1", "version = 1\non_failure = \"halt\"");
    let mut world = World::new(1, &halts, &[COPIES_FILE]);
    send(&world, &[1, 0, 2]);
    let partition = format!("{}/0", world.incoming());
    let skip = |to: &str, more: &[&str]| {
        let command = ["skip", "copies", &partition, "--to", to, "--yes"];
        world.tidegate(&[&command[..], more].concat())
    };
    let process = world.start("a");
    world.wait_until_halted("copies", 0);
    let none = skip("2", &["--build"]).expect(70).stderr;
    assert!(
        none.contains("no generation of `copies` is being built"),
        "{none}"
    );
    skip("2", &[]).expect(0);
    world.wait_until_done(LONG);
    process.stop();

    world.change_projections("version = 1", "version = 2");
    let halted = rebuild(&world, &["start", "copies"]).expect(70).stderr;
    assert!(halted.contains("the build is halted"), "{halted}");
    send(&world, &[3]);
    let skip =
        |to: &str| world.tidegate(&["skip", "copies", &partition, "--to", to, "--build", "--yes"]);
    let beyond = skip("4").expect(70).stderr;
    assert!(
        beyond.contains("the live generation stands at 3"),
        "{beyond}"
    );
    let told = skip("2").expect(0).stdout;
    assert!(told.contains("in the build of projection copies"), "{told}");
    rebuild(&world, &["start", "copies", "--cut-over", "--yes"]).expect(0);
    assert_eq!(live(&world, "copies"), 2);
    let process = world.start("b");
    world.wait_until_done(LONG);
    process.stop();
    let rows: i64 = world.db.one("SELECT count(*) FROM copies.copies");
    assert_eq!(rows, 3);
    let verified = world.tidegate(&["verify"]).expect(0).stdout;
    assert!(verified.contains("offsets 1 to 1"), "{verified}");
}

// I5, I6: what waits in the live generation would be out of sight behind a build that has left it out, and its message never
// sent.
#[test]
fn a_build_that_has_skipped_what_waits_does_not_cut_over() {
    let mut world = World::new(1, COPIES, &[COPIES_FILE]);
    send(&world, &[1, 0, 2]);
    let process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!(world.parked(), 1);
    process.stop();

    world.change_projections("version = 1", "version = 2\non_failure = \"halt\"");
    let halted = rebuild(&world, &["start", "copies"]).expect(70).stderr;
    assert!(halted.contains("the build is halted"), "{halted}");
    let partition = format!("{}/0", world.incoming());
    let skip = [
        "skip", "copies", &partition, "--to", "2", "--build", "--yes",
    ];
    world.tidegate(&skip).expect(0);
    let cut_over = ["start", "copies", "--cut-over", "--yes"];
    let refused = rebuild(&world, &cut_over).expect(70).stderr;
    assert!(
        refused.contains("1 dead letters wait") && refused.contains("the build has skipped"),
        "{refused}"
    );
    assert_eq!(live(&world, "copies"), 1);
    let rights = || -> i64 { world.db.one("SELECT count(*) FROM tidegate.unemitted") };
    assert_eq!(rights(), 1);

    let discard = [
        "dead-letters",
        "discard",
        "copies",
        "--why",
        "none",
        "--yes",
    ];
    let (old, new) = ("version = 1", "version = 2\non_failure = \"halt\"");
    world.change_projections(new, old);
    world.tidegate(&discard).expect(0);
    world.change_projections(old, new);
    rebuild(&world, &cut_over).expect(0);
    assert_eq!(live(&world, "copies"), 2);
}

// I5: a log that has moved to another cluster is the same one for what is being built, and for former generations.
#[test]
fn a_log_that_is_the_same_is_so_for_builds_too() {
    let world = World::journal(2);
    world.stream().produce(100);
    let process = world.start("a");
    world.wait_until_done(LONG);
    rebuild(&world, &["start", "journal", "--cut-over", "--yes"]).expect(0);
    process.stop();
    begin(&world, "journal");
    world
        .db
        .run("UPDATE tidegate.position SET topic_id = gen_random_uuid()");
    let process = world.start("b");
    world.wait_until_halted("journal", 0);
    let same = [
        "accept-topic",
        "journal",
        world.incoming(),
        "--same-log",
        "--yes",
    ];
    world.tidegate(&same).expect(0);
    world.stream().produce(100);
    rebuild(&world, &["start", "journal", "--cut-over", "--yes"]).expect(0);
    assert_eq!(live(&world, "journal"), 3);
    world.assert_exact();
    let back = ["rollback", "journal", "--to", "1", "--yes"];
    rebuild(&world, &back).expect(0);
    assert_eq!(live(&world, "journal"), 1);
    world.assert_exact();
    process.stop();
}

// After a rollback the generations that were live meanwhile have newer numbers.
#[test]
fn explain_tells_of_generations_that_were_rolled_back() {
    let world = World::journal(1);
    world.stream().produce(20);
    let process = world.start("a");
    world.wait_until_done(LONG);
    rebuild(&world, &["start", "journal", "--cut-over", "--yes"]).expect(0);
    rebuild(&world, &["rollback", "journal", "--to", "1", "--yes"]).expect(0);
    let record = format!("{}/0@7", world.incoming());
    let told = world.tidegate(&["explain", "journal", &record, "--json"]);
    let told: Value = told.expect(0).json();
    assert_eq!(told["generation"], 1, "{told}");
    assert_eq!(told["earlier"][0]["generation"], 2, "{told}");
    process.stop();
}
