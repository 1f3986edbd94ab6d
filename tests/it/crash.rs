//! The process ends at the worst moment: at each crash point, and at any moment.
//!
//! Each kind of crash point has a test, which ends the service at every point of that kind, at a
//! random passage, and starts it again. Tables, outbox and positions are compared with the fold over
//! the log after every end, and the topic of the messages with the outbox at the end.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::thread;
use std::time::Duration;

use crate::dead_letters::{self, waiting};
use crate::harness::{
    LONG, Launch, Process, Proxy, Stream, Trouble, Watch, World, committed_offsets, create_topic,
    delete, wait_until,
};
use crate::relay::assert_sent;
use crate::relay_quarantine::{Message, emit, passed, received, release, wait_until_nothing_waits};
use crate::{bulk, failpoint};

const SIGKILL: i32 = 9;
const PROJECTIONS: [&str; 3] = ["balances", "turnover", "journal"];

/// The crash points of a kind, in the order of the code.
fn points(kind: &str) -> Vec<&'static str> {
    let of_kind = |point: &&str| point.split('-').next() == Some(kind);
    let all = failpoint::ALL.iter().copied();
    let points: Vec<&str> = all.filter(of_kind).collect();
    assert!(!points.is_empty(), "no crash point of kind {kind}");
    points
}

/// A process that ends when it passes the point for the given time, counted from 1.
fn launch_to<'w>(world: &'w World, point: &str, passage: u32) -> Launch<'w> {
    eprintln!("{point}, passage {passage}");
    launch(world).failpoints(&format!("{point}={}*off->return", passage - 1))
}

fn launch(world: &World) -> Launch<'_> {
    let launch = world.launch("a").comes_back().batch_records_max(20);
    launch.env("TIDEGATE__RELAY__LEASE", "1s")
}

/// Waits for the end at the point, and for Postgres to notice it.
#[track_caller]
fn expect_end(world: &World, mut process: Process, point: &str) {
    let status = process.wait(LONG);
    assert_eq!(status.signal(), Some(SIGKILL), "{status}");
    assert!(process.has_logged(&["ending at a failpoint", point]));
    wait_until(LONG, "its connections are gone", || {
        world.db.one(&format!(
            "SELECT count(*) = 0 FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'tidegate %-{}-%'",
            process.pid()
        ))
    });
}

/// The same; nobody else is at work, so what is committed stands still and can be compared.
#[track_caller]
fn expect_end_of_all(world: &World, process: Process, point: &str) {
    expect_end(world, process, point);
    world.assert_tables_are_at_the_positions();
}

/// Starts the service once more, and compares everything.
#[track_caller]
fn assert_recovers(world: &World, mut stream: Stream) {
    let mut process = launch(world).start();
    stream.produce(50);
    // One that has not started has no position that could be behind.
    wait_until(LONG, "it has all partitions", || owns_all(world, &process));
    world.assert_exact();
    assert_sent(world);
    assert!(process.is_running());
}

fn owns_all(world: &World, process: &Process) -> bool {
    let owns = |projection: &&str| world.is_owned_by(projection, process);
    PROJECTIONS.iter().all(owns)
}

// I1: effects and position commit together, or neither does. What was committed is not applied again.
#[test]
fn position_and_effects_commit_together_wherever_a_batch_ends() {
    let world = World::ledger(2);
    let mut random = world.random();
    let mut stream = world.stream();
    for point in points("apply") {
        stream.produce(120);
        let before = world.progress();
        let process = launch_to(&world, point, 1).argument("--only=journal");
        expect_end_of_all(&world, process.start(), point);
        let has_committed = point == failpoint::APPLY_AFTER_COMMIT;
        assert_eq!(world.progress() > before, has_committed, "{point}");
        let process = launch_to(&world, point, random.u32(2..=4)).start();
        expect_end_of_all(&world, process, point);
    }
    assert_recovers(&world, stream);
}

