//! What can be changed over HTTP, by whom, and how often.

use std::thread;

use serde_json::{Value, json};

use crate::harness::{LONG, Launch, World, wait_until};
use crate::http::Asked;
use crate::rebuild::NEXT_VERSION;

const TOKEN: &str = "an-admin-token-of-this-test";

/// A process that can be told what to do by who has the token.
fn start(launch: Launch<'_>) -> Asked {
    Asked::start(
        launch
            .env("TIDEGATE__HTTP__ADMIN", "true")
            .env("TIDEGATE__HTTP__ADMIN_TOKEN", TOKEN),
    )
}

/// Status and answer to a POST with this key.
fn post(asked: &Asked, path: &str, key: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let headers = format!(
        "Authorization: Bearer {TOKEN}\r\nIdempotency-Key: {key}\r\nContent-Length: {}",
        body.len()
    );
    let (status, answer) = asked.ask_with(&format!("POST /admin/{path}"), &headers, &body);
    let answer = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
    (status, answer)
}

fn operations(world: &World) -> Vec<(String, String)> {
    world
        .db
        .rows("SELECT kind, who FROM tidegate.operation ORDER BY at")
}

// I2: the operation's id decides in the database, whichever process is asked.
#[test]
fn a_request_that_is_repeated_acts_once() {
    let world = World::journal(2);
    let first = start(world.launch("a"));
    wait_until(LONG, "it works", || {
        world.is_owned_by("journal", first.process())
    });
    let second = start(world.launch("b"));
    let pause =
        |asked: &Asked, key: &str| post(asked, "projections/journal/pause", key, &json!({}));

    let (status, answer) = pause(&first, "k-1");
    assert_eq!(
        (status, &answer["repeated"]),
        (200, &json!(false)),
        "{answer:#}"
    );
    assert_eq!(answer["after"]["desired_state"], "paused");
    let repeated = pause(&second, "k-1").1;
    assert_eq!(repeated["repeated"], true, "{repeated:#}");
    assert_eq!(repeated["operation"], answer["operation"]);
    assert_eq!(repeated["at"], answer["at"]);

    // Many at once, to both: one does it.
    let resume = "projections/journal/resume";
    let answers: Vec<(u16, Value)> = thread::scope(|scope| {
        let ask = |asked| scope.spawn(move || post(asked, resume, "k-2", &json!({})));
        let asking: Vec<_> = (0..8)
            .map(|n| ask(if n % 2 == 0 { &first } else { &second }))
            .collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(
        answers.iter().all(|(status, _)| *status == 200),
        "{answers:#?}"
    );
    let did = answers
        .iter()
        .filter(|(_, answer)| answer["repeated"] == false);
    assert_eq!(did.count(), 1, "{answers:#?}");
    let kinds: Vec<String> = operations(&world)
        .into_iter()
        .map(|(kind, who)| {
            assert_eq!(who, "HTTP API from 127.0.0.1");
            kind
        })
        .collect();
    assert_eq!(kinds, ["pause", "resume"]);

    // A key is one request's.
    let (status, answer) = post(&first, "projections/journal/pause", "k-2", &json!({}));
    assert_eq!(status, 409, "{answer:#}");
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .contains("used for another request"),
        "{answer:#}"
    );
    // What was paused once with this key is not paused again.
    pause(&second, "k-1");
    assert_eq!(world.status()["projections"][0]["desired_state"], "running");
}

#[test]
fn dead_letters_are_decided_over_http() {
    let world = World::ledger(1);
    let sender = world.sender();
    for seq in [1, 4] {
        crate::dead_letters::entry(&sender, 0, "a", seq);
    }
    sender.send(0, Some(b"b"), Some(b"no json"));
    sender.flush();
    let asked = start(world.launch("a"));
    world.wait_until_done(LONG);
    let letters =
        |projection: &str, what: &str| format!("projections/{projection}/dead-letters/{what}");

    let (status, answer) = post(
        &asked,
        "projections/balances/gate/accept-gap",
        "gap",
        &json!({ "entity": "a" }),
    );
    assert_eq!(
        (status, &answer["result"]["comes"]),
        (200, &json!(4)),
        "{answer:#}"
    );
    wait_until(LONG, "what waited is applied", || {
        world.db.one::<i64>("SELECT count(*) FROM tidegate.dead_letter WHERE projection = 'balances' AND state = 'waiting' AND entity = 'a'") == 0
    });

    let which = json!({ "reason": "undecodable" });
    let (status, answer) = post(&asked, &letters("balances", "redrive"), "again", &which);
    assert_eq!(status, 200, "{answer:#}");
    assert_eq!(
        answer["result"]["failed_again"].as_array().unwrap().len(),
        1,
        "{answer:#}"
    );
    let (_, repeated) = post(&asked, &letters("balances", "redrive"), "again", &which);
    assert_eq!(repeated["repeated"], true, "{repeated:#}");
    assert_eq!(repeated["after"], answer["result"], "{repeated:#}");
    let attempts: i32 = world.db.one("SELECT max(attempts) FROM tidegate.dead_letter WHERE projection = 'balances' AND reason = 'undecodable'");

    let discard = json!({ "reason": "undecodable", "why": "a test" });
    let (status, answer) = post(&asked, &letters("balances", "discard"), "gone", &discard);
    assert_eq!(
        (status, &answer["result"]["discarded"]),
        (200, &json!(1)),
        "{answer:#}"
    );
    // There is nothing any more, and yet the answer is the first one.
    let (status, repeated) = post(&asked, &letters("balances", "discard"), "gone", &discard);
    assert_eq!(
        (status, &repeated["repeated"]),
        (200, &json!(true)),
        "{repeated:#}"
    );
    assert_eq!(
        attempts, 2,
        "the redrive has tried it once more, and only once"
    );
    let kinds: Vec<String> = operations(&world)
        .into_iter()
        .map(|(kind, _)| kind)
        .collect();
    assert_eq!(kinds, ["accept-gap", "redrive", "discard"]);
    world.tidegate(&["verify"]).expect(0);
}

// I2: its row is written before it begins, and is no proof that it has ended.
#[test]
fn a_redrive_that_has_failed_can_be_repeated_and_one_that_still_runs_is_not_said_to_be_done() {
    let world = World::ledger(1);
    let sender = world.sender();
    sender.send(0, Some(b"b"), Some(b"no json"));
    sender.flush();
    let asked = start(world.launch("a"));
    world.wait_until_done(LONG);
    let redrive = |key: &str| {
        post(
            &asked,
            "projections/balances/dead-letters/redrive",
            key,
            &json!({}),
        )
    };
    let refused = |(status, answer): (u16, Value), expected: u16, words: &str| {
        let why = answer["error"].as_str().unwrap_or_default();
        assert!(
            status == expected && why.contains(words),
            "{status} {answer:#}"
        );
    };
    let tell = |what: &str, key: &str| {
        let path = format!("projections/balances/{what}");
        assert_eq!(post(&asked, &path, key, &json!({})).0, 200);
    };

    tell("pause", "stop");
    let failed = redrive("k-1");
    let id: String = world
        .db
        .one("SELECT id::text FROM tidegate.operation WHERE kind = 'redrive'");
    refused(failed, 409, &id);
    refused(redrive("k-1"), 409, "has failed");
    tell("resume", "go");
    // It goes on under the same key, once.
    let (status, answer) = redrive("k-1");
    assert_eq!(
        (status, &answer["repeated"], &answer["operation"]),
        (200, &json!(false), &json!(id)),
        "{answer:#}"
    );
    assert_eq!(redrive("k-1").1["repeated"], true);

    let mut holder = world.db.session();
    holder
        .run("BEGIN; SELECT 1 FROM tidegate.dead_letter WHERE projection = 'balances' FOR UPDATE");
    thread::scope(|scope| {
        let first = scope.spawn(|| redrive("k-2"));
        wait_until(LONG, "it has begun", || {
            world
                .db
                .one::<i64>("SELECT count(*) FROM tidegate.operation WHERE kind = 'redrive'")
                == 2
        });
        refused(redrive("k-2"), 409, "has not ended");
        // What one holds in memory is bounded, what many hold would not be.
        refused(redrive("k-3"), 503, "ask again");
        holder.run("ROLLBACK");
        let (status, answer) = first.join().unwrap();
        assert_eq!(
            (status, &answer["result"]["failed_again"][1]),
            (200, &Value::Null),
            "{answer:#}"
        );
        let (status, repeated) = redrive("k-2");
        assert_eq!(
            (status, &repeated["after"]),
            (200, &answer["result"]),
            "{repeated:#}"
        );
    });
    assert_eq!(redrive("k-3").0, 200);
}

// The words and the guards are those of the command.
#[test]
fn a_projection_is_reset_over_http_once_and_only_by_who_says_yes() {
    let world = World::ledger(2);
    let mut stream = world.stream();
    stream.produce(100);
    let asked = start(world.launch("a"));
    world.assert_exact();
    let reset = |key: &str, body: Value| post(&asked, "projections/balances/reset", key, &body);
    let refused = |body: Value, expected: u16, words: &str| {
        let (status, answer) = reset("no", body);
        let why = answer["error"].as_str().unwrap_or_default();
        assert!(
            status == expected && why.contains(words),
            "{status} {answer:#}"
        );
    };
    refused(json!({ "yes": true }), 400, "no `to`");
    refused(json!({ "to": "earliest" }), 400, "dry_run");
    refused(json!({ "to": "oldest", "yes": true }), 400, "neither");
    refused(json!({ "to": "@/etc/passwd", "yes": true }), 400, "neither");
    refused(
        json!({ "to": "latest", "yes": true }),
        409,
        "begins_anywhere",
    );
    refused(
        json!({ "to": "earliest", "new_log": ["other"], "yes": true }),
        409,
        "does not read",
    );

    let (status, answer) = reset(
        "k",
        json!({ "to": "earliest", "dry_run": true, "yes": true }),
    );
    let plan = &answer["result"];
    assert_eq!(
        (status, &plan["generation"]),
        (200, &json!(1)),
        "{answer:#}"
    );
    let to_read = plan["partitions"].as_array().unwrap().iter();
    let to_read: i64 = to_read.map(|it| it["to_read"].as_i64().unwrap()).sum();
    assert_eq!(to_read, 100, "{plan:#}");
    assert_eq!(plan["empties"][0]["table"], "balance", "{plan:#}");
    assert!(operations(&world).is_empty(), "nothing was done");

    let yes = || json!({ "to": "earliest", "yes": true });
    let (status, answer) = reset("k", yes());
    assert_eq!(
        (status, &answer["result"]["generation"]),
        (200, &json!(2)),
        "{answer:#}"
    );
    let (_, repeated) = reset("k", yes());
    assert_eq!(
        (&repeated["repeated"], &repeated["after"]["generation"]),
        (&json!(true), &json!(2)),
        "{repeated:#}"
    );
    world.assert_exact();
    let done = [("reset".to_owned(), "HTTP API from 127.0.0.1".to_owned())];
    assert_eq!(operations(&world), done);
}

// I3: in the middle of a deployment a request may reach either version; only an operator's own configuration decides
// which of them is live.
#[test]
fn a_process_whose_definition_is_not_live_resets_nothing_over_http() {
    let mut world = World::ledger(1);
    let mut stream = world.stream();
    stream.produce(20);
    let old = start(world.launch("old"));
    world.assert_exact();
    world.change_projections(NEXT_VERSION.0, NEXT_VERSION.1);
    let new = start(world.launch("new"));
    new.wait_for("/readyz", Some("not_live"));
    let reset = |asked: &Asked, key: &str, body: Value| {
        post(asked, "projections/balances/reset", key, &body)
    };
    let refused = |asked: &Asked| {
        for how in ["dry_run", "yes"] {
            let (status, answer) = reset(asked, "k-1", json!({ "to": "earliest", how: true }));
            let why = answer["error"].as_str().unwrap_or_default();
            for words in ["version 1", "version 2", "tidegate reset balances"] {
                assert!(status == 409 && why.contains(words), "{status} {answer:#}");
            }
        }
    };
    refused(&new);
    assert!(operations(&world).is_empty(), "nothing was done");
    assert_eq!(
        reset(&old, "k-2", json!({ "to": "earliest", "yes": true })).0,
        200
    );
    // At a terminal it is what the operator has chosen.
    let command = ["reset", "balances", "--to", "earliest", "--yes"];
    world.tidegate(&command).expect(0);
    refused(&old);
    new.wait_for("/readyz", None);
    world.assert_exact();
}

#[test]
fn whoever_has_no_token_changes_nothing() {
    let world = World::journal(1);
    let asked = start(world.launch("a"));
    wait_until(LONG, "it works", || {
        world.is_owned_by("journal", asked.process())
    });
    let ask = |request: &str, headers: &str| {
        let (status, answer) = asked.ask_with(request, headers, "");
        assert!(!answer.contains(TOKEN), "{answer}");
        status
    };
    let (pause, key) = (
        "POST /admin/projections/journal/pause",
        "Idempotency-Key: k",
    );
    assert_eq!(ask(pause, key), 401);
    assert_eq!(
        ask(
            "GET /admin/status",
            "Authorization: Bearer another-token-of-this-test"
        ),
        401
    );
    let token = format!("Authorization: Bearer {TOKEN}");
    assert_eq!(ask(pause, &token), 400, "it needs a key");
    assert_eq!(ask("GET /admin/projections/journal/pause", &token), 405);
    assert_eq!(ask("POST /admin/projections/journal/rebuild", &token), 404);
    let nobody = format!("{token}\r\n{key}");
    assert_eq!(ask("POST /admin/projections/nobody/pause", &nobody), 404);
    assert!(operations(&world).is_empty());
    // Questions need none, and the status is what the command says.
    asked.wait_for("/livez", None);
    let (status, answer) = asked.ask_with("GET /admin/status", &token, "");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        (status, &answer["projections"][0]["name"]),
        (200, &json!("journal"))
    );

    // Off unless it is turned on.
    let off = Asked::start(world.launch("b"));
    assert_eq!(off.ask("GET /admin/status").0, 404);
}

