//! Watches the processes work: reads positions and streams, draws progress, and gives up when nothing moves.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use sqlx::PgConnection;

use super::services::Services;
use super::tables;
use crate::cli::output::number;
use crate::cli::{CODE_NEEDS_A_PERSON, Failed};
use crate::store::outbox;
use crate::store::position::{self, Status as Position};

const LOOK_EVERY: Duration = Duration::from_millis(20);
const DRAW_EVERY: Duration = Duration::from_millis(100);
const SAY_EVERY: Duration = Duration::from_secs(1);
const STREAMS_EVERY: Duration = Duration::from_millis(250);
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// How long to look for a transaction to interrupt.
const AIM_LIMIT: Duration = Duration::from_secs(3);

/// How many events each projection shall consume, and how many are on the topic so far.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) projections: Vec<&'static str>,
    pub(super) events: u64,
    pub(super) produced: Arc<AtomicU64>,
}

pub(super) struct Watch<'w> {
    connection: &'w mut PgConnection,
    plan: Plan,
    bar: Option<ProgressBar>,
    /// When progress began to be drawn.
    began: Option<Instant>,
    drawn: Instant,
    /// Totals a while ago, for the rate.
    before: (Instant, u64),
    rate: u64,
    streams_read: Option<Instant>,
    emitted: i64,
    sent: i64,
    moved: (Instant, [u64; 3]),
}

impl<'w> Watch<'w> {
    pub(super) fn new(connection: &'w mut PgConnection, plan: Plan) -> Self {
        let now = Instant::now();
        Self {
            connection,
            plan,
            bar: None,
            began: None,
            drawn: now,
            before: (now, 0),
            rate: 0,
            streams_read: None,
            emitted: 0,
            sent: 0,
            moved: (now, [0; 3]),
        }
    }

