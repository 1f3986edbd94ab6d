//! Members against librdkafka's mock cluster, in this process: what the client does when brokers, leaders,
//! connections and the group's coordinator come and go. Exact figures against a real Kafka are in `tests/it`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::mocking::{MockCluster, MockCoordinator};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use super::commit::MIRROR_EVERY;
use super::{
    Assignment, Connection, Fetched, GroupProtocol, Input, Inputs, Joined, Member, MemberError,
    MemberSettings, Polled, Queue,
};
use crate::types::{NextOffset, TopicPartition};

const LONG: Duration = Duration::from_secs(60);
const TOPIC: &str = "t";
const PROTOCOLS: [GroupProtocol; 3] = [
    GroupProtocol::Classic,
    GroupProtocol::Eager,
    GroupProtocol::Consumer,
];

#[track_caller]
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(
            began.elapsed() < LONG,
            "waited {LONG:?} in vain until {what}"
        );
        thread::sleep(Duration::from_millis(2));
    }
}

fn partition(number: i32) -> TopicPartition {
    TopicPartition::new(TOPIC, number)
}

/// A mock cluster with one topic.
struct Brokers {
    cluster: MockCluster<'static, DefaultProducerContext>,
    partitions: i32,
}

impl Brokers {
    fn new(brokers: i32, partitions: i32) -> Self {
        let cluster = MockCluster::new(brokers).unwrap();
        cluster.create_topic(TOPIC, partitions, brokers).unwrap();
        Self {
            cluster,
            partitions,
        }
    }

    fn producer(&self) -> ThreadedProducer<DefaultProducerContext> {
        ClientConfig::new()
            .set("bootstrap.servers", self.cluster.bootstrap_servers())
            .set("broker.address.family", "v4")
            .set("enable.metrics.push", "false")
            .set("linger.ms", "5")
            .create()
            .unwrap()
    }

    /// Puts this many records into each partition. They are in the log when this returns.
    fn produce(&self, records: i32) {
        let producer = self.producer();
        for _ in 0..records {
            for number in 0..self.partitions {
                let record = BaseRecord::<(), [u8]>::to(TOPIC).partition(number);
                producer.send(record.payload(b"{}")).unwrap();
            }
            if producer.in_flight_count() > 50_000 {
                producer.flush(LONG).unwrap();
            }
        }
        producer.flush(LONG).unwrap();
    }

    fn join(&self, protocol: GroupProtocol) -> TestMember {
        let mut options = BTreeMap::new();
        let mut option = |key: &str, value: &str| options.insert(key.to_owned(), value.to_owned());
        option("broker.address.family", "v4");
        option("reconnect.backoff.max.ms", "200");
        option("fetch.wait.max.ms", "10");
        if protocol != GroupProtocol::Consumer {
            option("session.timeout.ms", "6000");
            option("heartbeat.interval.ms", "200");
        }
        let connection = Connection {
            bootstrap_servers: self.cluster.bootstrap_servers(),
            options,
        };
        let joined = Member::join(MemberSettings {
            connection: &connection,
            protocol,
            instance_id: None,
            group: "g".to_owned(),
            client_id: "test".to_owned(),
            assignment: Assignment::Group(vec![TOPIC.to_owned()]),
            writers: 1,
            drain_max: Duration::from_secs(2),
            prefetch: 64 << 20,
        });
        let Joined {
            member,
            mut inputs,
            ended,
        } = joined.unwrap();
        TestMember {
            member,
            inputs: inputs.remove(0),
            ended,
            assigned: BTreeSet::new(),
            queues: BTreeMap::new(),
            revokes: 0,
        }
    }

    /// A member that has all partitions.
    fn join_alone(&self, protocol: GroupProtocol) -> TestMember {
        let mut member = self.join(protocol);
        member.wait_for_all(self.partitions);
        member
    }
}

