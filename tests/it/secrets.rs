//! Every secret is a word of its own, and nothing says it, however much is logged.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::harness::{LONG, Launch, Route, World, wait_until};
use crate::http::Asked;
use crate::kafka_security::{Guarded, PLAIN_PASSWORD};

const POSTGRES: &str = "canary-pg@word";
const KEY: &str = "canary-key-word";
const OAUTH: &str = "canary-oauth-word";
const REGISTRY: &str = "canary-registry-word";

/// All secrets, as they are and as they may be written.
fn secrets() -> Vec<String> {
    let words = [POSTGRES, PLAIN_PASSWORD, KEY, OAUTH, REGISTRY];
    let mut all: Vec<String> = words.map(str::to_owned).to_vec();
    all.push(POSTGRES.replace('@', "%40"));
    for (user, word) in [
        ("tidegate", PLAIN_PASSWORD),
        ("tidegate", OAUTH),
        ("reader", REGISTRY),
    ] {
        all.push(STANDARD.encode(format!("{user}:{word}")));
        all.push(STANDARD.encode(format!("\0{user}\0{word}")));
    }
    all.extend(words.map(|word| STANDARD.encode(word)));
    all
}

#[track_caller]
fn assert_silent(what: &str, text: &str) {
    for secret in secrets() {
        if let Some(at) = text.find(&secret) {
            let around: String = text[..at].chars().rev().take(300).collect();
            let around: String = around.chars().rev().collect();
            panic!("{what} shows {secret}, behind: {around}");
        }
    }
}

/// Every command, with arguments that let it get somewhere. A projection that is being built is needed by some.
const COMMANDS: [&[&str]; 31] = [
    &["check"],
    &["config", "show"],
    &["config", "show", "--json"],
    &["doctor"],
    &["doctor", "--json"],
    &["migrate"],
    &["test"],
    &["status"],
    &["status", "--json"],
    &["explain", "balances", "--entity", "a-1"],
    &["explain", "balances", "@in@/0@1"],
    &["verify"],
    &["skip", "journal", "@in@/0", "--to", "1", "--yes"],
    &["accept-topic", "journal", "@in@", "--yes"],
    &["dead-letters", "list"],
    &["dead-letters", "redrive", "journal"],
    &[
        "dead-letters",
        "discard",
        "journal",
        "--why",
        "a test",
        "--yes",
    ],
    &["outbox", "status"],
    &["outbox", "quarantine", "list"],
    &["outbox", "release", "--all"],
    &["gate", "accept-gap", "balances", "a-1", "--yes"],
    &["pause", "journal"],
    &["resume", "journal"],
    &["rebuild", "plan", "balances"],
    &[
        "rebuild",
        "start",
        "balances",
        "--cut-over",
        "--accept-differences",
        "--yes",
    ],
    &["rebuild", "status", "balances"],
    &["rebuild", "abandon", "balances", "--yes"],
    &["reset", "turnover", "--to", "earliest", "--yes"],
    &["demo", "--help"],
    &["completions", "bash"],
    &["man", "@folder@"],
];

/// Those that do not end by themselves are started below.
const STARTED: [&str; 3] = ["run", "relay", "help"];

fn with_secrets<'w>(guarded: &Guarded, world: &'w World, name: &str, url: &str) -> Launch<'w> {
    let certificate = guarded.authority.file("client.pem");
    let key = guarded.authority.file("client.key");
    let options = [
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", "tidegate"),
        ("sasl.password", PLAIN_PASSWORD),
        ("sasl.oauthbearer.client.id", "tidegate"),
        ("sasl.oauthbearer.client.secret", OAUTH),
        ("ssl.certificate.location", &*certificate),
        ("ssl.key.location", &*key),
        ("ssl.key.password", KEY),
    ];
    guarded
        .launch(world, name, "SASL", &options)
        .env("TIDEGATE__POSTGRES__URL", url)
        .env("TIDEGATE__SCHEMA_REGISTRY__URL", "http://127.0.0.1:1")
        .env("TIDEGATE__SCHEMA_REGISTRY__USER", "reader")
        .env("TIDEGATE__SCHEMA_REGISTRY__PASSWORD", REGISTRY)
        .env("TIDEGATE_LOG", "trace")
}

fn with_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    format!(
        "{scheme}://postgres:{}@{place}",
        POSTGRES.replace('@', "%40")
    )
}