// I1, I3: nobody but the position says what became of a COMMIT, nor does the process that sent it.
#[test]
pub(crate) fn an_unanswered_commit_is_settled_by_another_process_too() {
    let world = World::ledger(2);
    let mut random = world.random();
    let feeder = world.stream().feed(300);
    for point in points("unknown") {
        let proxy = Proxy::to(&world.db.address(), |commits| match commits % 10 {
            4 => Trouble::AnswerLost,
            9 => Trouble::RequestLost,
            _ => Trouble::None,
        });
        let process = launch_to(&world, point, random.u32(1..=3));
        let process = process.env("TIDEGATE__POSTGRES__URL", world.db.url_by(proxy.address()));
        expect_end_of_all(&world, process.start(), point);
    }
    assert_recovers(&world, feeder.finish());
}

// I3: what a claim leaves behind is in nobody's way.
#[test]
fn a_claim_that_ends_halfway_is_made_again() {
    let world = World::ledger(2);
    let mut random = world.random();
    let mut stream = world.stream();
    for point in points("claim") {
        stream.produce(60);
        let process = launch_to(&world, point, random.u32(1..=4)).start();
        expect_end_of_all(&world, process, point);
    }
    assert_recovers(&world, stream);
}

// I3, I4: a rebalance under load, in which the member that has everything ends while it gives some up.
#[test]
fn a_member_that_ends_in_a_rebalance_repeats_and_skips_nothing() {
    let world = World::ledger(2);
    let mut random = world.random();
    let feeder = world.stream().feed(300);
    let mut leaving = Vec::new();
    for point in points("revoke") {
        let process = launch_to(&world, point, random.u32(1..=3)).start();
        wait_until(LONG, "it has all partitions", || owns_all(&world, &process));
        let newcomer = world.launch("newcomer").batch_records_max(20).start();
        expect_end(&world, process, point);
        // It leaves, so that the next one gets everything.
        newcomer.signal("TERM");
        leaving.push(newcomer);
    }
    leaving.into_iter().for_each(Process::expect_stopped);
    assert_recovers(&world, feeder.finish());
}

// I7: at no moment is more mirrored than is stored.
#[test]
fn a_mirror_that_ends_halfway_shows_no_more_than_the_position() {
    let world = World::ledger(2);
    let mut random = world.random();
    let mut stream = world.stream();
    for point in points("mirror") {
        // No more than this: positions that go on would hide what is mirrored too far.
        stream.produce(100);
        let process = launch_to(&world, point, random.u32(2..=3))
            .env("TIDEGATE__APPLY__SYNCHRONOUS_COMMIT", "false")
            .start();
        expect_end_of_all(&world, process, point);
        let positions = world.positions();
        for projection in PROJECTIONS {
            let mirrored: BTreeMap<i32, i64> =
                committed_offsets(&world.group(projection), world.incoming(), 2);
            for (partition, offset) in mirrored {
                let stored = positions[&(projection.to_owned(), partition)];
                assert!(
                    offset <= stored,
                    "{projection}[{partition}]: {offset} > {stored}"
                );
            }
        }
    }
    assert_recovers(&world, stream);
}

// I1, I9: a stop that is cut short is a crash.
#[test]
fn a_stop_that_ends_halfway_loses_nothing() {
    let world = World::ledger(2);
    let mut random = world.random();
    let feeder = world.stream().feed(300);
    for point in points("stop") {
        // Each member begins to leave by itself; the rest happens once.
        let times = if point == failpoint::STOP_BEFORE_LEAVING {
            3
        } else {
            1
        };
        let process = launch_to(&world, point, random.u32(1..=times)).start();
        wait_until(LONG, "it has all partitions", || owns_all(&world, &process));
        let target = world.progress() + 200;
        wait_until(LONG, "it works", || world.progress() >= target);
        process.signal("TERM");
        expect_end_of_all(&world, process, point);
    }
    assert_recovers(&world, feeder.finish());
}

// I1: a first start is one transaction.
#[test]
fn a_first_start_that_ends_halfway_is_made_again_or_found() {
    let world = World::ledger(2);
    let mut random = world.random();
    let mut stream = world.stream();
    stream.produce(60);
    let started = || -> i64 { world.db.one("SELECT count(*) FROM tidegate.projection") };
    for point in points("start") {
        let before = started();
        // Three start at once, and at least one of them is left for the second point.
        let times = if point == failpoint::START_BEFORE_COMMIT {
            3
        } else {
            1
        };
        let passage = random.u32(1..=times);
        let process = launch_to(&world, point, passage).start();
        expect_end_of_all(&world, process, point);
        match point {
            failpoint::START_BEFORE_COMMIT => assert!(started() < i64::from(passage)),
            _ => assert!(started() > before),
        }
        let halves: i64 = world.db.one(
            "SELECT count(*) FROM tidegate.projection p
             WHERE (SELECT count(*) FROM tidegate.position q WHERE q.projection = p.name) <> 2",
        );
        assert_eq!(halves, 0, "a projection without its positions");
    }
    assert_recovers(&world, stream);
}

