//! Behind a PgBouncer in transaction mode, where every transaction may run in another session and nothing that a session
//! knows outlives it. The core of what is promised holds there too.

use std::time::Duration;

use crate::harness::{
    LONG, World, behind_a_pooler, behind_a_pooler_that_keeps_statements, wait_until,
};
use crate::http::Asked;
use crate::{apply, crash, dead_letters, gate, outage, rebalance, relay, reset};

/// Tests of other modules, once more.
macro_rules! behind_a_pooler {
    ($($module:ident::$test:ident),* $(,)?) => {$(
        #[test]
        fn $test() {
            behind_a_pooler($module::$test);
        }
    )*

    /// From PgBouncer 1.21 on, without a word in the configuration.
    mod that_keeps_statements {$(
        #[test]
        fn $test() {
            crate::harness::behind_a_pooler_that_keeps_statements(crate::$module::$test);
        }
    )*}};
}

behind_a_pooler![
    apply::however_a_stream_is_cut_tables_and_messages_are_the_same,
    crash::an_unanswered_commit_is_settled_by_another_process_too,
    crash::twenty_kills_in_a_row_leave_exact_totals,
    dead_letters::a_record_that_cannot_be_applied_holds_up_only_its_entity,
    dead_letters::redriven_under_load_and_over_restarts_the_tables_are_the_fold,
    gate::an_entity_in_two_partitions_never_goes_back,
    outage::a_lock_that_is_held_too_long_is_waited_for,
    rebalance::a_process_that_slept_through_a_rebalance_changes_nothing,
    rebalance::a_stale_owner_cannot_commit,
    relay::two_relays_send_everything_in_order,
    reset::a_reset_under_load_repeats_and_loses_nothing,
];

fn commands_work() {
    let world = World::ledger(2);
    let mut stream = world.stream();
    let process = world.start("a");
    stream.produce(300);
    world.assert_exact();
    let partition = world.partition_status("journal", 0);
    assert_ne!(partition["state"], "unattended", "{partition:#}");
    for command in [
        &["check"] as &[&str],
        &["status"],
        &["verify"],
        &["doctor"],
        &["explain", "balances", "--entity", "a-1"],
        &["dead-letters", "list"],
        &["outbox", "status"],
        &["outbox", "quarantine", "list"],
        &["pause", "journal"],
        &["resume", "journal"],
        &["reset", "turnover", "--to", "earliest", "--yes"],
    ] {
        world.tidegate(command).expect(0);
    }
    world.assert_exact();
    process.stop();
}

#[test]
fn commands_work_behind_a_pooler() {
    behind_a_pooler(commands_work);
}

fn is_seen() {
    let world = World::journal(1);
    let pooler = world.tidegate(&["doctor"]).expect(0).stdout;
    assert!(pooler.contains("a pooler in transaction mode"), "{pooler}");
    // It is not said that there is one.
    let unsaid = |name: &str| {
        let launch = world.launch(name);
        launch.env("TIDEGATE__POSTGRES__POOLER", "none")
    };
    let found = unsaid("unsaid").output(&["doctor"]).expect(70).stdout;
    assert!(
        found.contains("it forgets prepared statements: set `postgres.pooler`"),
        "{found}"
    );
    // A session's lock would not be one, whether it is said or seen.
    for command in [&["migrate"] as &[&str], &["rebuild", "start", "journal"]] {
        let (url, through) = world.way_to_postgres("run").swap_remove(0);
        let refused = unsaid("seen").env(url, through).output(command).expect(78);
        assert!(
            refused.stderr.contains("connections share sessions"),
            "{}",
            refused.stderr
        );
    }
    let through = world
        .launch("through")
        .env("TIDEGATE__POSTGRES__POOLER", "transaction");
    let refused = through.output(&["migrate"]).expect(78).stderr;
    assert!(refused.contains("the server's own address"), "{refused}");
}

#[test]
fn a_pooler_is_seen_and_what_cannot_pass_it_is_refused() {
    behind_a_pooler(is_seen);
}

fn answers_questions() {
    let world = World::ledger(1);
    let asked = Asked::start(world.launch("a"));
    wait_until(LONG, "the database's figures are known", || {
        let text = asked.ask("GET /metrics").1;
        text.contains("\ntidegate_outbox_unsent_messages ")
    });
    asked.wait_for("/readyz", None);
    // Figures are asked for again.
    let sender = world.sender();
    wait_until(LONG, "what comes is counted", || {
        sender.send(0, Some(b"b"), Some(b"no json"));
        let text = asked.ask("GET /metrics").1;
        assert_eq!(asked.ask("GET /readyz").0, 200, "{text}");
        text.contains("\ntidegate_parked_records{")
    });
}

#[test]
fn a_process_behind_a_pooler_answers_questions() {
    behind_a_pooler(answers_questions);
}

// A lock of a session's would keep nobody away. That there is a pooler, nobody has said.
fn is_seen_unsaid() {
    let world = World::journal(1);
    world.tidegate(&["doctor"]).expect(0);
    let process = world.start("a");
    wait_until(LONG, "it works", || world.is_owned_by("journal", &process));
    let rebuild = |command: &[&str]| world.launch("rebuild").output(command).expect(0).stdout;
    rebuild(&["rebuild", "start", "journal", "--detach"]);
    wait_until(LONG, "it says why it does not build", || {
        rebuild(&["rebuild", "status", "journal"]).contains("a pooler between it and Postgres")
    });
}

#[test]
fn a_build_is_not_taken_through_a_pooler_that_nobody_has_told_of() {
    behind_a_pooler_that_keeps_statements(is_seen_unsaid);
}

#[test]
fn three_processes_share_five_sessions_of_a_pooler_that_keeps_statements() {
    behind_a_pooler_that_keeps_statements(share_sessions);
}

// More processes than sessions: they take turns, and nobody waits for ever.
fn share_sessions() {
    let world = World::ledger(4);
    let mut stream = world.stream();
    let launch = |name: &str| world.launch(name).env("TIDEGATE__APPLY__WRITERS", 2);
    let processes = [
        launch("a").start(),
        launch("b").start(),
        launch("c").start(),
    ];
    wait_until(LONG, "each has something", || {
        processes
            .iter()
            .all(|process| world.has_some_of("journal", process))
    });
    for _ in 0..5 {
        stream.produce(400);
    }
    world.wait_until_done(Duration::from_secs(60));
    world.assert_exact();
    for process in processes {
        process.stop();
    }
}

#[test]
fn three_processes_share_five_sessions() {
    behind_a_pooler(share_sessions);
}
