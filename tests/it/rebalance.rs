//! Partitions change hands.

use std::time::Duration;

use crate::harness::{
    LONG, Launch, Process, World, commit_offsets, committed_offsets, delete, end_offsets,
    wait_until,
};

/// How soon a group has shared its partitions after the last member came or went.
const SETTLED: Duration = Duration::from_secs(30);

// I3: proved in the database. Both are in the middle of the same batch, and the position is where both
// of them expect it: only the claim tells them apart.
#[test]
pub(crate) fn a_stale_owner_cannot_commit() {
    let world = World::journal(1);
    world.stream().produce(100);
    let idle = "TIDEGATE__POSTGRES__IDLE_IN_TRANSACTION_TIMEOUT";
    let stale = world
        .launch("stale")
        .env(idle, "60s") // what is to stop it is the fence
        .failpoints("apply-before-advance=1*sleep(9000)")
        .start();
    wait_until(LONG, "the first owner is amid a batch", || {
        world.is_amid_batch("journal", &stale)
    });
    stale.signal("STOP");

    let newest = world
        .launch("newest")
        .env(idle, "60s")
        .failpoints("apply-before-advance=1*sleep(12000)")
        .start();
    wait_until(LONG, "the second owner is amid the same batch", || {
        world.is_owned_by("journal", &newest) && world.is_amid_batch("journal", &newest)
    });
    stale.signal("CONT");
    stale.wait_for_log(LONG, &["batch refused", "lost to"]);
    assert_eq!(world.progress(), 0, "nobody has committed yet");

    world.assert_exact();
}

// I3, I4: a process that sleeps at any moment under load, and wakes when all is somebody else's.
#[test]
pub(crate) fn a_process_that_slept_through_a_rebalance_changes_nothing() {
    let world = World::ledger(4);
    let feeder = world.stream().feed(600);
    let sleeper = world.launch("sleeper").batch_records_max(50).start();
    let other = world.launch("other").batch_records_max(50).start();
    for projection in ["balances", "turnover", "journal"] {
        wait_until(LONG, "both have partitions", || {
            world.has_some_of(projection, &sleeper) && world.has_some_of(projection, &other)
        });
    }
    let target = world.progress() + 2_000;
    wait_until(LONG, "both are busy", || world.progress() >= target);
    sleeper.signal("STOP");
    for projection in ["balances", "turnover", "journal"] {
        wait_until(LONG, "the other has all partitions", || {
            world.is_owned_by(projection, &other)
        });
    }
    let target = world.progress() + 1_000;
    wait_until(LONG, "the other goes on", || world.progress() >= target);
    sleeper.signal("CONT");
    wait_until(LONG, "the sleeper has noticed", || {
        let noticed = [
            "batch refused",
            "fenced while idle",
            "connection given up",
            "revoked",
        ];
        noticed.iter().any(|word| sleeper.has_logged(&[word]))
    });
    wait_until(LONG, "the sleeper has partitions again", || {
        world.has_some_of("journal", &sleeper)
    });
    feeder.finish();
    world.assert_exact();
}

// I3, I4: the first owner gets a partition back that it knew, and goes on from where the other one came.
#[test]
fn a_partition_that_comes_back_repeats_and_skips_nothing() {
    there_and_back(|launch| launch.start());
}

// I3, I4: the same where the broker decides who gets what (KIP-848).
#[test]
fn a_partition_that_the_broker_gives_back_repeats_and_skips_nothing() {
    there_and_back(|launch| launch.consumer_protocol().start());
}

// I3, I4: the same where every rebalance takes everything from everybody, and every claim begins all
// partitions of its process anew.
#[test]
fn a_partition_that_comes_back_in_an_eager_group_repeats_and_skips_nothing() {
    there_and_back(|launch| launch.eager_protocol().start());
}