    /// Waits until every process has a share of every projection's partitions.
    pub(super) async fn until_shared(&mut self, services: &mut Services) -> Result<(), Failed> {
        loop {
            let rows = self.look(services).await?;
            let shared = self.plan.projections.iter().all(|projection| {
                let of: Vec<&Position> = rows
                    .iter()
                    .filter(|row| row.projection == *projection)
                    .collect();
                let owns = |pid| of.iter().any(|row| is_owner(row, pid));
                let working = services.running().iter().filter(|s| owns(s.pid)).count();
                // One partition cannot be shared.
                !of.is_empty()
                    && of.iter().all(|row| !row.owner.is_empty())
                    && working == services.running().len().min(of.len())
            });
            if shared {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// From here on progress is drawn.
    pub(super) fn begin(&mut self) {
        let now = Instant::now();
        self.began = Some(now);
        self.before = (now, 0);
        if std::io::stdout().is_terminal() {
            let target = ProgressDrawTarget::stdout();
            let bar = ProgressBar::with_draw_target(Some(self.all()), target)
                .with_finish(ProgressFinish::Abandon);
            let style = ProgressStyle::with_template("{wide_bar:.cyan/dim} {msg}");
            self.bar = Some(match style {
                Ok(style) => bar.with_style(style.progress_chars("━╸─")),
                Err(_) => bar,
            });
        }
    }

    fn all(&self) -> u64 {
        self.plan.events * self.plan.projections.len() as u64
    }

    /// Waits until this share of all events is consumed.
    pub(super) async fn until(
        &mut self,
        share: f64,
        services: &mut Services,
    ) -> Result<(), Failed> {
        loop {
            let rows = self.look(services).await?;
            if consumed(&rows) as f64 >= share * self.all() as f64 {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Picks the process that owns the most partitions, waits until it is in the middle of a
    /// transaction, and kills it. Says who it was and how many transactions were open.
    pub(super) async fn kill_in_the_middle(
        &mut self,
        services: &mut Services,
    ) -> Result<(u32, i64), Failed> {
        let rows = self.look(services).await?;
        let owned = |pid| rows.iter().filter(|row| is_owner(row, pid)).count();
        let running = services.running().iter();
        let Some(pid) = running
            .map(|service| service.pid)
            .max_by_key(|pid| owned(*pid))
        else {
            return Err(gone("no process is running".to_owned(), services));
        };
        let give_up = Instant::now() + AIM_LIMIT;
        let mut open = 0;
        while open == 0 && Instant::now() < give_up {
            open = tables::open_batches(self.connection, pid)
                .await
                .map_err(|error| Failed::new(CODE_NEEDS_A_PERSON, error))?;
        }
        let killed = services.kill(pid).await;
        killed.map_err(|error| Failed::new(CODE_NEEDS_A_PERSON, error))?;
        Ok((pid, open))
    }

    /// Waits until every position has reached the end of its log, and returns how long the killed
    /// process's partitions had no owner who works.
    pub(super) async fn until_consumed(
        &mut self,
        killed: (u32, Instant),
        ends: impl Fn(&Position) -> Option<i64>,
        services: &mut Services,
    ) -> Result<Option<Duration>, Failed> {
        let mut orphaned = None;
        loop {
            let rows = self.look(services).await?;
            if orphaned.is_none() && !rows.iter().any(|row| is_owner(row, killed.0)) {
                orphaned = Some(killed.1.elapsed());
            }
            let at_end = |row| ends(row).is_some_and(|end| row.next_offset >= end);
            if !rows.is_empty() && rows.iter().all(at_end) {
                return Ok(orphaned);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the relay has sent all that was emitted.
    pub(super) async fn until_sent(&mut self, services: &mut Services) -> Result<(), Failed> {
        loop {
            self.streams_read = None;
            self.look(services).await?;
            if self.sent >= self.emitted {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Prints a line, above the bar if there is one.
    pub(super) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => println!("{line}"),
        }
    }

    async fn look(&mut self, services: &mut Services) -> Result<Vec<Position>, Failed> {
        let rows = position::status(self.connection).await?;
        let now = Instant::now();
        if self
            .streams_read
            .is_none_or(|read| now - read >= STREAMS_EVERY)
        {
            self.streams_read = Some(now);
            let streams = outbox::status(self.connection).await?;
            self.emitted = streams.iter().map(|stream| stream.emitted).sum();
            self.sent = streams.iter().map(|stream| stream.sent_through).sum();
        }
        self.draw(&rows, now);
        if let Some(what) = services.ended() {
            return Err(gone(what, services));
        }
        if let Some(row) = rows.iter().find(|row| row.condition == "halted") {
            let what = format!("{} is halted: {}", row.projection, row.cause);
            return Err(gone(what, services));
        }
        let epochs: i64 = rows.iter().map(|row| row.epoch).sum();
        let state = [
            consumed(&rows),
            self.sent.unsigned_abs(),
            epochs.unsigned_abs(),
        ];
        if state != self.moved.1 {
            self.moved = (now, state);
        } else if now - self.moved.0 >= STALL_LIMIT {
            let what = format!(
                "nothing has moved for {} s: {} of {} events are consumed (of both projections), {} of {} messages sent",
                STALL_LIMIT.as_secs(),
                number(state[0].cast_signed()),
                number(self.all().cast_signed()),
                number(self.sent),
                number(self.emitted)
            );
            return Err(gone(what, services));
        }
        Ok(rows)
    }

    fn draw(&mut self, rows: &[Position], now: Instant) {
        let every = if self.bar.is_some() {
            DRAW_EVERY
        } else {
            SAY_EVERY
        };
        let Some(began) = self.began else {
            return;
        };
        if now - self.drawn < every {
            return;
        }
        self.drawn = now;
        let all = consumed(rows);
        let since = now - self.before.0;
        if since >= SAY_EVERY {
            // An event counts once it has passed through all projections, on average.
            let passed = all.saturating_sub(self.before.1) / self.plan.projections.len() as u64;
            self.rate = (passed as f64 / since.as_secs_f64()) as u64;
            self.before = (now, all);
        }
        let text = self.text(rows);
        match &self.bar {
            Some(bar) => {
                bar.set_position(all);
                bar.set_message(text);
            }
            None => println!("{:>4} s  {text}", began.elapsed().as_secs()),
        }
    }

    fn text(&self, rows: &[Position]) -> String {
        let mut text = String::new();
        for projection in &self.plan.projections {
            let of = rows.iter().filter(|row| row.projection == *projection);
            let consumed: i64 = of.map(|row| row.consumed).sum();
            let percent = consumed.unsigned_abs() * 100 / self.plan.events.max(1);
            text.push_str(&format!("{projection} {percent:>3} %  "));
        }
        let produced = self.plan.produced.load(Ordering::Relaxed);
        if produced < self.plan.events {
            let percent = produced * 100 / self.plan.events.max(1);
            text.push_str(&format!("(produced {percent} %)  "));
        }
        let rate = number(self.rate.cast_signed());
        format!("{text}{rate:>8}/s  {} sent", number(self.sent))
    }
}

fn consumed(rows: &[Position]) -> u64 {
    rows.iter().map(|row| row.consumed.unsigned_abs()).sum()
}

/// Owners are named `<host>-<process>-<random>`.
fn is_owner(row: &Position, pid: u32) -> bool {
    row.owner.contains(&format!("-{pid}-"))
}

fn gone(what: String, services: &Services) -> Failed {
    let tails = services.tails();
    Failed::new(CODE_NEEDS_A_PERSON, anyhow::anyhow!("{what}\n{tails}"))
}