/// A member, with this thread in the place of its writer.
struct TestMember {
    member: Member,
    inputs: Inputs,
    ended: tokio::sync::oneshot::Receiver<Result<(), MemberError>>,
    assigned: BTreeSet<i32>,
    /// What is fetched, until it is revoked.
    queues: BTreeMap<i32, Arc<Queue>>,
    revokes: usize,
}

impl TestMember {
    /// Takes notice of what the group has said.
    fn look(&mut self) -> &BTreeSet<i32> {
        while let Ok(input) = self.inputs.inputs.try_recv() {
            match input {
                Input::Assigned(new) => {
                    self.assigned
                        .extend(new.iter().map(TopicPartition::partition));
                }
                Input::Revoked { partitions, .. } => {
                    self.revokes += 1;
                    for gone in partitions {
                        self.assigned.remove(&gone.partition());
                        self.queues.remove(&gone.partition());
                    }
                }
            }
        }
        &self.assigned
    }

    fn wait_for_all(&mut self, partitions: i32) {
        wait_until("it has all partitions", || {
            self.look().iter().copied().eq(0..partitions)
        });
    }

    /// As a writer does it: waits for the partition, then asks for it.
    #[track_caller]
    fn fetch(&mut self, number: i32, from: i64) -> Arc<Queue> {
        let (mut answer, mut queue) = (None, None);
        let mut revokes = 0;
        wait_until("the fetch is answered", || {
            self.look();
            // What was answered before belongs to an assignment that is over.
            if std::mem::replace(&mut revokes, self.revokes) != self.revokes {
                answer = None;
            }
            let asked = answer.get_or_insert_with(|| {
                let from = NextOffset::from_raw(from);
                self.member.fetch(&partition(number), from)
            });
            match asked.try_recv() {
                Ok(Fetched::Yes(fetched)) => queue = Some(fetched),
                Ok(Fetched::NotAssigned) => answer = None,
                Ok(Fetched::Failed(error)) => panic!("{error}"),
                Err(_) => {}
            }
            queue.is_some()
        });
        let queue = queue.unwrap();
        self.queues.insert(number, Arc::clone(&queue));
        queue
    }

    /// As `take`, and fetches again what was revoked meanwhile.
    #[track_caller]
    fn take(&mut self, number: i32, from: i64, last: i64) {
        let mut next = from;
        wait_until("the records have come", || {
            self.look();
            let queue = match self.queues.get(&number) {
                Some(queue) => Arc::clone(queue),
                None => self.fetch(number, next),
            };
            for offset in poll(&queue, last + 1 - next) {
                assert_eq!(offset, next);
                next += 1;
            }
            next > last
        });
    }

    fn stop(mut self) {
        self.member.stop();
        let mut ended = None;
        wait_until("it has left", || {
            self.look();
            ended = self.ended.try_recv().ok();
            ended.is_some()
        });
        assert!(matches!(ended, Some(Ok(()))), "{ended:?}");
    }
}

/// The offsets of the next records that are there now, at most so many.
#[track_caller]
fn poll(queue: &Queue, max: i64) -> Vec<i64> {
    let polled = queue.take(usize::try_from(max).unwrap(), false).into_iter();
    let offset = |polled| match polled {
        Polled::Record(record) => Some(record.offset()),
        Polled::Nothing | Polled::Failed(_) => None,
        Polled::StandsStill { end } => panic!("stands still before {end}"),
        Polled::OutOfRange => panic!("out of range"),
        Polled::Unreadable(error) => panic!("{error}"),
    };
    polled.filter_map(offset).collect()
}

/// Takes records until the one at `last`: exactly those from `from` on, each once.
#[track_caller]
fn take(queue: &Queue, from: i64, last: i64) {
    let mut next = from;
    wait_until("the records have come", || {
        for offset in poll(queue, last + 1 - next) {
            assert_eq!(offset, next);
            next += 1;
        }
        next > last
    });
}