// I4, I6: a claim in an eager group begins the partitions of all other writers anew too, in the middle of
// their records. They see neither a gap nor anything twice.
#[test]
fn claims_in_an_eager_group_leave_other_writers_without_a_gap() {
    let world = World::ledger(6);
    let mut random = world.random();
    let feeder = world.stream().feed(1_500);
    let mut process = world
        .launch("a")
        .eager_protocol()
        .env("TIDEGATE__APPLY__WRITERS", 3)
        .batch_records_max(40)
        .start();
    wait_until(LONG, "it has begun", || world.progress() > 500);
    for _ in 0..25 {
        let target = world.progress() + random.i64(50..1_500);
        wait_until(LONG, "it goes on", || world.progress() >= target);
        // One of the writers, which claims its partitions again.
        let ended: i64 = world.db.one(&format!(
            "SELECT count(pg_terminate_backend(pid)) FROM
             (SELECT pid FROM pg_stat_activity WHERE datname = current_database()
              AND application_name LIKE 'tidegate%' ORDER BY pid OFFSET {} LIMIT 1) one",
            random.u8(..8)
        ));
        assert!(ended <= 1);
    }
    feeder.finish();
    world.assert_exact();
    assert!(process.has_logged(&["connection given up; claiming again"]));
    assert!(!process.has_logged(&["a record from before the position"]));
    assert!(process.is_running());
}

