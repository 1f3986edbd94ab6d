//! What is done to whom, and when: a pure function of the seed.
//!
//! Faults are dealt in rounds. A round has every kind, in random order, so that each meets each sooner or
//! later; one that lasts (a server that is down, a process that sleeps) is still there while the next
//! ones come.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::chaos::PROJECTIONS;

pub(super) const WORKERS_AT_FIRST: usize = 2;
pub(super) const PARTITIONS_AT_FIRST: i32 = 4;
const PARTITIONS_MAX: i32 = 16;
/// How many workers there are after each `Fault::Scale`: one, four, one, and as at first.
const SCALE: [usize; 4] = [1, 4, 1, WORKERS_AT_FIRST];

/// The kinds, each with its name and how often it comes in a round.
const FAULTS: [(Fault, &str, usize); 12] = [
    (Fault::Kill, "kill", 8),
    (Fault::Freeze, "freeze", 2),
    (Fault::Roll, "roll", 1),
    (Fault::Scale, "scale", 4),
    (Fault::Kafka, "kafka", 1),
    (Fault::Postgres, "postgres", 2),
    (Fault::Cut, "cut", 2),
    (Fault::Slow, "slow", 1),
    (Fault::Commit, "commit", 3),
    (Fault::Grow, "grow", 1),
    (Fault::Reset, "reset", 1),
    (Fault::Rebuild, "rebuild", 3),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A worker is killed, and started again at once.
    Kill,
    /// A worker sleeps for longer than its session in the group lasts.
    Freeze,
    /// One worker after the other is stopped in order and started again.
    Roll,
    /// Workers come and go.
    Scale,
    /// The broker is killed, and started again some time later.
    Kafka,
    /// Postgres is ended without a checkpoint, and started again some time later.
    Postgres,
    /// All connections to Postgres are cut.
    Cut,
    /// Every message to and from Postgres takes its time.
    Slow,
    /// Some COMMITs, or the answers to them, get lost.
    Commit,
    /// The topic gets another partition.
    Grow,
    /// A projection is reset.
    Reset,
    /// A projection is built beside, by a process that meets what comes next; one that is still at it is killed first.
    Rebuild,
}

impl Fault {
    /// The kinds of a list such as `kill,postgres`.
    pub(super) fn parse(list: &str) -> Vec<Self> {
        let find = |name: &str| {
            let found = FAULTS.iter().find(|(_, known, _)| *known == name);
            let names = FAULTS.map(|(_, name, _)| name).join(", ");
            found
                .unwrap_or_else(|| panic!("no fault `{name}`; there are {names}"))
                .0
        };
        list.split(',').map(|name| find(name.trim())).collect()
    }

    pub(super) fn all() -> Vec<Self> {
        FAULTS.iter().map(|(fault, ..)| *fault).collect()
    }
}

/// One thing that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Kill {
        worker: usize,
    },
    Freeze {
        worker: usize,
    },
    Thaw {
        worker: usize,
    },
    Roll,
    Scale {
        to: usize,
    },
    KillKafka,
    StartKafka,
    KillPostgres {
        by_signal: bool,
    },
    StartPostgres,
    Cut,
    /// Zero ends it.
    Slow {
        by: Duration,
    },
    LoseCommits {
        count: usize,
        answers: bool,
    },
    Grow {
        to: i32,
    },
    Reset {
        projection: &'static str,
    },
    Rebuild {
        projection: &'static str,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill { worker } => write!(f, "kill worker {worker}"),
            Self::Freeze { worker } => write!(f, "stop worker {worker} with SIGSTOP"),
            Self::Thaw { worker } => write!(f, "let worker {worker} go on"),
            Self::Roll => write!(f, "restart all workers in turn"),
            Self::Scale { to } => write!(f, "scale to {to}"),
            Self::KillKafka => write!(f, "kill the broker"),
            Self::StartKafka => write!(f, "start the broker"),
            Self::KillPostgres { by_signal: true } => write!(f, "kill the postmaster"),
            Self::KillPostgres { by_signal: false } => write!(f, "stop Postgres, mode immediate"),
            Self::StartPostgres => write!(f, "start Postgres"),
            Self::Cut => write!(f, "cut all connections to Postgres"),
            Self::Slow { by } if by.is_zero() => write!(f, "Postgres is quick again"),
            Self::Slow { by } => write!(f, "every message to and from Postgres takes {by:?}"),
            Self::LoseCommits {
                count,
                answers: true,
            } => {
                write!(f, "lose the answers to {count} commits")
            }
            Self::LoseCommits {
                count,
                answers: false,
            } => write!(f, "lose {count} commits"),
            Self::Grow { to } => write!(f, "{to} partitions"),
            Self::Reset { projection } => write!(f, "reset {projection}"),
            Self::Rebuild { projection } => write!(f, "rebuild {projection}"),
        }
    }
}

