//! Carries a plan out, and counts what it hit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::plan::{Action, Manner, PARTITIONS_AT_FIRST, Step, WORKERS_AT_FIRST};
use crate::harness::{
    Feeder, KafkaServer, LONG, PostgresServer, Process, Proxy, Servers, Stream, Trouble, World,
    wait_until,
};

/// The newest entry of each account. The older ones that come late must not overwrite it.
const NEWEST: &str = r#"
[projections.newest]
topics   = ["@in@"]
entity   = "/account"
sequence = "/seq"
gate     = "newest"
setup    = "newest.sql"
columns  = { account = "text", seq = "bigint", amount = "bigint" }

[[projections.newest.apply]]
sql = """
INSERT INTO entry (account, seq, amount) SELECT account, seq, amount FROM latest
ON CONFLICT (account) DO UPDATE SET seq = excluded.seq, amount = excluded.amount"""
"#;

const NEWEST_SETUP: &str =
    "CREATE TABLE entry (account text PRIMARY KEY, seq bigint NOT NULL, amount bigint NOT NULL)";

/// Every record, where it was. Nothing but the position, no gate, key, inbox or message, keeps out what comes twice.
const LINES: &str = r#"
[projections.lines]
topics  = ["@in@"]
gate    = "none"
setup   = "lines.sql"
columns = { account = "text" }

[[projections.lines.apply]]
sql = "INSERT INTO line (partition, record_offset) SELECT _partition, _offset FROM events"
"#;

const LINES_SETUP: &str =
    "CREATE TABLE line (partition integer NOT NULL, record_offset bigint NOT NULL)";

/// Where the broker decides, it also says how long a session lasts. As short as a member of a classic group may
/// ask for.
const SESSIONS: &str = "\
group.consumer.min.session.timeout.ms=6000
group.consumer.session.timeout.ms=6000
group.consumer.min.heartbeat.interval.ms=500
group.consumer.heartbeat.interval.ms=500";

/// Records of a worker's batches, at most: with few it is busy all the time, with many it catches up.
const BATCHES: [usize; 4] = [3, 20, 100, 1_000];
/// How long to look for a moment in which a worker is amid a batch: longer than a session, so that one that has just
/// been started has got its partitions.
const AIM: Duration = Duration::from_secs(8);

/// A world on servers of its own.
pub(super) struct Stage {
    // Dropped first: it needs the servers.
    pub(super) world: World,
    kafka: KafkaServer,
    postgres: PostgresServer,
}

impl Stage {
    pub(super) fn build() -> Self {
        let mut postgres = PostgresServer::start();
        // What the promises need they must set themselves.
        postgres.set("synchronous_commit", "off");
        postgres.set("wal_writer_delay", "10s");
        let kafka = KafkaServer::start_with(SESSIONS);
        let servers = Servers::private(&kafka, &postgres);
        let mut world = World::ledger_at(&servers, PARTITIONS_AT_FIRST);
        world.add_projection(NEWEST, ("newest.sql", NEWEST_SETUP));
        world.add_projection(LINES, ("lines.sql", LINES_SETUP));
        Self {
            world,
            kafka,
            postgres,
        }
    }
}

/// What was done and what it hit.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// By kind, in the order of the first of each.
    pub(super) actions: Vec<(&'static str, usize)>,
    pub(super) kills: Kills,
    /// Connections to Postgres that were cut, at a COMMIT or anywhere.
    pub(super) cuts: usize,
}

/// Kills of workers, by what they hit.
#[derive(Debug, Default)]
pub(super) struct Kills {
    /// In the middle of a batch's transaction.
    pub(super) amid_batch: usize,
    /// Between batches, with records left that were the worker's.
    pub(super) with_records_left: usize,
    /// With nothing to do.
    pub(super) idle: usize,
    /// While Kafka or Postgres was down, so that nobody knows.
    pub(super) during_outage: usize,
}

/// The workers, and what is up.
pub(super) struct Run<'s> {
    world: &'s World,
    kafka: &'s mut KafkaServer,
    postgres: &'s mut PostgresServer,
    proxy: Proxy,
    /// What happens at the next COMMITs.
    troubles: Arc<Mutex<VecDeque<Trouble>>>,
    workers: Vec<Process>,
    frozen: Option<usize>,
    /// Builds beside the live generations, done or not, by projection.
    rebuilds: BTreeMap<&'static str, Process>,
    feeder: Feeder,
    random: fastrand::Rng,
    manner: Manner,
    began: Instant,
    kafka_is_up: bool,
    postgres_is_up: bool,
    /// How many records had been counted when the last action was done.
    consumed: i64,
    tally: Tally,
}