fn there_and_back(start: impl Fn(Launch<'_>) -> Process) {
    let world = World::ledger(3);
    let feeder = world.stream().feed(500);
    let first = start(world.launch("first"));
    wait_until(LONG, "the first works", || world.progress() > 500);
    for _ in 0..2 {
        let second = start(world.launch("second"));
        wait_until(LONG, "both have partitions", || {
            world.has_some_of("journal", &first) && world.has_some_of("journal", &second)
        });
        let target = world.progress() + 1_000;
        wait_until(LONG, "both work", || world.progress() >= target);
        second.stop();
        for projection in ["balances", "turnover", "journal"] {
            wait_until(LONG, "the first has all partitions again", || {
                world.is_owned_by(projection, &first)
            });
        }
        let target = world.progress() + 500;
        wait_until(LONG, "the first goes on", || world.progress() >= target);
    }
    feeder.finish();
    world.assert_exact();
}

/// Three more members come at once, and go at once, twice.
fn up_and_down(start: impl Fn(Launch<'_>) -> Process) {
    const PARTITIONS: i32 = 8;
    let world = World::journal(PARTITIONS);
    let feeder = world.stream().feed(600);
    let first = start(world.launch("first"));
    wait_until(LONG, "the first works", || world.progress() > 300);
    for _ in 0..2 {
        let names = ["second", "third", "fourth"];
        let others: Vec<Process> = names.map(|name| start(world.launch(name))).into();
        wait_until(SETTLED, "each has its share", || {
            let share = |process| world.owned_by("journal", process) == PARTITIONS / 4;
            share(&first) && others.iter().all(share)
        });
        let target = world.progress() + 500;
        wait_until(LONG, "work goes on", || world.progress() >= target);
        others.iter().for_each(|process| process.signal("TERM"));
        others.into_iter().for_each(Process::expect_stopped);
        wait_until(SETTLED, "the first has everything again", || {
            world.owned_by("journal", &first) == PARTITIONS
        });
        let target = world.progress() + 500;
        wait_until(LONG, "work goes on", || world.progress() >= target);
    }
    feeder.finish();
    world.assert_exact();
}

// I3, I10: nobody idles, and nobody waits for a session to end.
#[test]
fn members_that_come_and_go_at_once_settle() {
    up_and_down(|launch| launch.start());
}

#[test]
fn members_that_come_and_go_at_once_settle_in_an_eager_group() {
    up_and_down(|launch| launch.eager_protocol().start());
}

#[test]
fn members_that_come_and_go_at_once_settle_where_the_broker_decides() {
    up_and_down(|launch| launch.consumer_protocol().start());
}

// I7: the group's offsets are a copy for lag tools.
#[test]
fn what_is_mirrored_never_exceeds_the_position_and_is_never_read() {
    let world = World::journal(3);
    let feeder = world.stream().feed(800);
    let process = world.launch("a").batch_records_max(40).start();
    let group = world.group("journal");
    let mirrored = || committed_offsets(&group, world.incoming(), 3);
    let stored = |partition: &i32| world.positions()[&("journal".to_owned(), *partition)];
    let mut looks = 0;
    wait_until(LONG, "enough was mirrored", || {
        // Read before the position, which only grows.
        let mirrored = mirrored();
        for (partition, offset) in &mirrored {
            let stored = stored(partition);
            assert!(
                *offset <= stored,
                "{partition}: {offset} is mirrored, {stored} is stored"
            );
        }
        looks += usize::from(!mirrored.is_empty());
        looks > 40
    });
    feeder.finish();
    world.wait_until_done(LONG);
    let ends = end_offsets(world.incoming(), 3);
    wait_until(LONG, "everything is mirrored", || mirrored() == ends);
    process.stop();

    // Somebody's tool sets them to something else.
    let wrong = ends
        .iter()
        .map(|(p, end)| (*p, if p % 2 == 0 { 0 } else { end + 7 }));
    commit_offsets(&group, world.incoming(), &wrong.collect());
    world.stream().produce(300);
    let _again = world.start("a");
    world.assert_exact();
    let ends = end_offsets(world.incoming(), 3);
    wait_until(LONG, "the claim has mirrored the truth", || {
        mirrored() == ends
    });
}

// I7: what a batch that outlasts its revoke has to say is old, and the next owner has said more.
#[test]
fn a_batch_that_outlasts_its_revoke_does_not_overwrite_the_mirror() {
    let world = World::journal(2);
    world.stream().produce(40);
    let slow = world
        .launch("slow")
        .env("TIDEGATE__APPLY__WRITERS", 1)
        .env("TIDEGATE__APPLY__DRAIN_MAX", "200ms")
        // One batch of both partitions.
        .env("TIDEGATE__APPLY__BATCH_LINGER", "1s")
        .failpoints("apply-after-commit=1*sleep(12000)")
        .start();
    wait_until(LONG, "it has applied what there is", || {
        world.positions().len() == 2 && world.progress() == 40
    });
    world.stream().produce(200);
    let ends = end_offsets(world.incoming(), 2);
    let mirrored = || committed_offsets(&world.group("journal"), world.incoming(), 2);
    let quick = world.start("quick");
    wait_until(LONG, "the other has mirrored its partition", || {
        mirrored().iter().any(|(p, next)| ends[p] == *next)
    });
    assert!(world.has_some_of("journal", &quick));
    slow.wait_for_log(LONG, &["applied"]);
    // It wakes up, and mirrors what it still has along with whatever it has to say of what it had.
    world.wait_until_done(LONG);
    slow.stop();
    assert_eq!(mirrored(), ends);
    quick.stop();
    world.assert_exact();
}

// I7: never read, also where there are none any more.
#[test]
fn offsets_that_the_group_has_lost_change_nothing() {
    let world = World::journal(2);
    world.stream().produce(100);
    let process = world.start("a");
    world.wait_until_done(LONG);
    process.stop();
    let group = world.group("journal");
    wait_until(LONG, "the group and its offsets are gone", || {
        delete(&[], &[&group]);
        committed_offsets(&group, world.incoming(), 2).is_empty()
    });
    world.stream().produce(50);
    let again = world.start("a");
    world.assert_exact();
    assert!(!again.has_logged(&["next=0"]));
}

// I10: not one of its records is missed, although they were written before the member knew of it, and although
// the projection began at the log's end.
#[test]
fn a_partition_that_appears_later_begins_at_its_oldest_record() {
    let mut world = World::journal(1);
    world.change_projections("gate    =", "start = \"latest\"\ngate =");
    let _process = world
        .launch("a")
        .option("topic.metadata.refresh.interval.ms", "3000")
        .start();
    world.wait_until_done(LONG);
    world.stream().produce(20);
    world.wait_until_done(LONG);
    world.add_partitions(3);
    world.stream().produce(50);
    wait_until(LONG, "the new partitions are known", || {
        world.positions().len() == 3
    });
    world.assert_exact();
}
