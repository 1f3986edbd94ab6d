//! What the commands say, and the codes that they end with.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::harness::{LONG, World, wait_until};

const ONE: &str = r#"
[projections.one]
topics  = ["@in@"]
gate    = "none"
setup   = "one.sql"
columns = { account = "text" }

[[projections.one.apply]]
sql = "INSERT INTO one (account) SELECT account FROM events"
"#;

const SETUP: &str = "CREATE TABLE one (account text NOT NULL)";

fn one() -> World {
    World::new(1, ONE, &[("one.sql", SETUP)])
}

/// The place of some text in the configuration, as `file:line:column`, and the text after it.
fn place(world: &World, command: &str, text: &str) -> String {
    let path = world.folder().join(format!("{command}.toml"));
    let config = fs::read_to_string(&path).unwrap();
    let at = config.find(text).unwrap_or_else(|| panic!("no {text}"));
    let line = config[..at].matches('\n').count() + 1;
    let column = at - config[..at].rfind('\n').map_or(0, |newline| newline + 1) + 1;
    format!("{}:{line}:{column}", path.display())
}

#[track_caller]
fn assert_mistakes(world: &World, mistakes: &[(&str, &str)]) {
    let checked = world.launch("check").output(&["check"]).expect(78);
    for (text, says) in mistakes {
        let place = place(world, "check", text);
        assert!(
            checked.stderr.contains(&place),
            "{place} ({text}) in:\n{}",
            checked.stderr
        );
        assert!(
            checked.stderr.contains(says),
            "{says:?} in:\n{}",
            checked.stderr
        );
    }
    let count = format!("{} mistakes found", mistakes.len());
    assert!(
        checked.stderr.contains(&count),
        "{count:?} in:\n{}",
        checked.stderr
    );
}

#[test]
fn check_reports_all_mistakes_of_a_configuration_with_their_places() {
    let config = r#"
[projections.one]
topics   = ["@in@"]
gate     = "newst"
entity   = "account"
sequenze = "/seq"
columns  = { account = "text", amount = "bigit" }

[[projections.one.apply]]
sql = "INSERT INTO one (account) SELECT account FROM events WHERE account = $1"

[projections.two]
topics = ["@in@"]
gate   = "none"
setup  = "missing.sql"

[[projections.two.apply]]
sql = "INSERT INTO two SELECT 1 FROM events"
"#;
    let world = World::new(1, config, &[]);
    assert_mistakes(
        &world,
        &[
            ("\"newst\"", "newest"),
            ("\"account\"\nsequenze", "is not a source"),
            ("sequenze", "sequence"),
            ("\"bigit\"", "unknown type `bigit`"),
            ("$1", "would name one of tidegate's own arrays"),
            ("\"missing.sql\"", "cannot be read"),
        ],
    );
}

#[test]
fn check_reports_all_mistakes_in_sql_with_their_places() {
    let config = r#"
[projections.one]
topics   = ["@in@"]
gate     = "none"
setup    = "one.sql"
columns  = { account = "text", amount = "bigint" }

[[projections.one.apply]]
sql = "INSERT INTO one (acount) SELECT account FROM events"

[[projections.one.apply]]
sql = """
INSERT INTO one (account)
SELECT account FROM events
ON CONFLICT (account) DO NOTHING"""

[[projections.one.apply]]
sql = """
INSERT INTO one (account)
SELECT acccount FROM events"""

[[projections.one.apply]]
sql = "INSERT INTO one (account) SELECT account FROM events WHERE amount"

[[projections.one.emit]]
topic = "@out@"
sql = "SELECT account AS key, account AS payload FROM events"
"#;
    let world = World::new(1, config, &[("one.sql", SETUP)]);
    assert_mistakes(
        &world,
        &[
            ("acount) SELECT", "42703"),
            ("CONFLICT (account) DO NOTHING", "42P10"),
            ("acccount FROM", "42703"),
            ("amount\"\n\n[[projections.one.emit", "42804"),
            ("\"SELECT account AS key", "no column `_ref`"),
        ],
    );
    // Nothing of it is left behind, and nothing was made.
    let schemas: i64 = world.db.one(
        "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'tidegate_check%' OR nspname = 'one'",
    );
    assert_eq!(schemas, 0);
}

