//! What an operator does: looks whether everything outside is as it should be, makes roles, watches, and never finds a
//! secret in what he reads.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::harness::{LONG, Process, Session, World, delete_records_before, unique, wait_until};

/// What `doctor` has found: level and text.
fn findings(found: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = found["findings"].as_array().unwrap().iter();
    findings
        .map(|finding| (text(&finding["level"]), text(&finding["text"])))
        .collect()
}

#[test]
fn doctor_says_what_weakens_the_guarantee() {
    let world = World::ledger(2);
    let found = world.tidegate(&["doctor", "--json"]).expect(0).json();
    assert_eq!(
        found["weakened"], true,
        "one copy, and no standby: {found:#}"
    );
    let has = |found: &Value, level: &str, words: &str| {
        findings(found)
            .iter()
            .any(|(l, text)| l == level && text.contains(words))
    };
    assert!(
        has(&found, "ok", "the tidegate schema is up to date"),
        "{found:#}"
    );
    assert!(
        has(&found, "weak", "there is no synchronous standby"),
        "{found:#}"
    );
    let one_copy = format!("{} has one copy", world.incoming());
    assert!(has(&found, "weak", &one_copy), "{found:#}");
    assert!(has(&found, "ok", "2 partitions, 1 copy"), "{found:#}");

    // A log that was cut matters to a gate that needs every event.
    let sender = world.sender();
    sender.send_json(0, &serde_json::json!({ "account": "a" }));
    sender.flush();
    wait_until(LONG, "there is a record", || {
        world.kafka.end_offsets(world.incoming(), 2)[&0] == 1
    });
    delete_records_before(world.incoming(), 0, 1);
    let found = world.tidegate(&["doctor", "--json"]).expect(0).json();
    assert!(
        has(
            &found,
            "weak",
            "a reset or a rebuild of balances cannot see"
        ),
        "{found:#}"
    );
}

/// Compares with a file of `tests/fixtures/golden`, which `TIDEGATE_WRITE_GOLDEN=1` writes anew.
#[track_caller]
fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/golden")
        .join(name);
    if std::env::var_os("TIDEGATE_WRITE_GOLDEN").is_some() {
        fs::write(&path, text).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, golden, "TIDEGATE_WRITE_GOLDEN=1 writes {name} anew");
}

// As a person sees it; what differs from machine to machine is replaced.
#[test]
fn doctor_reads_well() {
    let world = World::ledger(2);
    let text = world.tidegate(&["doctor"]).expect(0).stdout;
    let (config, address) = (world.folder().join("command.toml"), world.db.address());
    let text = text
        .replace(&config.display().to_string(), "tidegate.toml")
        .replace(world.incoming(), "ledger.entries")
        .replace(world.outgoing(), "ledger.overdrafts")
        .replace(world.kafka.bootstrap_servers(), "kafka:9092")
        .replace(&address, "postgres:5432");
    let lines = text.lines().map(|line| match line {
        line if line.contains(": version ") => {
            "  ok    postgres:5432/shop: version .., as ..".to_owned()
        }
        line if line.contains("the database has ") => {
            let (_, rest) = line.split_once(';').unwrap();
            format!("  note  the database has ..;{rest}")
        }
        line => line.to_owned(),
    });
    // A superuser or not, encrypted or not: that is the machine's.
    let lines: Vec<String> = lines
        .filter(|line| !line.contains("superuser") && !line.contains("roles.sql"))
        .collect();
    assert_golden("doctor.txt", &format!("{}\n", lines.join("\n")));
}

#[test]
fn doctor_names_what_must_be_changed() {
    let mut world = World::journal(1);
    world.change_projections("@in@", "no-such-topic");
    let found = world.tidegate(&["doctor", "--json"]).expect(70).json();
    assert!(
        findings(&found)
            .iter()
            .any(|(level, text)| level == "bad" && text.contains("no-such-topic")),
        "{found:#}"
    );

    world.db.run("DROP SCHEMA tidegate CASCADE");
    let found = world.tidegate(&["doctor"]).expect(70);
    assert!(
        found.stdout.contains("run `tidegate migrate`"),
        "{}",
        found.stdout
    );

    let nowhere = "postgres://127.0.0.1:1/none";
    let found = world
        .launch("doctor")
        .env("TIDEGATE__POSTGRES__URL", nowhere)
        .output(&["doctor"])
        .expect(75);
    assert!(
        found.stdout.contains("see that it runs"),
        "{}",
        found.stdout
    );
}