// I4: a partition that appears begins at its oldest record, whoever has met it before.
#[test]
fn a_new_partition_is_met_again_after_a_crash() {
    let world = World::journal(1);
    let mut random = world.random();
    world.stream().produce(60);
    for point in points("partition") {
        // Two appear at once, and at least one of them is left for the second point.
        let is_first = point == failpoint::PARTITION_BEFORE_INSERT;
        let process = launch_to(&world, point, random.u32(1..=1 + u32::from(is_first)))
            .option("topic.metadata.refresh.interval.ms", "500")
            .start();
        if is_first {
            wait_until(LONG, "it has all partitions", || {
                world.is_owned_by("journal", &process)
            });
            world.add_partitions(3);
            world.stream().produce(60);
        }
        expect_end_of_all(&world, process, point);
    }
    let _process = launch(&world).start();
    wait_until(LONG, "all partitions are known", || {
        world.positions().len() == 3
    });
    world.assert_exact();
}

// I2, I5: a reset happens or does not, and messages are not sent again.
#[test]
fn a_reset_that_ends_halfway_has_happened_or_not() {
    let world = World::ledger(2);
    let feeder = world.stream().feed(300);
    let process = launch(&world).start();
    wait_until(LONG, "it works", || world.progress() > 300);
    let generation = || -> i32 {
        world
            .db
            .one("SELECT live_generation FROM tidegate.projection WHERE name = 'journal'")
    };
    let operations = || -> i64 { world.db.one("SELECT count(*) FROM tidegate.operation") };
    for (point, resets) in points("reset").into_iter().zip(0..) {
        eprintln!("{point}");
        let reset = world.launch("reset").failpoints(&format!("{point}=return"));
        let ended = reset.output(&["reset", "journal", "--to", "earliest", "--yes"]);
        ended.expect(-SIGKILL);
        assert_eq!(
            (generation(), operations()),
            (1 + resets, i64::from(resets))
        );
        let target = world.progress() + 200;
        wait_until(LONG, "the service goes on", || world.progress() >= target);
    }
    drop(process);
    assert_recovers(&world, feeder.finish());
}

// I2, I6: a position that is moved by hand moves with its record of that, or does not.
#[test]
fn a_skip_that_ends_halfway_has_happened_or_not() {
    let world = World::journal(1);
    let mut stream = world.stream();
    stream.produce(50);
    let process = launch(&world).start();
    world.wait_until_done(LONG);
    process.stop();
    stream.produce(50);
    let partition = format!("{}/0", world.incoming());
    let records = || -> (i64, i64) {
        let count = |table: &str| {
            world
                .db
                .one(&format!("SELECT count(*) FROM tidegate.{table}"))
        };
        (count("operation"), count("skipped"))
    };
    for (point, done) in points("reposition").into_iter().zip([false, true]) {
        eprintln!("{point}");
        let skip = world.launch("skip").failpoints(&format!("{point}=return"));
        let ended = skip.output(&["skip", "journal", &partition, "--to", "60", "--yes"]);
        ended.expect(-SIGKILL);
        let next = if done { 60 } else { 50 };
        assert_eq!(world.progress(), next);
        assert_eq!(records(), (i64::from(done), i64::from(done)));
    }
    let _process = launch(&world).start();
    world.wait_until_done(LONG);
    let offsets: Vec<(i64,)> = world
        .db
        .rows("SELECT record_offset FROM journal.journal ORDER BY 1");
    let expected: Vec<(i64,)> = (0..50).chain(60..100).map(|offset| (offset,)).collect();
    assert_eq!(offsets, expected);
    world.tidegate(&["verify"]).expect(0);
}

/// A service that ends where it is told to, at a record that cannot be applied, or none.
fn start_parking(world: &World, failpoint: &str) -> Process {
    let launch = world.launch("a").comes_back().batch_records_max(20);
    launch.failpoints(failpoint).start()
}