impl Action {
    /// How long it takes, about, with the time until work goes on after it.
    fn costs(self) -> Duration {
        let seconds = match self {
            Self::StartKafka => 6.0,
            Self::Roll | Self::Scale { .. } => 5.0,
            Self::Kill { .. } | Self::StartPostgres | Self::Reset { .. } => 1.5,
            _ => 0.2,
        };
        Duration::from_secs_f64(seconds)
    }
}

/// How the workers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manner {
    /// The group protocol is that of KIP-848.
    pub(super) broker_decides: bool,
    /// Batches wait for the disk: a crash takes none of them back.
    pub(super) synchronous_commit: bool,
}

impl Manner {
    pub(super) fn of(seed: u64) -> Self {
        // Not the plan's numbers: they shall not depend on each other.
        let mut random = fastrand::Rng::with_seed(!seed);
        Self {
            broker_decides: random.bool(),
            synchronous_commit: random.bool(),
        }
    }
}

impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.broker_decides {
            "consumer"
        } else {
            "classic"
        };
        let commits = if self.synchronous_commit { "on" } else { "off" };
        write!(
            f,
            "group protocol {protocol}, synchronous commit of batches {commits}"
        )
    }
}

/// An action, and how long to wait before it. Work that was done in between is waited for, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) after: Duration,
    pub(super) action: Action,
}

/// How much is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Rounds(usize),
    /// As many rounds as take so long, about.
    Time(Duration),
    /// As many rounds as have so many kills of workers.
    Kills(usize),
}

/// Everything that will be done, in order. Ends with all servers up and nobody asleep.
pub(super) fn plan(seed: u64, length: Length, faults: &[Fault]) -> Vec<Step> {
    let mut planner = Planner {
        random: fastrand::Rng::with_seed(seed),
        clock: Duration::ZERO,
        steps: Vec::new(),
        ends: VecDeque::new(),
        workers: WORKERS_AT_FIRST,
        scaled: 0,
        partitions: PARTITIONS_AT_FIRST,
    };
    let mut rounds = 0;
    loop {
        let is_enough = match length {
            Length::Rounds(count) => rounds >= count,
            Length::Time(time) => planner.clock >= time,
            Length::Kills(count) => planner.kills() >= count,
        };
        if is_enough {
            break;
        }
        planner.round(faults);
        rounds += 1;
    }
    planner.end_all();
    planner.steps
}

struct Planner {
    random: fastrand::Rng,
    /// Since the begin, about.
    clock: Duration,
    steps: Vec<Step>,
    /// What will end, and when, the soonest first.
    ends: VecDeque<(Duration, Action)>,
    workers: usize,
    scaled: usize,
    partitions: i32,
}

impl Planner {
    fn kills(&self) -> usize {
        let is_kill = |step: &&Step| matches!(step.action, Action::Kill { .. });
        self.steps.iter().filter(is_kill).count()
    }

    fn round(&mut self, faults: &[Fault]) {
        let chosen = FAULTS.iter().filter(|(fault, ..)| faults.contains(fault));
        let mut cards: Vec<Fault> = chosen
            .flat_map(|(fault, _, times)| vec![*fault; *times])
            .collect();
        self.random.shuffle(&mut cards);
        let mut later = 0;
        while let Some(card) = cards.pop() {
            match card {
                Fault::Grow if self.partitions == PARTITIONS_MAX => {}
                // One that sleeps needs somebody who takes its place.
                Fault::Freeze if self.workers == 1 && later < cards.len() => {
                    cards.insert(0, card);
                    later += 1;
                    continue;
                }
                card => self.deal(card),
            }
            later = 0;
        }
    }

    fn deal(&mut self, fault: Fault) {
        let after = self.between(300, 2_500);
        while self
            .ends
            .front()
            .is_some_and(|(at, _)| *at <= self.clock + after)
            || !self.allows(fault)
        {
            self.end_first();
        }
        let action = self.action(fault);
        self.put(after, action);
        if let Some((after, end)) = self.end_of(action) {
            self.ends.push_back((self.clock + after, end));
            self.ends.make_contiguous().sort_by_key(|(at, _)| *at);
        }
    }

    /// A worker that does not sleep, if there is one: a sleeper shall wake up.
    fn awake(&mut self) -> usize {
        let asleep = self.ends.iter().find_map(|(_, end)| match end {
            Action::Thaw { worker } => Some(*worker),
            _ => None,
        });
        let worker = self.random.usize(..self.workers);
        match asleep == Some(worker) {
            true => (worker + 1) % self.workers,
            false => worker,
        }
    }

