//! A build under way: the service's writers, within bounds.
//!
//! The bounds are the live generation's positions, read over and over. They only ever lag behind the truth, so a build
//! that keeps within them is never ahead: every record that it applies was decided by a live generation first, and what
//! of it may still be sent is known (I5). Whoever has a builder must call [`Builder::look`] again and again: nothing
//! goes on without.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{RebuildError, Rebuilder};
use crate::engine::Class;
use crate::kafka::{self, Assignment, GroupProtocol, Joined, Member, MemberError, MemberSettings};
use crate::runtime::claim::Role;
use crate::runtime::reset::topic_ids;
use crate::runtime::service::{Error as RunError, Service};
use crate::runtime::writer::Bounds;
use crate::store::generation::{self, Beside};
use crate::store::position::{self, Mark};
use crate::store::{self, Timeouts};
use crate::types::{NextOffset, TopicPartition};

/// How often it is asked whether the generation is still being built.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long to wait before the database is asked again that did not answer.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long a process of the service may take to let go of a build that a person wants.
const GIVE_WAY_WITHIN: Duration = Duration::from_secs(20);

/// So near a build must be before the live generation is held up for it.
pub(super) const NEAR: i64 = 1_000;

/// How far a partition is.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub(crate) partition: TopicPartition,
    pub(crate) from: i64,
    pub(crate) next: i64,
    /// The same, with what this process has taken in and not written; to be shown, and nothing else.
    pub(crate) taken_in: i64,
    /// Where the live generation stands.
    pub(crate) live: i64,
    /// Whether the build has met it: a partition that is new to it has no position there for a moment.
    pub(crate) is_met: bool,
}

/// How far a build is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) shares: Vec<Share>,
    pub(crate) consumed: i64,
    pub(crate) parked: i64,
    /// The first partition that is halted, and why.
    pub(crate) halted: Option<(TopicPartition, String)>,
    /// A topic of which the two generations have read different logs.
    pub(crate) other_log: Option<String>,
}

impl Progress {
    /// What of the two generations' positions concerns a build.
    pub(crate) fn of(marks: &[Mark], building: i32, topics: &[String]) -> Self {
        let built = |partition: &TopicPartition| {
            let mut of_build = marks.iter().filter(|mark| mark.generation == building);
            of_build.find(|mark| mark.of() == *partition)
        };
        let live = marks.iter().filter(|mark| mark.generation != building);
        let share = |mark: &Mark| {
            let partition = mark.of();
            let own = built(&partition);
            // One that has no row yet begins where the log does.
            let next = own.map_or(mark.first_offset.unwrap_or(0), |own| own.next_offset);
            Share {
                from: own
                    .and_then(|own| own.first_offset)
                    .unwrap_or(next)
                    .min(next),
                next,
                taken_in: next,
                live: mark.next_offset,
                is_met: own.is_some(),
                partition,
            }
        };
        let own = || marks.iter().filter(|mark| mark.generation == building);
        Self {
            shares: live
                .filter(|mark| topics.contains(&mark.topic))
                .map(share)
                .collect(),
            other_log: own()
                .find(|mark| {
                    let mut of_live = marks.iter().filter(|other| other.generation != building);
                    of_live.any(|other| {
                        other.of() == mark.of() && other.incarnation != mark.incarnation
                    })
                })
                .map(|mark| mark.topic.clone()),
            consumed: own().map(|mark| mark.consumed).sum(),
            parked: own().map(|mark| mark.parked).sum(),
            halted: own()
                .find(|mark| mark.halted)
                .map(|mark| (mark.of(), mark.cause.clone())),
        }
    }

    /// Offsets that are left.
    pub(crate) fn remaining(&self) -> i64 {
        self.shares
            .iter()
            .map(|share| (share.live - share.next).max(0))
            .sum()
    }

    /// Whether a build has caught up, which need not be level where more comes in all the time: it has come near, and has
    /// reached what the live generation had passed then. `near` remembers that.
    pub(crate) fn has_caught_up(&self, near: &mut Option<Self>) -> bool {
        if self.remaining() > NEAR {
            *near = None;
            return false;
        }
        let near = near.get_or_insert_with(|| self.clone());
        near.shares.iter().all(|then| {
            let now = self
                .shares
                .iter()
                .find(|now| now.partition == then.partition);
            now.is_some_and(|now| now.next >= then.live)
        })
    }

    /// Whether it stands where the live generation stands, in every partition.
    pub(crate) fn is_level(&self) -> bool {
        self.shares
            .iter()
            .all(|share| share.is_met && share.next == share.live)
    }
}