fn outbox_size(world: &World) -> usize {
    world.outbox_sizes().into_values().sum()
}

// I1, I6: a dead letter is there with the position behind it, or not at all.
#[test]
fn a_record_is_parked_with_its_position_or_not_at_all() {
    let world = dead_letters::score(1);
    let sender = world.sender();
    for point in points("park") {
        dead_letters::send(&sender, 0, "bad", 1, 5000);
        dead_letters::send(&sender, 0, "bad", 2, 6);
        sender.flush();
        expect_end(
            &world,
            start_parking(&world, &format!("{point}=return")),
            point,
        );
        assert_eq!((waiting(&world), world.progress()), (0, 0), "{point}");
        let rights: i64 = world.db.one("SELECT count(*) FROM tidegate.unemitted");
        assert_eq!(rights, 0, "{point}");
    }
    let _process = start_parking(&world, "");
    world.wait_until_done(LONG);
    assert_eq!((waiting(&world), world.progress()), (2, 2));
    world.tidegate(&["verify"]).expect(0);
}

// I1, I5, I6: effects, messages and what became of the records commit together.
#[test]
fn a_redrive_that_ends_halfway_has_happened_or_not() {
    let world = dead_letters::score(1);
    let sender = world.sender();
    dead_letters::send(&sender, 0, "bad", 1, 5000);
    dead_letters::send(&sender, 0, "bad", 2, 6);
    sender.flush();
    let _process = start_parking(&world, "");
    world.wait_until_done(LONG);
    world
        .db
        .run("ALTER TABLE score.score DROP CONSTRAINT not_too_much");
    for point in points("redrive") {
        eprintln!("{point}");
        let redrive = world
            .launch("redrive")
            .failpoints(&format!("{point}=return"));
        redrive
            .output(&["dead-letters", "redrive", "score"])
            .expect(-SIGKILL);
        let (left, rows, messages) = match point {
            failpoint::REDRIVE_AFTER_COMMIT => (0, vec![("bad".to_owned(), 6)], 2),
            _ => (2, Vec::new(), 0),
        };
        wait_until(LONG, "its transaction is over", || {
            world.db.one(
                "SELECT count(*) = 0 FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name LIKE 'tidegate % redrive %'",
            )
        });
        let found = (
            waiting(&world),
            dead_letters::amounts(&world),
            outbox_size(&world),
        );
        assert_eq!(found, (left, rows, messages), "{point}");
    }
    world
        .tidegate(&["dead-letters", "redrive", "score"])
        .expect(0);
    assert_eq!(outbox_size(&world), 2);
    world.tidegate(&["verify"]).expect(0);
}

// I5, I6: what is given up is given up with its right to send and on record, or it waits.
#[test]
fn a_discard_that_ends_halfway_has_happened_or_not() {
    let world = dead_letters::score(1);
    let sender = world.sender();
    dead_letters::send(&sender, 0, "bad", 1, 5000);
    sender.flush();
    let _process = start_parking(&world, "");
    world.wait_until_done(LONG);
    for (point, done) in points("letters").into_iter().zip([false, true]) {
        eprintln!("{point}");
        let discard = world
            .launch("discard")
            .failpoints(&format!("{point}=return"));
        let command = [
            "dead-letters",
            "discard",
            "score",
            "--why",
            "a test",
            "--yes",
        ];
        discard.output(&command).expect(-SIGKILL);
        let count = |rows: &str| -> i64 { world.db.one(&format!("SELECT count(*) FROM {rows}")) };
        let found = (
            waiting(&world),
            count("tidegate.unemitted"),
            count("tidegate.operation"),
        );
        let expected = if done { (0, 0, 1) } else { (1, 1, 0) };
        assert_eq!(found, expected, "{point}");
    }
    dead_letters::send(&sender, 0, "bad", 2, 6);
    sender.flush();
    world.wait_until_done(LONG);
    assert_eq!(dead_letters::amounts(&world), [("bad".to_owned(), 6)]);
    world.tidegate(&["verify"]).expect(0);
}

