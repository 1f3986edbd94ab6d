//! The registry that knows what values are written with: what happens while nobody says it, or says another thing than
//! before.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::avro::{OLD_SCORE, SCORE, framed, letters, score, scores, world};
use crate::harness::{LONG, Mood, SchemaRegistry, wait_until};

// I10: the registry fails, is silent, or does not let us in. Whatever it is, nothing is parked; what is known goes on.
#[test]
fn a_registry_that_is_away_holds_up_only_what_it_is_needed_for() {
    let (world, registry) = world(2, "");
    let sender = world.sender();
    sender.send(1, None, Some(&framed(1, SCORE, &score("known", 1, "x"))));
    sender.flush();
    let mut process = world.start("a");
    world.wait_until_done(LONG);

    registry.register(7, OLD_SCORE);
    for mood in [
        Mood::Fails(503),
        Mood::Silent,
        Mood::Fails(401),
        Mood::Fails(404),
    ] {
        registry.set(mood);
        let asked = registry.asked_for(7);
        let seq = 2 + i64::try_from(asked).unwrap();
        let old = json!({"seq": seq, "gone": [], "account": "waits"});
        // Behind one that can be read.
        sender.send(0, None, Some(&framed(1, SCORE, &score("before", seq, "x"))));
        sender.send(0, None, Some(&framed(7, OLD_SCORE, &old)));
        sender.send(1, None, Some(&framed(1, SCORE, &score("known", seq, "y"))));
        sender.flush();
        wait_until(LONG, "it asks again and again", || {
            registry.asked_for(7) >= asked + 2
        });
        wait_until(LONG, "what is known is applied", || {
            let of = |account: &str, applied: &[(String, i64, Option<String>)]| {
                applied.iter().any(|row| row.0 == account && row.1 == seq)
            };
            let applied = scores(&world);
            of("known", &applied) && (asked > 0 || of("before", &applied))
        });
    }
    // Or that it has not been answered yet, for a moment.
    wait_until(LONG, "it says what it waits for", || {
        let (condition, cause) = world.condition("score", 0);
        condition == "retrying" && cause.contains("schema 7 cannot be asked for")
    });
    assert_eq!(letters(&world), []);
    registry.set(Mood::Good);
    world.wait_until_done(LONG);
    assert_eq!(scores(&world).len(), 3);
    assert_eq!(letters(&world), []);
    assert!(process.is_running());
    world.tidegate(&["verify"]).expect(0);
}

// A slow answer is waited for by its own partition and by no other.
#[test]
fn a_slow_registry_holds_up_no_other_partition_of_its_writer() {
    let (mut world, registry) = world(2, "[apply]\nwriters = 1");
    world.change_projections("timeout = \"300ms\"", "timeout = \"60s\"");
    let sender = world.sender();
    sender.send(1, None, Some(&framed(1, SCORE, &score("known", 1, "x"))));
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);

    registry.register(7, OLD_SCORE);
    let answers_after = Duration::from_secs(4);
    registry.set(Mood::Slow(answers_after));
    let asked = Instant::now();
    let old = json!({"seq": 1, "gone": [], "account": "waits"});
    sender.send(0, None, Some(&framed(7, OLD_SCORE, &old)));
    sender.flush();
    wait_until(LONG, "it asks", || registry.asked_for(7) == 1);
    let mut applied = 0;
    for seq in 2.. {
        sender.send(1, None, Some(&framed(1, SCORE, &score("known", seq, "y"))));
        sender.flush();
        let is_there = || {
            scores(&world)
                .iter()
                .any(|row| row.0 == "known" && row.1 == seq)
        };
        wait_until(LONG, "the other partition goes on", is_there);
        // It is the answer that takes long, not the machine.
        if asked.elapsed() >= answers_after || scores(&world).len() == 2 {
            break;
        }
        applied += 1;
    }
    assert!(applied >= 3, "{applied} while it was waited for");
    world.wait_until_done(LONG);
    assert_eq!(scores(&world).len(), 2);
    // One question was enough, although it was waited for several times.
    assert_eq!(registry.asked_for(7), 1);
    assert_eq!(letters(&world), []);
}

// I10: only what all servers deny for longer than the grace is a record's fault. It is asked for once for all of them, and
// a redrive applies it once it is there.
#[test]
fn an_id_that_nobody_knows_is_parked_after_its_grace_and_can_be_redriven() {
    let (world, registry) = world(1, "unknown_grace = \"1s\"");
    let sender = world.sender();
    for seq in 1..=30_i64 {
        let old = json!({"seq": seq, "gone": [], "account": format!("a-{seq}")});
        sender.send(0, None, Some(&framed(999, OLD_SCORE, &old)));
    }
    sender.send(0, None, Some(&framed(1, SCORE, &score("b", 1, "x"))));
    sender.flush();
    let process = world.start("a");
    wait_until(LONG, "it waits", || {
        world
            .condition("score", 0)
            .1
            .contains("does not know the schema id 999; waiting up to 1s")
    });
    world.wait_until_done(LONG);
    let parked = letters(&world);
    assert_eq!(parked.len(), 30);
    assert!(parked.iter().all(|(_, reason, detail)| {
        reason == "undecodable" && detail.contains("no schema with the id 999")
    }));
    assert!(registry.asked_for(999) < 20, "{}", registry.asked_for(999));
    assert_eq!(scores(&world).len(), 1);
    process.stop();

    let redrive = ["dead-letters", "redrive", "score"];
    world.tidegate(&redrive).expect(70);
    assert_eq!(scores(&world).len(), 1);
    registry.register(999, OLD_SCORE);
    world.tidegate(&redrive).expect(0);
    assert_eq!(scores(&world).len(), 31);
    world.tidegate(&["verify"]).expect(0);
}