    /// Whether what lasts at the moment leaves room for it.
    fn allows(&self, fault: Fault) -> bool {
        let lasts = |end: fn(&Action) -> bool| self.ends.iter().any(|(_, action)| end(action));
        let frozen = lasts(|end| matches!(end, Action::Thaw { .. }));
        let no_kafka = lasts(|end| matches!(end, Action::StartKafka));
        let no_postgres = lasts(|end| matches!(end, Action::StartPostgres));
        match fault {
            Fault::Kafka => !no_kafka,
            Fault::Postgres => !no_postgres,
            Fault::Slow => !lasts(|end| matches!(end, Action::Slow { .. })),
            // One that sleeps does not stop in order.
            Fault::Roll | Fault::Scale => !frozen,
            // Without both there is no batch to fall asleep in.
            Fault::Freeze => !no_kafka && !no_postgres && !frozen,
            // The command itself needs them, and does not wait for ever for locks of one that sleeps.
            Fault::Grow | Fault::Reset => !no_kafka && !no_postgres && !frozen,
            Fault::Rebuild => !no_kafka && !no_postgres,
            Fault::Kill | Fault::Cut | Fault::Commit => true,
        }
    }

    fn action(&mut self, fault: Fault) -> Action {
        match fault {
            Fault::Kill => Action::Kill {
                worker: self.awake(),
            },
            Fault::Freeze => Action::Freeze {
                worker: self.random.usize(..self.workers),
            },
            Fault::Roll => Action::Roll,
            Fault::Scale => {
                self.workers = SCALE[self.scaled % SCALE.len()];
                self.scaled += 1;
                Action::Scale { to: self.workers }
            }
            Fault::Kafka => Action::KillKafka,
            Fault::Postgres => Action::KillPostgres {
                by_signal: self.random.bool(),
            },
            Fault::Cut => Action::Cut,
            Fault::Slow => Action::Slow {
                by: self.between(5, 40),
            },
            Fault::Commit => Action::LoseCommits {
                count: self.random.usize(1..4),
                answers: self.random.bool(),
            },
            Fault::Grow => {
                let more = self.random.i32(1..=2);
                self.partitions = (self.partitions + more).min(PARTITIONS_MAX);
                Action::Grow {
                    to: self.partitions,
                }
            }
            Fault::Reset => Action::Reset {
                projection: PROJECTIONS[self.random.usize(..PROJECTIONS.len())],
            },
            Fault::Rebuild => Action::Rebuild {
                projection: PROJECTIONS[self.random.usize(..PROJECTIONS.len())],
            },
        }
    }

    /// What ends an action that lasts, and how much later.
    fn end_of(&mut self, action: Action) -> Option<(Duration, Action)> {
        Some(match action {
            // Sessions last 6 s.
            Action::Freeze { worker } => (self.between(7_000, 11_000), Action::Thaw { worker }),
            Action::KillKafka => (self.between(0, 5_000), Action::StartKafka),
            Action::KillPostgres { .. } => (self.between(0, 5_000), Action::StartPostgres),
            Action::Slow { .. } => {
                let by = Duration::ZERO;
                (self.between(3_000, 8_000), Action::Slow { by })
            }
            _ => return None,
        })
    }

    fn between(&mut self, low_ms: u64, high_ms: u64) -> Duration {
        Duration::from_millis(self.random.u64(low_ms..high_ms))
    }

    fn put(&mut self, after: Duration, action: Action) {
        self.clock += after + action.costs();
        self.steps.push(Step { after, action });
    }

    fn end_first(&mut self) {
        if let Some((at, action)) = self.ends.pop_front() {
            self.put(at.saturating_sub(self.clock), action);
        }
    }

    fn end_all(&mut self) {
        while !self.ends.is_empty() {
            self.end_first();
        }
    }
}

#[test]
fn a_plan_is_a_function_of_its_seed() {
    let plan = |seed| plan(seed, Length::Rounds(3), &Fault::all());
    assert_eq!(plan(7), plan(7));
    assert_ne!(plan(7), plan(8));
}

type Is = fn(&Action) -> bool;

#[test]
fn a_plan_ends_what_it_begins_and_has_every_kind() {
    for seed in 0..200 {
        let steps = plan(seed, Length::Rounds(2), &Fault::all());
        let count = |is: Is| steps.iter().filter(|s| is(&s.action)).count();
        let pairs: [(Is, Is); 4] = [
            (
                |a| matches!(a, Action::Freeze { .. }),
                |a| matches!(a, Action::Thaw { .. }),
            ),
            (|a| *a == Action::KillKafka, |a| *a == Action::StartKafka),
            (
                |a| matches!(a, Action::KillPostgres { .. }),
                |a| *a == Action::StartPostgres,
            ),
            (
                |a| matches!(a, Action::Slow { by } if !by.is_zero()),
                |a| matches!(a, Action::Slow { by } if by.is_zero()),
            ),
        ];
        for (begin, end) in pairs {
            assert!(count(begin) >= 2, "{steps:?}");
            assert_eq!(count(begin), count(end), "{steps:?}");
        }
        assert_eq!(count(|a| matches!(a, Action::Kill { .. })), 16);
        assert_eq!(count(|a| matches!(a, Action::Freeze { .. })), 4);
        assert_eq!(count(|a| matches!(a, Action::Scale { to: 4 })), 2);
        assert_eq!(count(|a| matches!(a, Action::Reset { .. })), 2);
    }
}