/// At the same time, since each group waits 3 s for its first members.
fn with_each_protocol(test: impl Fn(GroupProtocol) + Sync) {
    thread::scope(|scope| {
        for protocol in PROTOCOLS {
            let test = &test;
            let thread = thread::Builder::new().name(protocol.to_string());
            thread.spawn_scoped(scope, move || test(protocol)).unwrap();
        }
    });
}

#[test]
fn members_that_come_and_go_share_all_partitions() {
    with_each_protocol(|protocol| {
        let brokers = Brokers::new(1, 4);
        let mut first = brokers.join_alone(protocol);
        let mut second = brokers.join(protocol);
        wait_until("both have two", || {
            first.look().len() == 2 && second.look().len() == 2
        });
        assert!(first.assigned.is_disjoint(&second.assigned));
        second.stop();
        first.wait_for_all(4);
        first.stop();
    });
}

// A batch grows by what is taken at once.
#[test]
fn small_records_are_taken_many_at_once_and_large_ones_one_by_one() {
    let (large, small) = (20, 500);
    let brokers = Brokers::new(1, 1);
    let producer = brokers.producer();
    let sizes = std::iter::repeat_n(20_000, large).chain(std::iter::repeat_n(2, small));
    for size in sizes {
        let payload = vec![b'x'; size];
        let record = BaseRecord::<(), [u8]>::to(TOPIC).partition(0);
        producer.send(record.payload(&payload)).unwrap();
    }
    producer.flush(LONG).unwrap();
    let mut member = brokers.join_alone(GroupProtocol::Classic);
    let queue = member.fetch(0, 0);
    let mut taken = Vec::new();
    wait_until("all have come", || {
        taken.push(poll(&queue, 1_000).len());
        taken.iter().sum::<usize>() == large + small
    });
    taken.retain(|count| *count > 0);
    assert_eq!(taken[..large], [1; 20], "{taken:?}");
    assert!(taken.iter().any(|count| *count > 1), "{taken:?}");
    member.stop();
}

// Whatever was fetched before, and however far the queue was read: the first record is the one asked for.
#[test]
fn a_fetch_begins_at_exactly_the_offset_asked_for() {
    with_each_protocol(|protocol| {
        let brokers = Brokers::new(1, 2);
        brokers.produce(1_000);
        let mut member = brokers.join_alone(protocol);
        let mut random = fastrand::Rng::with_seed(63);
        for _ in 0..200 {
            let (number, from) = (random.i32(0..2), random.i64(0..1_000));
            let last = (from + random.i64(0..20)).min(999);
            let queue = member.fetch(number, from);
            take(&queue, from, last);
        }
        member.stop();
    });
}

// A fetch under eager assigns the whole list. What others take at that very moment would come twice.
#[test]
fn a_fetch_leaves_the_records_of_other_partitions_complete_and_in_order() {
    with_each_protocol(|protocol| {
        let brokers = Brokers::new(1, 3);
        brokers.produce(20_000);
        let mut member = brokers.join_alone(protocol);
        let queues = [member.fetch(1, 0), member.fetch(2, 0)];
        let readers = queues.map(|queue| {
            thread::spawn(move || {
                // Not as fast as possible, so that many fetches meet many records.
                for offset in 0..20_000 {
                    take(&queue, offset, offset);
                    thread::sleep(Duration::from_micros(20));
                }
            })
        });
        let mut fetches = 0;
        while !readers.iter().any(JoinHandle::is_finished) {
            let queue = member.fetch(0, fetches);
            take(&queue, fetches, fetches + 2);
            fetches += 1;
        }
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(fetches > 20, "{fetches} fetches only");
        member.stop();
    });
}