/// A build under way.
pub(crate) struct Builder {
    pub(super) generation: Beside,
    pub(super) live: i32,
    service: Arc<Service>,
    projection: String,
    topics: Vec<String>,
    connection: Option<PgConnection>,
    member: Member,
    /// None once it has.
    ended: Option<oneshot::Receiver<Result<(), MemberError>>>,
    writers: JoinSet<()>,
    /// Looks for partitions that stand still although there are records.
    watchdog: JoinHandle<Infallible>,
    gone: CancellationToken,
    bounds: watch::Sender<Bounds>,
    wakes: Vec<Arc<Notify>>,
    assigned: BTreeSet<TopicPartition>,
    asked: Instant,
    /// Somebody else waits to build.
    pub(super) is_wanted: bool,
}

impl Rebuilder {
    /// Begins to work on a generation that is being built.
    pub(crate) async fn build(&self, generation: Beside) -> Result<Builder, RebuildError> {
        let service = Arc::clone(&self.service);
        service.settle(&self.projection).await?;
        let mut connection = service.connect().await?;
        let live = self.live(&mut connection).await?.generation;
        if !self.keep_others_away(&mut connection, &generation).await? {
            return Err(RebuildError::Elsewhere(self.name().to_owned()));
        }
        // What had halted it may be repaired by now.
        position::resume(&mut connection, self.name(), generation.number, false).await?;
        // Known from the start, so that no claim waits for it.
        let ids = topic_ids(&service.cluster, &self.projection.topics).await?;
        let config = &service.config;
        let Joined {
            member,
            inputs,
            ended,
        } = Member::join(MemberSettings {
            connection: &config.kafka,
            protocol: GroupProtocol::Classic,
            instance_id: None,
            group: service.group(&self.projection),
            client_id: format!("tidegate-{}-rebuild", service.owner),
            assignment: Assignment::ByHand,
            writers: config.rebuild.writers,
            drain_max: config.apply.drain_max,
            prefetch: service.prefetch(&self.projection).await,
        })
        .map_err(RunError::from)?;
        let (bounds, bound) = watch::channel(Bounds::new());
        let wakes = inputs
            .iter()
            .map(|inputs| Arc::clone(&inputs.wake))
            .collect();
        let gone = CancellationToken::new();
        let role = (Role::Build(generation.number), Some(bound));
        let writers = service.writers(&self.projection, role, ids, &member, inputs, &gone);
        Ok(Builder {
            live,
            generation,
            projection: self.name().to_owned(),
            topics: self.projection.topics.clone(),
            connection: Some(connection),
            watchdog: tokio::spawn(kafka::watch(member.clone(), service.cluster.clone())),
            member,
            ended: Some(ended),
            writers,
            gone,
            bounds,
            wakes,
            assigned: BTreeSet::new(),
            asked: Instant::now(),
            is_wanted: false,
            service,
        })
    }

    /// Only one process at a time builds. The service lets go of what was left to it as soon as it sees that somebody
    /// waits.
    async fn keep_others_away(
        &self,
        connection: &mut PgConnection,
        generation: &Beside,
    ) -> Result<bool, RebuildError> {
        if self.in_service || generation.detached().is_none() {
            return Ok(generation::keep_others_from_building(connection, self.name()).await?);
        }
        let timeouts = Timeouts {
            lock: GIVE_WAY_WITHIN,
            statement: 2 * GIVE_WAY_WITHIN,
            ..self.service.database.timeouts
        };
        Ok(generation::wait_to_build(connection, self.name(), &timeouts).await?)
    }
}

impl Builder {
    /// Lets the build go on to where the live generation stands now, and says how far it is. Waits for a database that
    /// does not answer, however long that takes.
    pub(crate) async fn look(&mut self) -> Result<Progress, RebuildError> {
        loop {
            if self.service.stop.is_cancelled() {
                return Err(RebuildError::Stopped);
            }
            match self.look_once().await {
                Err(RebuildError::Store(error)) if error.class() == Class::Transient => {
                    warn!(projection = self.projection, %error, "the build's positions cannot be read; trying again");
                    self.connection = None;
                    tokio::select! {
                        () = self.service.stop.cancelled() => {}
                        () = tokio::time::sleep(AGAIN_AFTER) => {}
                    }
                }
                looked => return looked,
            }
        }
    }