impl<'s> Run<'s> {
    pub(super) fn begin(stage: &'s mut Stage, manner: Manner, entries_per_second: usize) -> Self {
        let Stage {
            world,
            kafka,
            postgres,
        } = stage;
        let world: &World = world;
        let troubles: Arc<Mutex<VecDeque<Trouble>>> = Arc::default();
        let waiting = Arc::clone(&troubles);
        let proxy = Proxy::to(&world.db.address(), move |_| {
            let next = waiting.lock().unwrap().pop_front();
            next.unwrap_or(Trouble::None)
        });
        let mut run = Self {
            world,
            kafka,
            postgres,
            proxy,
            troubles,
            workers: Vec::new(),
            frozen: None,
            rebuilds: BTreeMap::new(),
            feeder: world.stream().feed(entries_per_second),
            random: world.random(),
            manner,
            began: Instant::now(),
            kafka_is_up: true,
            postgres_is_up: true,
            consumed: 0,
            tally: Tally::default(),
        };
        run.scale(WORKERS_AT_FIRST);
        run.wait_for_work();
        run
    }

    pub(super) fn say(&self, what: &str) {
        eprintln!("[{:6.1} s] {what}", self.began.elapsed().as_secs_f64());
    }

    /// Waits as planned, and then until something was done since the last action: what follows shall
    /// hit work. That it is done at all is a claim of its own (I10).
    pub(super) fn step(&mut self, step: Step) {
        thread::sleep(step.after);
        self.wait_for_work();
        self.assert_all_run();
        let hit = self.act(step.action);
        self.say(&format!("{}{hit}", step.action));
        if let Some(kind) = kind(step.action) {
            let actions = &mut self.tally.actions;
            match actions.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, count)) => *count += 1,
                None => actions.push((kind, 1)),
            }
        }
    }

    fn servers_are_up(&self) -> bool {
        self.kafka_is_up && self.postgres_is_up
    }

    fn assert_all_run(&mut self) {
        for (number, worker) in self.workers.iter_mut().enumerate() {
            if !worker.is_running() {
                let log = worker.log();
                let last = log.lines().last().unwrap_or_default();
                panic!("worker {number} has ended by itself: {last}");
            }
        }
    }

    fn wait_for_work(&mut self) {
        let someone_works = self.frozen.is_none() || self.workers.len() > 1;
        if !self.servers_are_up() || !someone_works {
            return;
        }
        let (before, began) = (self.consumed, Instant::now());
        loop {
            self.consumed = consumed(self.world);
            if self.consumed > before {
                return;
            }
            self.assert_all_run();
            if began.elapsed() > LONG {
                self.world.give_up("something more to be applied", LONG);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Says what it hit, where that is of interest.
    fn act(&mut self, action: Action) -> String {
        match action {
            Action::Kill { worker } => return self.kill(worker),
            Action::Freeze { worker } => {
                // Its batch of `lines` locks nothing at first, so that nobody need end it, and nothing but its
                // claim tells it from that of whoever takes its place.
                let batch = self.stop_amid_batch(worker, "lines");
                self.frozen = Some(worker);
                return batch.map_or(String::new(), |of| format!(": amid a batch of {of}"));
            }
            Action::Thaw { worker } => {
                // Another one by now, if it was killed asleep, alone.
                self.workers[worker].signal("CONT");
                self.frozen = None;
            }
            Action::Roll => self.roll(None),
            Action::Scale { to } => self.scale(to),
            Action::KillKafka => {
                self.kafka.kill();
                self.kafka_is_up = false;
            }
            Action::StartKafka => {
                self.kafka.start_again();
                self.kafka_is_up = true;
            }
            Action::KillPostgres { by_signal } => {
                match by_signal {
                    true => self.postgres.kill(),
                    false => self.postgres.stop_immediately(),
                }
                self.postgres_is_up = false;
            }
            Action::StartPostgres => {
                self.postgres.start_again();
                self.world.db.reconnect();
                self.postgres_is_up = true;
            }
            Action::Cut => return format!(": {}", self.proxy.cut_all()),
            Action::Slow { by } => self.proxy.delay(by),
            Action::LoseCommits { count, answers } => {
                let trouble = match answers {
                    true => Trouble::AnswerLost,
                    false => Trouble::RequestLost,
                };
                let mut troubles = self.troubles.lock().unwrap();
                troubles.extend(vec![trouble; count]);
            }
            Action::Grow { to } => {
                self.world.add_partitions(to);
                self.feeder.spread(to);
            }
            Action::Reset { projection } => self.reset(projection),
            Action::Rebuild { projection } => return self.rebuild(projection),
        }
        String::new()
    }

    /// Every second one is known to its group as the one it was before. The others' partitions are free
    /// only when the session of the killed one has ended. So are all if the broker decides, since it lets
    /// nobody take a dead one's place.
    fn worker(&mut self, number: usize, batch: Option<usize>) -> Process {
        let name = format!("worker-{number}");
        let random = BATCHES[self.random.usize(..BATCHES.len())];
        let launch = self.world.launch(&name);
        let launch = match (self.manner.broker_decides, number % 2) {
            (true, _) => launch.consumer_protocol(),
            (false, 0) => launch.comes_back(),
            (false, _) => launch,
        };
        launch
            .env(
                "TIDEGATE__POSTGRES__URL",
                self.world.db.url_by(self.proxy.address()),
            )
            .env("TIDEGATE__APPLY__WRITERS", self.random.usize(1..=2))
            .env(
                "TIDEGATE__APPLY__SYNCHRONOUS_COMMIT",
                self.manner.synchronous_commit,
            )
            // Who sleeps amid a batch can go on with it, if nobody ends it.
            .env("TIDEGATE__POSTGRES__IDLE_IN_TRANSACTION_TIMEOUT", "30s")
            .env("TIDEGATE__RELAY__LEASE", "2s")
            .option("topic.metadata.refresh.interval.ms", "1000")
            .batch_records_max(batch.unwrap_or(random))
            .start()
    }

    /// Stops one after the other in order, and starts it again.
    fn roll(&mut self, batch: Option<usize>) {
        for number in 0..self.workers.len() {
            stop(self.workers.remove(number));
            let next = self.worker(number, batch);
            self.workers.insert(number, next);
        }
    }

    fn scale(&mut self, to: usize) {
        while self.workers.len() < to {
            let next = self.worker(self.workers.len(), None);
            self.workers.push(next);
        }
        self.workers.drain(to..).for_each(stop);
    }

    fn kill(&mut self, number: usize) -> String {
        let batch = self.stop_amid_batch(number, "%");
        let servers_are_up = self.servers_are_up();
        let worker = &mut self.workers[number];
        worker.kill();
        let kills = &mut self.tally.kills;
        let hit = if servers_are_up {
            let left = records_left(self.world, worker.pid());
            let count = match (&batch, left) {
                (Some(_), _) => &mut kills.amid_batch,
                (None, 1..) => &mut kills.with_records_left,
                (None, _) => &mut kills.idle,
            };
            *count += 1;
            let batch = batch.map_or(String::new(), |of| format!(", amid a batch of {of}"));
            format!(": {left} records left{batch}")
        } else {
            kills.during_outage += 1;
            String::new()
        };
        let next = self.worker(number, None);
        self.workers[number] = next;
        hit
    }

    /// Lets a worker sleep where it is in a batch's transaction, if there is such a moment soon. Says of which
    /// projection the batch is.
    fn stop_amid_batch(&self, number: usize, projection: &str) -> Option<String> {
        let worker = &self.workers[number];
        let began = Instant::now();
        loop {
            worker.signal("STOP");
            if !self.servers_are_up() {
                return None;
            }
            let batch = open_batch(self.world, worker.pid(), projection);
            let is_asleep = self.frozen == Some(number);
            if batch.is_some() || is_asleep || began.elapsed() > AIM {
                return batch;
            }
            worker.signal("CONT");
            // Not one of the seed's numbers: how many are needed is the machine's affair.
            thread::sleep(Duration::from_millis(fastrand::u64(..20)));
        }
    }

    /// Begins to build a projection beside, or goes on with what was begun and not done.
    fn rebuild(&mut self, projection: &'static str) -> String {
        let killed = self.kill_rebuild(projection);
        let launch = self.world.launch(&format!("rebuild-{projection}"));
        let process = launch
            .rebuild(projection)
            .env(
                "TIDEGATE__POSTGRES__URL",
                self.world.db.url_by(self.proxy.address()),
            )
            .batch_records_max(BATCHES[self.random.usize(1..BATCHES.len())])
            .start();
        self.rebuilds.insert(projection, process);
        match killed {
            true => ": the one at work was killed".to_owned(),
            false => String::new(),
        }
    }

    fn kill_rebuild(&mut self, projection: &str) -> bool {
        let Some(process) = self.rebuilds.get_mut(projection) else {
            return false;
        };
        let is_at_work = process.is_running();
        if is_at_work {
            process.kill();
        }
        is_at_work
    }

    /// What was begun beside comes to its end, now that nobody disturbs it; entries go on to come.
    fn finish_rebuilds(&mut self) {
        let begun: Vec<&'static str> = self.rebuilds.keys().copied().collect();
        for projection in begun {
            self.kill_rebuild(projection);
            wait_until(LONG, &format!("{projection} is rebuilt"), || {
                let launch = self.world.launch("command").rebuild(projection);
                let output = launch.batch_records_max(1_000).output(&["rebuild"]);
                output.code == 0 || output.expect(75).code == 0
            });
        }
        let cut_over: i64 = self
            .world
            .db
            .one("SELECT count(*) FROM tidegate.operation WHERE kind = 'cut-over'");
        self.say(&format!("{cut_over} cut-overs in all"));
    }

    fn reset(&mut self, projection: &str) {
        self.kill_rebuild(projection);
        wait_until(LONG, &format!("{projection} is not built beside"), || {
            let command = ["rebuild", "abandon", projection, "--yes"];
            let output = self.world.tidegate(&command);
            output.code == 0
                || output.stderr.contains("no generation")
                || output.expect(75).code == 0
        });
        // What is there twice would be gone.
        if projection == "lines" {
            let twice: i64 = self.world.db.one(
                "SELECT count(*) - count(DISTINCT (partition, record_offset)) FROM lines.line",
            );
            assert_eq!(twice, 0, "lines are there twice");
        }
        wait_until(LONG, &format!("{projection} is reset"), || {
            let command = ["reset", projection, "--to", "earliest", "--yes"];
            let output = self.world.tidegate(&command);
            // 75: a lock was not to be had in time; it says to try again.
            output.code == 0 || output.expect(75).code == 0
        });
    }

    /// Ends the writing, waits until all is applied and sent, and stops the workers in order.
    pub(super) fn finish(mut self, limit: Duration) -> (Stream, Tally) {
        self.say("the end: no more faults and no more entries");
        self.troubles.lock().unwrap().clear();
        self.tally.cuts = self.proxy.cuts();
        // What is left is left to workers that are quick.
        self.roll(Some(10_000));
        self.finish_rebuilds();
        let stream = self.feeder.finish();
        self.world.wait_until_done(limit);
        // Those of accounts that moved wait for what is in their old partition.
        wait_until(limit, "nothing is parked any more", || {
            self.world.parked() == 0
        });
        wait_until(limit, "all messages are sent", || {
            crate::relay::is_all_sent(self.world)
        });
        self.workers.into_iter().for_each(stop);
        let seconds = self.began.elapsed().as_secs_f64();
        eprintln!("[{seconds:6.1} s] all is applied and sent, and the workers have stopped");
        (stream, self.tally)
    }
}

/// Stops a worker in order. A signal that comes before it listens to any would end it otherwise.
fn stop(worker: Process) {
    worker.wait_for_log(LONG, &[" "]);
    worker.stop();
}

/// What an action is counted as. What ends another one is not.
fn kind(action: Action) -> Option<&'static str> {
    Some(match action {
        Action::Kill { .. } => "worker killed",
        Action::Freeze { .. } => "worker asleep for longer than its session",
        Action::Roll => "rolling restart",
        Action::Scale { .. } => "scaled",
        Action::KillKafka => "broker killed",
        Action::KillPostgres { by_signal: true } => "postmaster killed",
        Action::KillPostgres { by_signal: false } => "Postgres stopped immediately",
        Action::Cut => "all connections cut",
        Action::Slow { by } if by.is_zero() => return None,
        Action::Slow { .. } => "slow connections",
        Action::LoseCommits { answers: true, .. } => "answers to commits lost",
        Action::LoseCommits { answers: false, .. } => "commits lost",
        Action::Grow { .. } => "partitions added",
        Action::Reset { .. } => "reset",
        Action::Rebuild { .. } => "built beside",
        Action::Thaw { .. } | Action::StartKafka | Action::StartPostgres => return None,
    })
}

/// Records counted by all generations: a number that only grows.
fn consumed(world: &World) -> i64 {
    world
        .db
        .one("SELECT coalesce(sum(consumed), 0)::bigint FROM tidegate.position")
}

/// The projection in whose transaction a process is at this moment, if it is one like that.
fn open_batch(world: &World, pid: u32, projection: &str) -> Option<String> {
    let rows: Vec<(String,)> = world.db.rows(&format!(
        "SELECT substring(application_name from ' apply (.*)') FROM pg_stat_activity
         WHERE datname = current_database() AND xact_start IS NOT NULL
           AND application_name LIKE 'tidegate %-{pid}-% apply {projection}'"
    ));
    rows.into_iter().next().map(|(projection,)| projection)
}

/// How far behind the end of the log a process is with what it owns.
fn records_left(world: &World, pid: u32) -> i64 {
    let owned: Vec<(i32, i64)> = world.db.rows(&format!(
        "SELECT q.partition, q.next_offset FROM tidegate.position q
         JOIN tidegate.projection p ON p.name = q.projection AND p.live_generation = q.generation
         WHERE q.owner LIKE '%-{pid}-%'"
    ));
    let ends = world
        .kafka
        .end_offsets(world.incoming(), world.partitions());
    owned
        .iter()
        .map(|(partition, next)| ends[partition] - next)
        .sum()
}