/// Reads a partition of three brokers' cluster while it is troubled again and again: nothing is left out,
/// nothing comes twice.
fn with_trouble(trouble: impl Fn(&Brokers, i32) + Sync) {
    with_each_protocol(|protocol| {
        let brokers = Brokers::new(3, 1);
        let mut member = brokers.join_alone(protocol);
        for round in 0..20 {
            brokers.produce(25);
            trouble(&brokers, round);
            brokers.produce(25);
            let from = i64::from(round) * 50;
            member.take(0, from, from + 49);
            assert!(member.ended.is_empty());
        }
        member.stop();
    });
}

#[test]
fn a_leader_that_moves_costs_no_record() {
    with_trouble(|brokers, round| {
        let leader = Some(1 + round % 3);
        let moved = brokers.cluster.partition_leader(TOPIC, 0, leader);
        moved.unwrap();
    });
}

#[test]
fn a_fetch_that_the_broker_refuses_is_tried_again() {
    use RDKafkaRespErr::*;
    let errors = [
        RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        RD_KAFKA_RESP_ERR_FENCED_LEADER_EPOCH,
        RD_KAFKA_RESP_ERR_UNKNOWN_LEADER_EPOCH,
        RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR,
        RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RD_KAFKA_RESP_ERR_UNKNOWN,
        // The connection is cut.
        RD_KAFKA_RESP_ERR__TRANSPORT,
        RD_KAFKA_RESP_ERR__TRANSPORT,
    ];
    with_trouble(|brokers, round| {
        let error = errors[usize::try_from(round).unwrap() % errors.len()];
        let api = RDKafkaApiKey::Fetch;
        brokers.cluster.request_errors(api, &[error]);
    });
}

// I10: what a writer's rule rests on, to claim anew after any error: the record at the error counts as passed until then.
#[test]
fn a_fetch_that_failed_is_right_again_once_it_is_made_anew() {
    let brokers = Brokers::new(1, 1);
    brokers.produce(10);
    let mut member = brokers.join_alone(GroupProtocol::Classic);
    member.take(0, 0, 9);
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN;
    brokers
        .cluster
        .request_errors(RDKafkaApiKey::Fetch, &[error]);
    let queue = Arc::clone(&member.queues[&0]);
    wait_until("the fetch has failed", || {
        let polled = queue.take(1, false);
        matches!(polled[..], [Polled::Failed(_)])
    });
    let passed = |member: &TestMember| {
        let passed = member.member.passed(&partition(0)).blocking_recv();
        passed.map(NextOffset::get)
    };
    assert_eq!(passed(&member), Ok(11));
    member.fetch(0, 10);
    brokers.produce(1);
    member.take(0, 10, 10);
    assert_eq!(passed(&member), Ok(11));
    member.stop();
}

#[test]
fn brokers_that_are_away_for_a_while_cost_no_record() {
    with_each_protocol(|protocol| {
        let brokers = Brokers::new(2, 1);
        let mut member = brokers.join_alone(protocol);
        for round in 0..5 {
            brokers.produce(50);
            let from = round * 50;
            member.take(0, from, from + 24);
            let all = 1..=2;
            all.clone()
                .for_each(|id| brokers.cluster.broker_down(id).unwrap());
            // What it has is the most that it gives.
            let began = Instant::now();
            let mut given = Vec::new();
            while began.elapsed() < Duration::from_millis(400) {
                given.extend(poll(&member.queues[&0], 100));
                assert!(member.ended.is_empty());
            }
            let next = from + 25 + i64::try_from(given.len()).unwrap();
            assert!(given.into_iter().eq(from + 25..next));
            all.for_each(|id| brokers.cluster.broker_up(id).unwrap());
            if next < from + 50 {
                member.take(0, next, from + 49);
            }
            assert!(member.ended.is_empty());
        }
        member.stop();
    });
}