    async fn look_once(&mut self) -> Result<Progress, RebuildError> {
        if let Some(ended) = &mut self.ended {
            match ended.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => {}
                ended => {
                    self.ended = None;
                    return Err(match ended {
                        Ok(Err(error)) => RebuildError::Member(error),
                        _ => RebuildError::Panicked,
                    });
                }
            }
        }
        if self.writers.try_join_next().is_some() {
            return Err(RebuildError::Panicked);
        }
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let mut connection = self.service.connect().await?;
                if !generation::keep_others_from_building(&mut connection, &self.projection).await?
                {
                    return Err(RebuildError::Elsewhere(self.projection.clone()));
                }
                none.insert(connection)
            }
        };
        let limit = self.service.database.timeouts.statement;
        if self.asked.elapsed() >= ASK_EVERY {
            self.asked = Instant::now();
            let beside = generation::beside(connection, &self.projection);
            let beside = store::within("reading generations", limit, beside).await?;
            let generation = self.generation.number;
            let mine = |beside: &Beside| beside.is_building() && beside.number == generation;
            let beside = beside.into_iter().find(mine);
            self.generation = beside.ok_or(RebuildError::Gone { generation })?;
            let waits = generation::somebody_waits_to_build(connection);
            self.is_wanted = store::within("looking who waits", limit, waits).await?;
        }
        let generations = [self.live, self.generation.number];
        let marks = position::marks(connection, &self.projection, &generations);
        let marks = store::within("reading positions", limit, marks).await?;
        let mut progress = Progress::of(&marks, self.generation.number, &self.topics);
        for (partition, next) in self.service.board.next_offsets(&self.projection) {
            let mut shares = progress.shares.iter_mut();
            if let Some(share) = shares.find(|share| share.partition == partition) {
                share.taken_in = next.clamp(share.next, share.live.max(share.next));
            }
        }
        if let Some((partition, cause)) = progress.halted.clone() {
            return Err(RebuildError::Halted { partition, cause });
        }
        if let Some(topic) = progress.other_log.clone() {
            let generation = self.generation.number;
            return Err(RebuildError::OtherLog { topic, generation });
        }
        self.take(&progress);
        Ok(progress)
    }

    fn take(&mut self, progress: &Progress) {
        let bounds: Bounds = progress
            .shares
            .iter()
            .map(|share| (share.partition.clone(), NextOffset::from_raw(share.live)))
            .collect::<BTreeMap<_, _>>();
        let new: Vec<TopicPartition> = bounds
            .keys()
            .filter(|partition| !self.assigned.contains(partition))
            .cloned()
            .collect();
        let moved = self.bounds.send_if_modified(|known| {
            let moved = *known != bounds;
            *known = bounds;
            moved
        });
        if !new.is_empty() {
            self.assigned.extend(new.iter().cloned());
            self.member.assign(new);
        }
        if moved {
            self.wakes.iter().for_each(|wake| wake.notify_one());
        }
    }

    /// Gives up what is under way. What is committed stays.
    pub(crate) async fn stop(mut self) {
        self.watchdog.abort();
        self.member.stop();
        if let Some(ended) = self.ended {
            let _ = ended.await;
        }
        self.gone.cancel();
        while self.writers.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(positions: &[(i64, i64)]) -> Progress {
        let share = |(partition, (next, live)): (i32, &(i64, i64))| Share {
            partition: TopicPartition::new("t", partition),
            from: 0,
            next: *next,
            taken_in: *next,
            live: *live,
            is_met: true,
        };
        Progress {
            shares: (0..).zip(positions).map(share).collect(),
            ..Progress::default()
        }
    }

    #[test]
    fn a_build_that_is_near_and_does_not_move_has_not_caught_up() {
        let mut near = None;
        for _ in 0..3 {
            assert!(!at(&[(0, 3)]).has_caught_up(&mut near));
        }
    }

    #[test]
    fn a_build_has_caught_up_that_follows_a_stream_without_end() {
        let mut near = None;
        assert!(!at(&[(0, 10_000)]).has_caught_up(&mut near));
        assert!(!at(&[(9_500, 10_200)]).has_caught_up(&mut near));
        assert!(!at(&[(10_199, 10_900)]).has_caught_up(&mut near));
        assert!(at(&[(10_200, 10_900)]).has_caught_up(&mut near));
    }

    #[test]
    fn what_falls_behind_again_is_not_near() {
        let mut near = None;
        assert!(!at(&[(100, 200)]).has_caught_up(&mut near));
        assert!(!at(&[(200, 5_000)]).has_caught_up(&mut near));
        assert!(!at(&[(4_900, 5_000)]).has_caught_up(&mut near));
    }

    #[test]
    fn every_partition_must_be_level_and_met() {
        assert!(at(&[(3, 3), (0, 0)]).is_level());
        assert!(!at(&[(3, 3), (4, 5)]).is_level());
        let mut new = at(&[(3, 3)]);
        new.shares[0].is_met = false;
        assert!(!new.is_level());
    }
}