#[test]
fn without_a_token_it_is_refused_where_others_can_reach_it() {
    let world = World::journal(1);
    let check = |listen: &str, token: Option<&str>| {
        let launch = world
            .launch("check")
            .env("TIDEGATE__HTTP__LISTEN", listen)
            .env("TIDEGATE__HTTP__ADMIN", "true");
        match token {
            Some(token) => launch.env("TIDEGATE__HTTP__ADMIN_TOKEN", token),
            None => launch,
        }
        .output(&["check"])
    };
    let refused = check("0.0.0.0:9600", None).expect(78);
    assert!(
        refused.stderr.contains("without `http.admin_token`"),
        "{}",
        refused.stderr
    );
    let short = check("0.0.0.0:9600", Some("hunter2")).expect(78);
    assert!(
        short.stderr.contains("too short") && !short.stderr.contains("hunter2"),
        "{}",
        short.stderr
    );
    check("0.0.0.0:9600", Some(TOKEN)).expect(0);
    check("127.0.0.1:9600", None).expect(0);
    // Without one, only who means this machine is answered: no name that leads here.
    let open = Asked::start(world.launch("a").env("TIDEGATE__HTTP__ADMIN", "true"));
    assert_eq!(open.ask("GET /admin/status").0, 403);
    assert_eq!(open.ask_as("localhost", "GET /admin/status").0, 200);
}