#[test]
fn no_command_shows_a_secret() {
    let guarded = Guarded::start();
    let world = World::ledger_at(&guarded.servers(), 1);
    world.stream().produce(20);
    let good = with_password(&world.db.url());
    let process = with_secrets(&guarded, &world, "canary-first", &good).start();
    world.assert_exact();
    process.stop();

    let help = world.tidegate(&["--help"]).expect(0).stdout;
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let known: BTreeSet<&str> = commands
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let tried: BTreeSet<&str> = COMMANDS
        .iter()
        .map(|command| command[0])
        .chain(STARTED)
        .collect();
    assert_eq!(known, tried, "each command is tried");

    let bad = format!(
        "postgres://nobody:{}@127.0.0.1:1/none",
        POSTGRES.replace('@', "%40")
    );
    let runs: Vec<(&str, &[&str])> = ["here", "nowhere"]
        .into_iter()
        .flat_map(|place| COMMANDS.iter().map(move |command| (place, *command)))
        // It would wait for its database.
        .filter(|(place, command)| *place == "here" || command[..] != COMMANDS[24][..])
        .collect();
    let waiting = Mutex::new(runs.into_iter().enumerate());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some((number, (place, command))) = waiting.lock().unwrap().next() else {
                        return;
                    };
                    let name = format!("canary-{number}");
                    let launch = match place {
                        "here" => with_secrets(&guarded, &world, &name, &good),
                        _ => with_secrets(&guarded, &world, &name, &bad)
                            .env("TIDEGATE__KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1"),
                    };
                    let own: Vec<String> = command
                        .iter()
                        .map(|word| {
                            let folder = world.folder().display().to_string();
                            word.replace("@in@", world.incoming())
                                .replace("@folder@", &folder)
                        })
                        .collect();
                    let own: Vec<&str> = own.iter().map(String::as_str).collect();
                    let output = launch.output(&own);
                    let what = format!("{} {place}", command.join(" "));
                    let usage = output.code == 64 && command[0] != "test";
                    assert!(!usage, "{what}: {}", output.stderr);
                    assert_silent(&what, &output.stdout);
                    assert_silent(&what, &output.stderr);
                }
            });
        }
    });
    // A mistake in the very line of a secret.
    let launch = with_secrets(&guarded, &world, "canary-mistake", &good).option("no.such.key", "1");
    let output = launch.output(&["check", "--offline"]).expect(78);
    assert!(output.stderr.contains("no.such.key"), "{}", output.stderr);
    assert_silent("check", &output.stderr);
}

/// Every row that is stored.
fn stored(world: &World) -> String {
    let tables: Vec<(String,)> = world.db.rows(
        "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^(pg_|information_schema)'",
    );
    assert!(tables.len() > 10, "{tables:?}");
    let rows = tables.iter().flat_map(|(table,)| {
        let sql = format!("SELECT row_to_json(t)::text FROM {table} t");
        world.db.rows::<(String,)>(&sql)
    });
    rows.map(|(row,)| row + "\n").collect()
}

#[test]
fn no_process_and_no_table_shows_a_secret() {
    let guarded = Guarded::start();
    let world = World::ledger_at(&guarded.servers(), 1);
    world.stream().produce(20);
    let good = with_password(&world.db.url());
    let process = with_secrets(&guarded, &world, "canary-run", &good).start();
    world.assert_exact();
    // A handler that says one, as a function of somebody's may.
    world.db.run(&format!(
        "CREATE FUNCTION journal.tell() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE EXCEPTION 'cannot reach postgres://u:{POSTGRES}@h with {PLAIN_PASSWORD} and {REGISTRY} and {OAUTH}' USING ERRCODE = '22000'; END $$;
         CREATE TRIGGER tell BEFORE INSERT ON journal.journal FOR EACH ROW EXECUTE FUNCTION journal.tell()"
    ));
    world.stream().produce(1);
    wait_until(LONG, "a record is parked", || world.parked() > 0);
    world
        .db
        .run("DROP FUNCTION journal.tell() CASCADE; ALTER TABLE journal.journal RENAME TO away");
    world.stream().produce(20);
    wait_until(LONG, "it halts", || {
        world.condition("journal", 0).0 == "halted"
    });
    assert_silent("run", &process.log());
    let shown = with_secrets(&guarded, &world, "canary-letters", &good)
        .output(&["dead-letters", "list", "journal", "--json"])
        .expect(0);
    assert!(shown.stdout.contains("cannot reach"), "{}", shown.stdout);
    assert_silent("dead letters", &shown.stdout);
    assert_silent("a table", &stored(&world));
    process.stop();

    let relay = with_secrets(&guarded, &world, "canary-relay", &good)
        .relay()
        .start();
    relay.wait_for_log(LONG, &["running the relay"]);
    relay.wait_for_log(LONG, &["stream taken"]);
    assert_silent("relay", &relay.log());
    relay.stop();

    // What it answers, when it is well and when its database is away.
    let route = Route::to(&world.db.address());
    let asked = Asked::start(with_secrets(
        &guarded,
        &world,
        "canary-asked",
        &good.replace(&world.db.address(), route.address()),
    ));
    let answers = || {
        ["/metrics", "/livez", "/readyz", "/progress"]
            .map(|path| asked.ask(&format!("GET {path}")).1)
    };
    asked.wait_for("/readyz", None);
    assert_silent("an answer", &answers().join("\n"));
    route.lead_to("127.0.0.1:1");
    asked.wait_for("/readyz", Some("database_unreachable"));
    assert_silent("an answer", &answers().join("\n"));
}
