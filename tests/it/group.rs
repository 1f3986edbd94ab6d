//! Who may be in a group, and what becomes of those who may not.

use std::time::Duration;

use crate::harness::{KafkaServer, LONG, Launch, Process, Servers, World, delete, wait_until};

/// How soon a process that may not be a member has ended.
const SOON: Duration = Duration::from_secs(10);

const INSTANCE_ID_CODE: i32 = 77;
const GROUP_CODE: i32 = 76;

/// Starts a second process with the id of the first, after that one has everything.
fn two_with_one_id(world: &World, start: impl Fn(Launch<'_>) -> Process) -> (Process, Process) {
    world.stream().produce(200);
    let first = start(world.launch("first").instance_id("same"));
    world.wait_until_done(LONG);
    assert!(world.is_owned_by("journal", &first));
    (first, start(world.launch("second").instance_id("same")))
}

/// The other one goes on, and nothing was lost or repeated when the first had ended.
#[track_caller]
fn assert_goes_on(world: &World, mut lives: Process) {
    world.stream().produce(200);
    wait_until(LONG, "the other one has everything", || {
        world.is_owned_by("journal", &lives)
    });
    world.assert_exact();
    assert!(lives.is_running());
}

// I3, I10: whoever comes later has the place; the earlier one does not poll a dead client for ever.
#[test]
fn of_two_processes_with_one_instance_id_the_newer_one_lives() {
    let world = World::ledger(3);
    let (mut first, second) = two_with_one_id(&world, |launch| launch.start());
    let status = first.wait(SOON);
    assert_eq!(status.code(), Some(INSTANCE_ID_CODE));
    assert!(first.has_logged(&["kafka.group_instance_id", "`same`", "give each process"]));
    assert_goes_on(&world, second);
}

// I3, I10: where the broker decides (KIP-848), it lets nobody in who has the id of a member.
#[test]
fn of_two_processes_with_one_instance_id_the_broker_keeps_the_older_one() {
    let world = World::ledger(3);
    let (first, mut second) = two_with_one_id(&world, |launch| launch.consumer_protocol().start());
    let status = second.wait(SOON);
    assert_eq!(status.code(), Some(INSTANCE_ID_CODE));
    assert!(second.has_logged(&["kafka.group_instance_id", "`same`", "give each process"]));
    assert_goes_on(&world, first);
}

/// The first gives up half of its partitions to the second, and is killed before it has joined again.
fn killed_amid_a_rebalance(start: impl Fn(Launch<'_>) -> Process) {
    let world = World::journal(4);
    world.stream().produce(200);
    let launch = |name: &str| world.launch(name).instance_id(name);
    let mut first = start(launch("first").failpoints("revoke-before-answer=1*return"));
    world.wait_until_done(LONG);
    let _second = start(launch("second"));
    first.wait(LONG);
    let _first = start(launch("first"));
    world.stream().produce(200);
    world.assert_exact();
}

// I10: whoever comes back with its id is given what it had, and nobody would ask for the rest.
#[test]
fn a_static_member_that_ends_amid_a_rebalance_leaves_no_partition_without_an_owner() {
    killed_amid_a_rebalance(|launch| launch.start());
}

#[test]
fn a_static_member_that_ends_amid_an_eager_rebalance_leaves_no_partition_without_an_owner() {
    killed_amid_a_rebalance(|launch| launch.eager_protocol().start());
}

#[test]
fn a_static_member_that_ends_amid_the_brokers_rebalance_leaves_no_partition_without_an_owner() {
    killed_amid_a_rebalance(|launch| launch.consumer_protocol().start());
}

/// A process that comes to a group of the other protocol is turned away, and the members go on.
fn two_protocols(first: impl Fn(Launch<'_>) -> Process, second: impl Fn(Launch<'_>) -> Process) {
    let world = World::ledger(3);
    world.stream().produce(200);
    let first = first(world.launch("first"));
    world.wait_until_done(LONG);
    let mut second = second(world.launch("second"));
    let status = second.wait(SOON);
    assert_eq!(status.code(), Some(GROUP_CODE));
    // Of its three projections one has met it first.
    assert!(second.has_logged(&["members of consumer group", "use another protocol"]));
    assert!(!first.has_logged(&["revoked"]));
    assert_goes_on(&world, first);
}

// I10: nobody waits for ever for a group that does not take him.
#[test]
fn a_cooperative_process_is_turned_away_from_an_eager_group() {
    two_protocols(|a| a.eager_protocol().start(), |b| b.start());
}

#[test]
fn an_eager_process_is_turned_away_from_a_cooperative_group() {
    two_protocols(|a| a.start(), |b| b.eager_protocol().start());
}

// I3, I4: to the protocol in which the broker decides, and back, with nobody standing still. Kafka allows
// that unless `group.consumer.migration.policy` says otherwise.
#[test]
fn a_group_changes_its_protocol_while_it_works() {
    let world = World::ledger(3);
    let feeder = world.stream().feed(500);
    let one_after_another: [fn(Launch<'_>) -> Process; 4] = [
        |classic| classic.start(),
        |consumer| consumer.consumer_protocol().start(),
        |eager| eager.eager_protocol().start(),
        |consumer| consumer.consumer_protocol().start(),
    ];
    let mut before: Option<Process> = None;
    for (number, start) in one_after_another.into_iter().enumerate() {
        let mut next = start(world.launch(&number.to_string()));
        wait_until(LONG, "the next one has partitions", || {
            // As a supervisor does: the last of the other kind may not have left yet.
            if !next.is_running() {
                assert_eq!(next.wait(SOON).code(), Some(GROUP_CODE));
                next = start(world.launch(&number.to_string()));
            }
            ["balances", "turnover", "journal"]
                .iter()
                .all(|projection| world.has_some_of(projection, &next))
        });
        let target = world.progress() + 500;
        wait_until(LONG, "work goes on", || world.progress() >= target);
        if let Some(before) = before {
            before.stop();
        }
        before = Some(next);
    }
    feeder.finish();
    world.assert_exact();
}

// I10: where the brokers are told not to mix them, librdkafka tries for ever and says nothing.
#[test]
fn a_process_that_the_brokers_keep_out_of_a_classic_group_ends() {
    let kafka = KafkaServer::start_with("group.consumer.migration.policy=disabled");
    let world = World::journal_at(&Servers::shared().with_kafka(&kafka), 3);
    world.stream().produce(200);
    let first = world.start("first");
    world.wait_until_done(LONG);
    let mut second = world.launch("second").consumer_protocol().start();
    let status = second.wait(SOON * 3);
    assert_eq!(status.code(), Some(GROUP_CODE));
    assert!(second.has_logged(&[&world.group("journal"), "use another protocol"]));
    assert_goes_on(&world, first);
}

/// Two deployments with a database each in one group. The one that was there is not even disturbed.
fn two_databases(start: impl Fn(Launch<'_>) -> Process) {
    let world = World::journal(4);
    world.stream().produce(200);
    let first = start(world.launch("first"));
    world.wait_until_done(LONG);
    let other = world.sibling();
    let mut second = start(in_the_group_of(&world, other.launch("second")));
    let status = second.wait(SOON);
    assert_eq!(status.code(), Some(GROUP_CODE));
    let both = [&world, &other].map(|world| world.db.one("SELECT current_database()::text"));
    let [mine, theirs]: [String; 2] = both;
    assert!(second.has_logged(&[&world.group("journal"), &mine, &theirs, "group_prefix"]));
    assert!(!first.has_logged(&["revoked"]));
    assert_goes_on(&world, first);
}

fn in_the_group_of<'w>(world: &World, launch: Launch<'w>) -> Launch<'w> {
    let group = world.group("journal");
    let (prefix, _) = group.rsplit_once('.').unwrap();
    launch.env("TIDEGATE__KAFKA__GROUP_PREFIX", prefix)
}

// I6: each database would be told of a part of the records, and none would miss any.
#[test]
fn a_deployment_with_another_database_is_kept_out_of_the_group() {
    two_databases(|launch| launch.start());
}

#[test]
fn a_deployment_with_another_database_is_kept_out_of_an_eager_group() {
    two_databases(|launch| launch.eager_protocol().start());
}

// I6: neither has seen the other one before it joined.
#[test]
fn of_two_deployments_that_start_at_once_one_at_most_goes_on() {
    let world = World::journal(4);
    world.stream().produce(200);
    let other = world.sibling();
    let mut processes = [
        world.launch("a"),
        in_the_group_of(&world, other.launch("b")),
    ]
    .map(Launch::start);
    wait_until(LONG, "one has ended", || {
        processes.iter_mut().any(|process| !process.is_running())
    });
    for process in &mut processes {
        if !process.is_running() {
            assert_eq!(process.wait(SOON).code(), Some(GROUP_CODE));
        }
    }
}

// I10: no answer about a topic that is gone is waited for.
#[test]
fn a_stop_after_the_topic_was_deleted_ends_in_time() {
    let world = World::journal(3);
    world.stream().produce(200);
    let process = world.start("a");
    world.wait_until_done(LONG);
    delete(&[world.incoming()], &[]);
    process.wait_for_log(LONG, &["UnknownTopicOrPartition"]);
    process.stop();
}