/// The script with names of this test's own: roles belong to the whole server.
fn roles(id: &str) -> String {
    let script = include_str!("../../deploy/sql/roles.sql");
    let mut script = script.to_owned();
    for role in ["owner", "runtime", "handler", "reader"] {
        script = script.replace(&format!("tidegate_{role}"), &format!("t{id}_{role}"));
    }
    script
}

/// The roles go with the test.
struct Roles<'w>(&'w World, String);

impl Drop for Roles<'_> {
    fn drop(&mut self) {
        for role in ["owner", "runtime", "handler", "reader"] {
            let role = format!("t{}_{role}", self.1);
            let _ = self
                .0
                .db
                .session()
                .try_run(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}"));
        }
    }
}

/// The database, as one of the roles.
fn by(world: &World, id: &str, role: &str) -> String {
    let url = world.db.url();
    let (scheme, rest) = url.split_once("://").unwrap();
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    let (address, options) = place.split_once('?').unwrap_or((place, ""));
    let options: Vec<&str> = options
        .split('&')
        .filter(|o| !o.starts_with("user=") && !o.is_empty())
        .collect();
    format!("{scheme}://t{id}_{role}@{address}?{}", options.join("&"))
}

// Not by a statement, nor by a trigger, nor by a name with a schema: whatever it tries, its partition halts.
#[test]
fn a_handler_with_a_role_cannot_reach_the_bookkeeping() {
    let mut world = World::ledger(1);
    let id = unique();
    let role = format!("[projections.journal]\nrole = \"t{id}_handler\"");
    world.change_projections("[projections.journal]", &role);
    let roles_of = Roles(&world, id);
    let id = &roles_of.1;
    world.db.run("DROP SCHEMA tidegate CASCADE");
    world.db.run(&roles(id));
    let migrate = world
        .launch("migrate")
        .env("TIDEGATE__POSTGRES__URL", by(&world, id, "owner"));
    migrate.output(&["migrate"]).expect(0);
    let mut stream = world.stream();
    let process = world
        .launch("a")
        .env("TIDEGATE__POSTGRES__URL", by(&world, id, "runtime"))
        .start();
    stream.produce(100);
    world.assert_exact();
    for forbidden in [
        "DELETE FROM tidegate.outbox",
        "UPDATE tidegate.position SET next_offset = 0",
        "DELETE FROM journal._gate",
        "CREATE TABLE journal.mine (x int)",
    ] {
        world.db.run(&format!(
            "CREATE OR REPLACE FUNCTION journal.reach() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {forbidden}; RETURN NEW; END $$;
             CREATE OR REPLACE TRIGGER reach BEFORE INSERT ON journal.journal FOR EACH ROW EXECUTE FUNCTION journal.reach()"
        ));
        stream.produce(10);
        let why = world.wait_until_halted("journal", 0);
        assert!(why.contains("permission denied"), "{forbidden}: {why}");
        world.db.run("DROP TRIGGER reach ON journal.journal");
        let resume = world
            .launch("resume")
            .env("TIDEGATE__POSTGRES__URL", by(&world, id, "runtime"));
        resume.output(&["resume", "journal"]).expect(0);
        world.assert_exact();
    }
    process.stop();
}

