//! Who may be in a group, and what becomes of those who may not.

use std::time::Duration;

use crate::harness::{LONG, Launch, Process, World, wait_until};

/// How soon a process that may not be a member has ended.
const SOON: Duration = Duration::from_secs(10);

const INSTANCE_ID_CODE: i32 = 77;

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