// I3, I5, I8: what is live stays so until something else is, and what was begun is gone on with.
#[test]
fn a_rebuild_that_ends_anywhere_leaves_the_live_generation_and_goes_on() {
    let world = World::ledger(2);
    let mut stream = world.stream();
    stream.produce(600);
    let process = launch(&world).start();
    world.assert_exact();
    process.stop();
    let live = || -> i32 {
        let live = "SELECT live_generation FROM tidegate.projection WHERE name = 'balances'";
        world.db.one(live)
    };
    let build = ["rebuild", "start", "balances", "--cut-over", "--yes"];
    let go_back = ["rebuild", "rollback", "balances", "--to", "1", "--yes"];
    let abandon = ["rebuild", "abandon", "balances", "--yes"];
    let run = |point: &str, passage: u32, command: &[&str]| {
        eprintln!("{point}: {}", command.join(" "));
        let ends = format!("{point}={passage}*off->return");
        let launch = world.launch("rebuild").batch_records_max(20);
        launch.failpoints(&ends).output(command).expect(-SIGKILL);
        wait_until(LONG, "its connections are gone", || {
            world.db.one(
                "SELECT count(*) = 0 FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name LIKE 'tidegate %'",
            )
        });
        // Nobody works, so what is live is compared as it stands.
        world.assert_tables_are_at_the_positions();
    };
    let is_abandon = |point: &&str| point.contains("abandon");
    let (of_abandon, of_build): (Vec<&str>, Vec<&str>) =
        points("rebuild").into_iter().partition(is_abandon);
    let (begin, cut_over) = of_build.split_at(2);
    let batches = [
        failpoint::CLAIM_AFTER_COMMIT,
        failpoint::APPLY_BEFORE_ADVANCE,
        failpoint::APPLY_BEFORE_COMMIT,
        failpoint::APPLY_AFTER_COMMIT,
    ];
    for point in begin {
        run(point, 0, &build);
    }
    for point in batches {
        run(point, 1, &build);
    }
    for point in cut_over {
        // The first hold is for the comparison.
        let passage = u32::from(*point == failpoint::REBUILD_HOLDING);
        assert_eq!(live(), 1);
        run(point, passage, &build);
    }
    assert_eq!(live(), 2, "the last one is behind the commit");
    for point in of_build {
        assert_eq!(live(), 2);
        run(point, 0, &go_back);
    }
    assert_eq!(live(), 1);
    world.tidegate(&["rebuild", "start", "balances"]).expect(0);
    for point in of_abandon {
        run(point, 0, &abandon);
    }
    world.tidegate(&abandon).expect(70);
    assert_recovers(&world, stream);
}