// I10: the first server has not read what another one registered a moment ago.
#[test]
fn a_server_that_lags_behind_is_no_verdict() {
    let (mut world, registry) = world(1, "");
    let behind = SchemaRegistry::start();
    behind.set(Mood::LagsBehind);
    world.change_projections(
        &format!("url = \"{}\"", registry.url()),
        &format!("url = \"{}/, {}\"", behind.url(), registry.url()),
    );
    let sender = world.sender();
    sender.send(0, None, Some(&framed(1, SCORE, &score("a", 1, "x"))));
    sender.flush();
    let _process = world.start("a");
    world.wait_until_done(LONG);
    assert_eq!((behind.asked_for(1), scores(&world).len()), (1, 1));
}

// I10: nor is it one for an id that nobody has, as long as one of them does not answer, or the grace is not over.
#[test]
fn an_id_that_becomes_known_within_its_grace_is_no_records_fault() {
    let (mut world, registry) = world(1, "unknown_grace = \"1s\"");
    let other = SchemaRegistry::start();
    other.set(Mood::Fails(503));
    world.change_projections(
        &format!("url = \"{}\"", registry.url()),
        &format!("url = \"{}, {}\"", registry.url(), other.url()),
    );
    let sender = world.sender();
    let old = |seq: i64| json!({"seq": seq, "gone": [], "account": "a"});
    sender.send(0, None, Some(&framed(7, OLD_SCORE, &old(1))));
    sender.flush();
    let process = world.start("a");
    let began = Instant::now();
    wait_until(LONG, "the grace would be over", || {
        began.elapsed() > Duration::from_secs(3) && other.asked_for(7) > 2
    });
    let (condition, cause) = world.condition("score", 0);
    assert_eq!(condition, "retrying");
    assert!(cause.contains("503"), "{cause}");
    assert_eq!(letters(&world), []);
    process.stop();

    // Both deny it, and then one has it.
    world.change_projections("unknown_grace = \"1s\"", "unknown_grace = \"5m\"");
    other.set(Mood::LagsBehind);
    let asked = other.asked_for(7);
    let _process = world.start("b");
    wait_until(LONG, "it waits", || {
        let (_, cause) = world.condition("score", 0);
        other.asked_for(7) > asked && cause.contains("does not know the schema id 7")
    });
    other.register(7, OLD_SCORE);
    other.set(Mood::Good);
    world.wait_until_done(LONG);
    assert_eq!(scores(&world), [("a".to_owned(), 1, None)]);
    assert_eq!(letters(&world), []);
}

// I10: a registry that begins anew gives ids away that mean something else.
#[test]
fn a_registry_that_has_lost_its_data_halts_what_it_would_misread() {
    let (world, registry) = world(1, "");
    let sender = world.sender();
    sender.send(0, None, Some(&framed(1, SCORE, &score("a", 1, "x"))));
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();

    registry.forget_all();
    // One that reads the same bytes, as something else.
    registry.register(1, &SCORE.replace("\"note\"", "\"remark\""));
    sender.send(0, None, Some(&framed(1, SCORE, &score("a", 2, "y"))));
    sender.flush();
    let process = world.start("b");
    let cause = world.wait_until_halted("score", 0);
    assert!(
        cause.contains("offset 1: schema 1 of the registry is another one than it was on"),
        "{cause}"
    );
    assert_eq!(letters(&world), []);
    process.stop();

    // It was restored, in another layout of the same text.
    let pretty: Value = serde_json::from_str(SCORE).unwrap();
    registry.register(1, &format!("{pretty:#}"));
    let _process = world.start("c");
    world.wait_until_done(LONG);
    assert_eq!(scores(&world), [("a".to_owned(), 2, Some("y".to_owned()))]);
}