// The script is run as it is, and each role does its work and no more.
#[test]
fn each_role_has_what_it_needs_and_no_more() {
    let world = World::ledger(2);
    let roles_of = Roles(&world, unique());
    let id = &roles_of.1;
    let script = roles(id);
    let by = |role: &str| by(&world, id, role);
    let run = |role: &str, command: &[&str]| {
        world
            .launch(&format!("{role}-command"))
            .env("TIDEGATE__POSTGRES__URL", by(role))
            .output(command)
    };
    world.db.run("DROP SCHEMA tidegate CASCADE");
    world.db.run(&script);
    run("owner", &["migrate"]).expect(0);
    world.db.run(&script); // again, with tables to be found

    let mut stream = world.stream();
    stream.produce(300);
    let process = world
        .launch("a")
        .env("TIDEGATE__POSTGRES__URL", by("runtime"))
        .start();
    world.assert_exact();
    let found = run("runtime", &["doctor", "--json"]).expect(0).json();
    assert!(
        findings(&found).iter().all(|(level, _)| level != "bad"),
        "{found:#}"
    );
    run("runtime", &["pause", "journal"]).expect(0);
    run("runtime", &["resume", "journal"]).expect(0);
    run(
        "runtime",
        &["reset", "balances", "--to", "earliest", "--yes"],
    )
    .expect(0);
    world.assert_exact();
    run("reader", &["status"]).expect(0);
    run("reader", &["verify"]).expect(0);
    run("reader", &["pause", "journal"]).expect(70);
    process.stop();

    let mut runtime = Session::open(&by("runtime"));
    for forbidden in [
        "ALTER TABLE tidegate.position ADD COLUMN x int",
        "DROP TABLE tidegate.position",
        "TRUNCATE tidegate.outbox",
        "UPDATE tidegate.migration SET description = ''",
        "CREATE TABLE tidegate.own (x int)",
    ] {
        let refused = runtime.try_run(forbidden).unwrap_err();
        assert!(
            refused.contains("permission denied") || refused.contains("must be owner"),
            "{forbidden}: {refused}"
        );
    }
    let mut reader = Session::open(&by("reader"));
    reader.run("SELECT FROM tidegate.position; SELECT FROM balances.balance");
    for forbidden in [
        "DELETE FROM tidegate.outbox",
        "UPDATE balances.balance SET amount = 0",
        "CREATE SCHEMA s",
    ] {
        let refused = reader.try_run(forbidden).unwrap_err();
        assert!(
            refused.contains("permission denied"),
            "{forbidden}: {refused}"
        );
    }
    // Whoever lacks a privilege learns which.
    world.db.run(&format!(
        "REVOKE DELETE ON tidegate.outbox FROM t{id}_runtime"
    ));
    let found = run("runtime", &["doctor"]).expect(70);
    assert!(
        found.stdout.contains("lacks DELETE on tidegate.outbox"),
        "{}",
        found.stdout
    );
}

#[test]
fn config_show_says_where_each_setting_comes_from() {
    let world = World::journal(1);
    let show = |arguments: &[&str]| {
        let launch = world.launch("show").env("TIDEGATE__APPLY__WRITERS", 3);
        launch
            .env("TIDEGATE__POSTGRES__URL", "postgres://u:hunter%402@h/d")
            .output(arguments)
            .expect(0)
    };
    let shown = show(&["config", "show", "--json"]).json();
    let setting = |name: &str| {
        let settings = shown["settings"].as_array().unwrap().iter();
        let found = settings.filter(|s| s["setting"] == name).map(|s| {
            (
                s["value"].as_str().unwrap().to_owned(),
                s["from"].as_str().unwrap().to_owned(),
            )
        });
        found.collect::<Vec<_>>()
    };
    let text = |value: &str, from: &str| vec![(value.to_owned(), from.to_owned())];
    assert_eq!(
        setting("apply.writers"),
        text("3", "environment variable TIDEGATE__APPLY__WRITERS")
    );
    assert_eq!(setting("apply.drain_max"), text("10s", "default"));
    assert_eq!(setting("kafka.group_protocol"), text("classic", "default"));
    assert_eq!(setting("relay.headers.id"), text("ce_id", "default"));
    let url = setting("postgres.url");
    assert_eq!(url[0].0, "postgres://u:***@h/d");
    let gate = setting("projections.journal.gate");
    assert!(
        gate[0].0 == "none" && gate[0].1.contains("show.toml:"),
        "{gate:?}"
    );
    let account = setting("projections.journal.columns.account");
    assert_eq!(account[0].0, "text", "a column is its projection's");
    // What the budget is shared out to.
    assert_eq!(setting("memory.budget"), text("512MB", "default"));
    assert_eq!(shown["memory"]["prefetch"], 256 << 20);
    let table = show(&["config", "show"]).stdout;
    assert!(
        table.contains("256MB  fetched ahead by each projection"),
        "{table}"
    );
    assert!(
        table.contains("projections.journal.topics") && !table.contains("hunter"),
        "{table}"
    );
}