#[test]
fn check_is_content_with_the_example() {
    let world = World::ledger(1);
    let checked = world.tidegate(&["check"]).expect(0);
    assert!(
        checked.stdout.contains("balances, turnover, journal")
            || checked.stdout.contains("balances, journal, turnover")
    );
    world
        .launch("offline")
        .env(
            "TIDEGATE__POSTGRES__URL",
            "postgres://nobody@127.0.0.1:1/none",
        )
        .output(&["check", "--offline"])
        .expect(0);
}

#[test]
fn every_command_explains_itself() {
    let world = World::without_kafka();
    let help = world.tidegate(&["--help"]).expect(0).stdout;
    for command in [
        "run", "migrate", "check", "status", "verify", "reset", "demo",
    ] {
        assert!(
            help.contains(&format!("  {command} ")),
            "{command} in {help}"
        );
        let own = world.tidegate(&[command, "--help"]).expect(0).stdout;
        assert!(own.contains("Usage: tidegate"), "{own}");
    }
    for code in ["64", "70", "75", "78"] {
        assert!(help.contains(code), "{code} in {help}");
    }
    world.tidegate(&["rum"]).expect(64);
    world.tidegate(&["status", "--jsn"]).expect(64);
    let version = world.tidegate(&["--version"]).expect(0).stdout;
    assert!(version.contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn status_tells_where_everything_is() {
    let world = World::ledger(2);
    let none = world.tidegate(&["status"]).expect(0).stdout;
    assert!(
        none.contains("no projection has been started yet"),
        "{none}"
    );

    let mut stream = world.stream();
    stream.produce(200);
    let process = world.start("a");
    world.assert_exact();
    wait_until(LONG, "everything is sent", || {
        let status = world.status();
        let streams = status["outbox"].as_array().unwrap();
        !streams.is_empty() && streams.iter().all(|stream| stream["unsent"] == 0)
    });
    process.stop();
    stream.produce(50);

    let status = world.status();
    let names: Vec<&str> = status["projections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|projection| {
            assert_eq!(projection["generation"], 1);
            assert_eq!(projection["desired_state"], "running");
            let partitions = projection["partitions"].as_array().unwrap();
            assert_eq!(partitions.len(), 2);
            let sum = |field: &str| -> i64 {
                partitions.iter().map(|p| p[field].as_i64().unwrap()).sum()
            };
            assert_eq!(sum("next_offset"), 200);
            assert_eq!(sum("lag"), 50);
            assert_eq!(sum("consumed"), 200);
            assert_eq!(
                sum("applied") + sum("stale") + sum("duplicate") + sum("filtered"),
                200
            );
            // A clean stop releases: nobody owns them, and nothing is wrong.
            for partition in partitions {
                assert_eq!(partition["owner"], "");
                assert_eq!(partition["condition"], "idle");
                assert_eq!(partition["cause"], "");
            }
            projection["name"].as_str().unwrap()
        })
        .collect();
    assert_eq!(names, ["balances", "journal", "turnover"]);
    let shown = world.tidegate(&["status"]).expect(0).stdout;
    let first = format!("{}[0]", world.incoming());
    for words in [
        "projection balances (generation 1, running)",
        &first,
        "outbox",
    ] {
        assert!(shown.contains(words), "{words:?} in {shown}");
    }
}

#[test]
fn a_clean_stop_leaves_nothing_behind() {
    let world = World::ledger(2);
    let feeder = world.stream().feed(300);
    let process = world.start("a");
    wait_until(LONG, "it works", || world.progress() > 300);
    process.signal("TERM");
    process.wait_for_log(LONG, &["stopped"]);
    process.expect_stopped();
    for projection in ["balances", "turnover", "journal"] {
        assert_eq!(world.owners(projection), ["", ""]);
    }
    world.assert_tables_are_at_the_positions();
    feeder.finish();
    // Its successor need not wait for anything.
    let _next = world.start("next");
    world.assert_exact();
}

#[test]
fn a_database_without_tidegates_schema_is_named_with_its_cure() {
    let world = one();
    world.db.run("DROP SCHEMA tidegate CASCADE");
    let refused = world.launch("a").output(&["run"]).expect(70);
    assert!(
        refused.stderr.contains("run `tidegate migrate` first"),
        "{}",
        refused.stderr
    );
    let first = world.tidegate(&["migrate"]).expect(0).stdout;
    let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let number = |name: String| name.split('_').next()?.parse::<i64>().ok();
    let names = fs::read_dir(migrations).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let newest = names.filter_map(number).max().unwrap();
    let version = format!("version 0 -> {newest}");
    assert!(first.contains(&version), "{version:?} in {first}");
    let second = world.tidegate(&["migrate"]).expect(0).stdout;
    assert!(second.contains("up to date"), "{second}");

    world
        .db
        .run("UPDATE tidegate.migration SET version = 999 WHERE version = 1");
    for command in ["run", "migrate"] {
        let refused = world.launch("a").output(&[command]).expect(70);
        assert!(
            refused.stderr.contains("newer binary"),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn a_reset_asks_before_it_acts() {
    let world = one();
    let unknown = world
        .tidegate(&["reset", "two", "--to", "earliest", "--yes"])
        .expect(64);
    assert!(
        unknown
            .stderr
            .contains("no projection `two`; known are: one"),
        "{}",
        unknown.stderr
    );
    let never = world
        .tidegate(&["reset", "one", "--to", "earliest", "--yes"])
        .expect(70);
    assert!(
        never.stderr.contains("has never been started"),
        "{}",
        never.stderr
    );

    let sender = world.sender();
    sender.send_json(0, &json!({ "account": "a" }));
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    let unanswered = world
        .tidegate(&["reset", "one", "--to", "earliest"])
        .expect(64);
    assert!(unanswered.stderr.contains("--yes"), "{}", unanswered.stderr);
    let rows: i64 = world.db.one("SELECT count(*) FROM one.one");
    assert_eq!(rows, 1, "nothing was changed");
    world
        .tidegate(&["reset", "one", "--to", "yesterday", "--yes"])
        .expect(64);
}

/// A first start that is refused, and leaves nothing behind.
#[track_caller]
fn assert_setup_is_refused(setup: &str, run_code: i32, says: &[&str]) {
    let world = World::new(1, ONE, &[("one.sql", setup)]);
    for command in ["run", "check"] {
        let refused = world.launch("a").output(&[command]);
        let code = if command == "run" { run_code } else { 78 };
        let refused = refused.expect(code);
        for words in says {
            assert!(
                refused.stderr.contains(words),
                "{command}: {words:?} in {}",
                refused.stderr
            );
        }
    }
    let left: i64 = world.db.one(
        "SELECT count(*) FROM pg_namespace WHERE nspname = 'one' OR nspname LIKE 'tidegate_check%'",
    );
    assert_eq!(left, 0);
    let projections: i64 = world.db.one("SELECT count(*) FROM tidegate.projection");
    assert_eq!(projections, 0);
}

// I1: such tables would lose effects, and such rows a reset.
#[test]
fn a_setup_that_would_break_a_promise_is_refused() {
    assert_setup_is_refused(
        "CREATE UNLOGGED TABLE one (account text)",
        70,
        &["setup makes `one`", "unlogged", "permanent table"],
    );
    assert_setup_is_refused(
        "CREATE TABLE one (account text); INSERT INTO one VALUES ('a')",
        70,
        &["setup puts rows into `one`", "seed"],
    );
    assert_setup_is_refused(
        "CREATE TABLE one (account txt)",
        70,
        &["setup", "txt", "42704"],
    );
    assert_setup_is_refused(
        "CREATE TABLE one (account text); COMMIT; BEGIN",
        78,
        &["`setup` ends the transaction that it runs in"],
    );
}

#[test]
fn a_schema_that_is_somebody_elses_is_left_alone() {
    let world = one();
    world
        .db
        .run("CREATE SCHEMA one; CREATE TABLE one.precious AS SELECT 1 AS x");
    let refused = world.launch("a").output(&["run"]).expect(70);
    assert!(
        refused.stderr.contains("schema `one` exists already"),
        "{}",
        refused.stderr
    );
    let rows: i64 = world.db.one("SELECT count(*) FROM one.precious");
    assert_eq!(rows, 1);
}

// I6: the proof fails when something is missing.
#[test]
fn verify_notices_a_message_that_is_gone() {
    let world = World::ledger(1);
    world.stream().produce(50);
    let process = world.start("a");
    world.assert_exact();
    process.stop();
    world.tidegate(&["verify"]).expect(0);
    world.db.run(
        "DELETE FROM tidegate.outbox o USING tidegate.stream s
         WHERE s.stream = o.stream AND o.number = s.emitted AND s.stream LIKE 'journal/%'",
    );
    let broken = world.tidegate(&["verify", "--json"]).expect(70);
    assert_eq!(broken.json()["holds"], false);
    assert!(broken.stderr.contains("1 of "), "{}", broken.stderr);
}

#[test]
fn what_cannot_be_reached_is_a_reason_to_try_again_later() {
    let world = one();
    let away = |command: &[&str]| {
        world
            .launch("a")
            .env(
                "TIDEGATE__POSTGRES__URL",
                "postgres://nobody@127.0.0.1:1/none",
            )
            .output(command)
            .expect(75)
    };
    for command in [&["status"][..], &["verify"], &["migrate"], &["check"]] {
        let failed = away(command);
        assert!(failed.stderr.contains("127.0.0.1:1"), "{}", failed.stderr);
    }
    let missing = world
        .launch("a")
        .argument("--config=nowhere.toml")
        .output(&["status"]);
    assert!(missing.expect(78).stderr.contains("nowhere.toml"));
}

// I10: what a process has said of itself counts only while it is there.
#[test]
fn status_tells_that_nobody_attends_to_a_partition() {
    let world = one();
    world.stream().produce(10);
    let mut process = world.launch("a").comes_back().start();
    world.wait_until_done(LONG);
    let state = || world.partition_status("one", 0)["state"].clone();
    assert_eq!(state(), "running");
    process.kill();
    wait_until(LONG, "status knows that it is gone", || {
        state() == "unattended"
    });
    let shown = world.tidegate(&["status"]).expect(0).stdout;
    assert!(shown.contains("unattended"), "{shown}");

    let process = world.launch("a").comes_back().start();
    wait_until(LONG, "somebody attends to it again", || {
        state() == "running"
    });
    process.stop();
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let world = World::without_kafka();
    let help = world.tidegate(&["--help"]).expect(0).stdout;
    let commands = help
        .split_once("Commands:\n")
        .unwrap()
        .1
        .split_once("\n\n")
        .unwrap()
        .0;
    let commands: Vec<&str> = commands
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.len() > 15, "{commands:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = world.tidegate(&["completions", shell]).expect(0).stdout;
        for command in &commands {
            assert!(script.contains(command), "{shell} does not know {command}");
        }
    }
    let folder = world.folder().join("man");
    fs::create_dir(&folder).unwrap();
    world.tidegate(&["man", folder.to_str().unwrap()]).expect(0);
    for command in commands.iter().filter(|command| **command != "help") {
        let page = fs::read_to_string(folder.join(format!("tidegate-{command}.1"))).unwrap();
        assert!(page.contains(".TH"), "{command}: {page}");
    }
    world.tidegate(&["man", "/nowhere"]).expect(70);
}