// I1, I8: what a build has taken in is written, rows, gates and positions, or nothing of it is.
#[test]
fn a_build_that_ends_while_it_writes_what_it_took_in_goes_on() {
    let world = bulk::applied(2, |world| {
        let sender = world.sender();
        for number in 0..4_000 {
            let (entity, sequence) = (format!("e-{}", number % 400), number / 400 + 1);
            let headers = [("sequence", sequence.to_string())];
            let headers = headers
                .each_ref()
                .map(|(name, value)| (*name, value.as_bytes()));
            let value = format!(r#"{{"amount":{number}}}"#);
            let (key, value) = (Some(entity.as_bytes()), Some(value.as_bytes()));
            sender.send_with_headers(number % 2, key, value, &headers);
        }
        sender.flush();
    });
    let build = ["rebuild", "start", "next"];
    for point in points("bulk") {
        let ends = format!("{point}=return");
        let launch = bulk::launch(&world, "rebuild").failpoints(&ends);
        launch.output(&build).expect(-SIGKILL);
        wait_until(LONG, "its connections are gone", || {
            world.db.one(
                "SELECT count(*) = 0 FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name LIKE 'tidegate %'",
            )
        });
        let built: Vec<(i64, i64, i64)> = world.db.rows(
            "SELECT (SELECT coalesce(sum(events), 0) FROM next__g2.sum),
                    (SELECT coalesce(sum(sequence), 0)::bigint FROM next__g2._gate),
                    (SELECT sum(consumed)::bigint FROM tidegate.position WHERE projection = 'next' AND generation = 2)",
        );
        let (events, sequences, consumed) = built[0];
        assert_eq!((events, sequences), (consumed, consumed), "{point}");
        assert_eq!(
            consumed > 0,
            point == failpoint::BULK_AFTER_COMMIT,
            "{point}"
        );
        bulk::launch(&world, "verify").output(&["verify"]).expect(0);
    }
    bulk::launch(&world, "rebuild").output(&build).expect(0);
    let differ: i64 = world.db.one(
        "SELECT count(*) FROM next.sum a FULL JOIN next__g2.sum b USING (entity) WHERE a IS DISTINCT FROM b",
    );
    assert_eq!(differ, 0);
}

// I9: sent again or not, every message is there, with its id and in its order.
#[test]
fn a_relay_that_ends_anywhere_leaves_no_message_out() {
    let world = World::ledger(2);
    let mut random = world.random();
    let feeder = world.stream().feed(300);
    for point in points("relay") {
        let process = launch_to(&world, point, random.u32(1..=4)).start();
        expect_end_of_all(&world, process, point);
    }
    assert_recovers(&world, feeder.finish());
}

// I9: a message is in quarantine when the cursor has passed it, and in order, or both are as before.
#[test]
fn a_quarantine_that_ends_halfway_passes_nothing_over() {
    let world = World::journal(1);
    let (out, late) = (world.outgoing(), format!("{}-late", world.outgoing()));
    let mut random = world.random();
    let mut messages = Vec::new();
    for n in 0..20 {
        messages.push(Message::new(&late, "k", format!("l{n:05}")));
        messages.push(Message::new(out, "k", format!("v{n:05}")));
    }
    let launch = |failpoints: &str| {
        let launch = launch(&world).env("TIDEGATE__RELAY__ATTEMPTS_MAX", 1);
        launch.failpoints(failpoints).start()
    };
    for point in points("quarantine") {
        emit(&world, "app", &messages);
        // What the first end leaves behind may go in one passage.
        let passage = match point {
            failpoint::QUARANTINE_BEFORE_COMMIT => random.u32(0..2),
            _ => 0,
        };
        eprintln!("{point}, passage {passage}");
        expect_end(
            &world,
            launch(&format!("{point}={passage}*off->return")),
            point,
        );
        let lost: i64 = world.db.one(
            "SELECT count(*) FROM tidegate.outbox o JOIN tidegate.relay r USING (stream)
             WHERE o.number <= r.sent_through AND o.topic LIKE '%-late'
               AND NOT EXISTS (SELECT FROM tidegate.quarantine q WHERE q.number = o.number)",
        );
        assert_eq!(lost, 0, "passed over, and not kept");
    }
    let _process = launch("");
    wait_until(LONG, "all is sent or set aside", || {
        passed(&world, "app") == 80
    });
    let names = |letter: char| -> Vec<String> {
        let twice = (0..20).chain(0..20);
        twice.map(|n| format!("{letter}{n:05}")).collect()
    };
    assert_eq!(received(out, 1)["k"], names('v'));
    create_topic(&late, 1);
    release(&world);
    wait_until_nothing_waits(&world);
    assert_eq!(received(&late, 1)["k"], names('l'));
    world.tidegate(&["verify"]).expect(0);
    delete(&[&late], &[]);
}

// I1 to I5: whenever it ends, and with whatever batches it goes on.
#[test]
pub(crate) fn twenty_kills_in_a_row_leave_exact_totals() {
    let world = World::ledger(4);
    let mut random = world.random();
    let mut stream = world.stream();
    stream.produce(1_000);
    let feeder = stream.feed(600);
    let start = |name: &str, random: &mut fastrand::Rng| -> Process {
        let batches = [1, 7, 60, 1_000];
        let launch = world.launch(name).comes_back();
        launch
            .batch_records_max(batches[random.usize(..batches.len())])
            .env("TIDEGATE__RELAY__LEASE", "1s")
            .start()
    };
    let names = ["first", "second"];
    let mut processes = names.map(|name| start(name, &mut random));
    wait_until(LONG, "they have begun", || !world.positions().is_empty());
    let watch = Watch::over(&world.db);
    for _ in 0..20 {
        let target = world.progress() + random.i64(1..900);
        wait_until(LONG, "some more is applied", || world.progress() >= target);
        // Any moment of a batch, or between two.
        thread::sleep(Duration::from_millis(random.u64(..50)));
        let victim = random.usize(..2);
        let next = |random: &mut fastrand::Rng| start(names[victim], random);
        processes[victim].kill();
        processes[victim] = next(&mut random);
    }
    feeder.finish();
    world.assert_exact();
    watch.assert_only_grown();
}