// As a person sees it: each setting of a projection with the projection's name, its columns too.
#[test]
fn config_show_reads_well() {
    let world = World::ledger(2);
    let shown = world.launch("show").env("TIDEGATE__APPLY__WRITERS", 3);
    let text = shown
        .env("TIDEGATE__POSTGRES__URL", "postgres://u:hunter%402@h/d")
        .output(&["config", "show"])
        .expect(0)
        .stdout
        .replace(
            &world.folder().join("show.toml").display().to_string(),
            "tidegate.toml",
        )
        .replace(world.incoming(), "ledger.entries")
        .replace(world.outgoing(), "ledger.overdrafts")
        .replace(world.kafka.bootstrap_servers(), "kafka:9092");
    // How wide a column is depends on the longest name of a file.
    let lines = text.lines().map(|line| {
        let columns = line.split("  ").map(str::trim);
        let columns: Vec<&str> = columns.filter(|column| !column.is_empty()).collect();
        match &columns[..] {
            [rule, ..] if rule.starts_with('─') => "──".to_owned(),
            // The test's own, and as many as there are cores.
            [name @ ("kafka.group_prefix" | "rebuild.writers"), _, from] => {
                format!("{name}  ..  {from}")
            }
            columns => columns.join("  "),
        }
    });
    assert_golden(
        "config_show.txt",
        &format!("{}\n", lines.collect::<Vec<_>>().join("\n")),
    );
}

#[test]
fn status_can_be_watched() {
    let world = World::journal(1);
    let running = world.start("a");
    wait_until(LONG, "it runs", || world.is_owned_by("journal", &running));
    let watching = world
        .launch("watch")
        .instead("status")
        .argument("--watch")
        .argument("1")
        .start();
    let shown = |process: &Process| process.log().matches("every 1 s").count();
    wait_until(LONG, "it is shown again", || shown(&watching) >= 3);
    assert!(
        watching.log().contains("projection journal"),
        "{}",
        watching.log()
    );
    // What it asks is there in some other way the next time.
    world.tidegate(&["pause", "journal"]).expect(0);
    wait_until(LONG, "it shows what has changed", || {
        watching.log().contains("paused")
    });
    running.stop();
}

/// The commands that a text tells to run: in lines of code, and between backticks.
fn commands(text: &str) -> Vec<&str> {
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("tidegate "));
    let spans = text
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    let spans = spans.filter(|span| span.starts_with("tidegate ") && !span.contains('|'));
    lines.chain(spans).collect()
}

#[test]
fn every_command_that_the_documentation_tells_to_run_exists() {
    let world = World::without_kafka();
    let mut run = 0;
    for file in [
        "docs/runbook.md",
        "docs/operations.md",
        "docs/outbox.md",
        "deploy/README.md",
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = fs::read_to_string(path).unwrap();
        for command in commands(&text) {
            let said = command.split(" #").next().unwrap();
            let words = said.split_whitespace().skip(1);
            let words: Vec<&str> = words
                .take_while(|word| !word.starts_with(['-', '"', '.']))
                .collect();
            let help = world.tidegate(&[&words[..], &["--help"]].concat());
            assert_eq!(help.code, 0, "{file}: {command}: {}", help.stderr);
            let options = said
                .split_whitespace()
                .filter(|word| word.starts_with("--"));
            for option in options.map(|option| option.trim_end_matches([',', ':'])) {
                assert!(help.stdout.contains(option), "{file}: {command}: {option}");
            }
            run += 1;
        }
    }
    assert!(run > 30, "{run} commands");
}