#[test]
fn a_slow_broker_changes_nothing_but_the_time_it_takes() {
    with_each_protocol(|protocol| {
        let brokers = Brokers::new(1, 2);
        brokers.produce(500);
        let mut member = brokers.join_alone(protocol);
        let slow = Duration::from_millis(150);
        brokers.cluster.broker_round_trip_time(-1, slow).unwrap();
        for cycle in 0..20 {
            let from = cycle * 20;
            let queue = member.fetch(0, from);
            take(&queue, from, from + 9);
        }
        brokers
            .cluster
            .broker_round_trip_time(-1, Duration::ZERO)
            .unwrap();
        member.stop();
    });
}

/// Fetches and takes for a while, from offsets all over a log of 1000 records. Returns how long the slowest
/// of it took.
fn fetch_for(limit: Duration, member: &mut TestMember) -> Duration {
    let began = Instant::now();
    let mut fetches = 0;
    let mut longest = Duration::ZERO;
    while began.elapsed() < limit {
        let from = (fetches * 37) % 990;
        let asked = Instant::now();
        member.fetch(0, from);
        member.take(0, from, from + 4);
        longest = longest.max(asked.elapsed());
        fetches += 1;
    }
    longest
}

// The mirror is for lag tools. (That the instance is fenced is another matter, and welcome news.)
#[test]
fn whatever_a_commit_of_offsets_is_answered_records_go_on() {
    use RDKafkaRespErr::*;
    // These two make a classic member join anew. Where the broker decides, it answers only the second.
    let not_a_member = [
        RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION,
        RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID,
    ];
    let others = [
        RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS,
        RD_KAFKA_RESP_ERR_STALE_MEMBER_EPOCH,
        RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED,
        RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
        RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE,
        RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
        RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
        RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RD_KAFKA_RESP_ERR__TRANSPORT,
        RD_KAFKA_RESP_ERR_UNKNOWN,
    ];
    with_each_protocol(|protocol| {
        let brokers = Brokers::new(1, 2);
        brokers.produce(1_000);
        let mut member = brokers.join_alone(protocol);
        let skipped = usize::from(protocol == GroupProtocol::Consumer);
        for (round, error) in (1..).zip(not_a_member.into_iter().skip(skipped).chain(others)) {
            let api = RDKafkaApiKey::OffsetCommit;
            brokers.cluster.request_errors(api, &[error]);
            for number in 0..2 {
                let next = NextOffset::from_raw(round);
                member.member.mirror(&partition(number), next);
            }
            // Until it was surely sent.
            let limit = MIRROR_EVERY + Duration::from_millis(300);
            let longest = fetch_for(limit, &mut member);
            let joins_anew = not_a_member.contains(&error);
            let bound = if joins_anew {
                LONG
            } else {
                Duration::from_secs(5)
            };
            assert!(longest < bound, "{protocol} {error:?}: {longest:?}");
            assert!(member.ended.is_empty(), "{protocol} {error:?}");
        }
        member.stop();
    });
}

#[test]
fn a_member_whose_coordinator_is_away_goes_on_with_its_records() {
    with_each_protocol(|protocol| {
        let brokers = Brokers::new(2, 1);
        let group = MockCoordinator::Group("g".to_owned());
        brokers.cluster.partition_leader(TOPIC, 0, Some(1)).unwrap();
        brokers.cluster.coordinator(group, 2).unwrap();
        brokers.produce(1_000);
        let mut member = brokers.join_alone(protocol);
        member.take(0, 0, 499);
        brokers.cluster.broker_down(2).unwrap();
        member.take(0, 500, 999);
        assert!(fetch_for(MIRROR_EVERY, &mut member) < Duration::from_secs(5));
        member.fetch(0, 1_000);
        // From here on a fetch would wait for the commit that cannot be sent.
        member.member.mirror(&partition(0), NextOffset::from_raw(1));
        brokers.produce(200);
        member.take(0, 1_000, 1_199);
        brokers.cluster.broker_up(2).unwrap();
        fetch_for(MIRROR_EVERY, &mut member);
        assert!(member.ended.is_empty());
        member.stop();
    });
}