// I10: the same while a process runs that knows what the id stood for.
#[test]
fn a_registry_that_loses_its_data_is_noticed_by_those_who_know_better() {
    let (world, registry) = world(1, "verify_every = \"200ms\"");
    let sender = world.sender();
    sender.send(0, None, Some(&framed(1, SCORE, &score("a", 1, "x"))));
    sender.flush();
    let mut process = world.start("a");
    world.wait_until_done(LONG);

    // Away, or empty: an id that is known stands for what it stood for.
    for mood in [Mood::Fails(503), Mood::LagsBehind] {
        registry.set(mood);
        let asked = registry.asked_for(1);
        wait_until(LONG, "it asks again", || registry.asked_for(1) >= asked + 2);
        let seq = 2 + i64::try_from(asked).unwrap();
        sender.send(0, None, Some(&framed(1, SCORE, &score("a", seq, "y"))));
        sender.flush();
        world.wait_until_done(LONG);
        assert_eq!(scores(&world)[0].1, seq);
    }
    // Given anew: to a schema that reads the same bytes as something else, or to none of Avro.
    let others = [
        json!({"schema": SCORE.replace("\"note\"", "\"remark\"")}),
        json!({"schema": "syntax = \"proto3\";", "schemaType": "PROTOBUF"}),
    ];
    for (number, other) in others.into_iter().enumerate() {
        let before = scores(&world);
        registry.answer(1, other);
        registry.set(Mood::Good);
        wait_until(LONG, "it is noticed", || {
            let notices = process
                .log()
                .matches("what the registry says is not what it said")
                .count();
            notices > number
        });
        let seq = 1_000 + i64::try_from(number).unwrap();
        sender.send(0, None, Some(&framed(1, SCORE, &score("a", seq, "z"))));
        sender.flush();
        let cause = world.wait_until_halted("score", 0);
        assert!(
            cause.contains("schema 1 of the registry is another one than it was on"),
            "{cause}"
        );
        assert_eq!(scores(&world), before);
        assert_eq!(letters(&world), []);
        assert!(process.is_running());

        registry.register(1, SCORE);
        world.tidegate(&["resume", "score"]).expect(0);
        world.wait_until_done(LONG);
        assert_eq!(scores(&world)[0].1, seq);
    }
    world.tidegate(&["verify"]).expect(0);
}

// I10: an id may be beyond reach for itself alone, by its rights or by what it refers to. The others are asked for all the
// same.
#[test]
fn an_id_that_is_never_answered_keeps_no_other_from_being_compared() {
    let (world, registry) = world(1, "verify_every = \"200ms\"");
    registry.register(7, OLD_SCORE);
    let sender = world.sender();
    // Asked for first.
    let old = json!({"seq": 1, "gone": [], "account": "a"});
    sender.send(0, None, Some(&framed(7, OLD_SCORE, &old)));
    sender.flush();
    let process = world.start("a");
    world.wait_until_done(LONG);
    registry.answer(
        7,
        json!({"schema": OLD_SCORE, "references": [{"name": "c", "subject": "common-value", "version": 1}]}),
    );
    sender.send(0, None, Some(&framed(1, SCORE, &score("a", 2, "x"))));
    sender.flush();
    world.wait_until_done(LONG);
    let asked = registry.asked_for(7);
    wait_until(LONG, "it has no answer", || {
        registry.asked_for(7) >= asked + 2
    });
    registry.register(1, &SCORE.replace("\"note\"", "\"remark\""));
    for words in [
        "schemas cannot be compared with what they were",
        "what the registry says is not what it said",
    ] {
        process.wait_for_log(LONG, &[words]);
    }
    sender.send(0, None, Some(&framed(1, SCORE, &score("a", 3, "y"))));
    sender.flush();
    world.wait_until_halted("score", 0);
    assert_eq!(scores(&world), [("a".to_owned(), 2, Some("x".to_owned()))]);
    assert_eq!(letters(&world), []);
}

// I10: credentials are sent, and never shown.
#[test]
fn credentials_are_sent_and_never_shown() {
    let (world, registry) = world(1, "");
    registry.lets_in("Bearer s3cr3t-token");
    let sender = world.sender();
    sender.send(0, None, Some(&framed(1, SCORE, &score("a", 1, "x"))));
    sender.flush();
    let token = |token: &str| {
        world
            .launch("a")
            .env("TIDEGATE__SCHEMA_REGISTRY__TOKEN", token)
    };
    let process = token("wr0ng-token").start();
    wait_until(LONG, "it is not let in", || {
        world.condition("score", 0).1.contains("401")
    });
    assert!(!process.log().contains("wr0ng-token"));
    assert!(!world.condition("score", 0).1.contains("wr0ng-token"));
    process.stop();
    let process = token("s3cr3t-token").start();
    world.wait_until_done(LONG);
    process.stop();

    registry.lets_in("Basic dXNlcjpwYXNz");
    registry.register(2, OLD_SCORE);
    let old = json!({"seq": 2, "gone": [], "account": "a"});
    sender.send(0, None, Some(&framed(2, OLD_SCORE, &old)));
    sender.flush();
    let _process = world
        .launch("c")
        .env("TIDEGATE__SCHEMA_REGISTRY__USER", "user")
        .env("TIDEGATE__SCHEMA_REGISTRY__PASSWORD", "pass")
        .start();
    world.wait_until_done(LONG);
    assert_eq!(scores(&world), [("a".to_owned(), 2, None)]);
}
