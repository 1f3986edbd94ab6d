//! How far a build is, drawn on a terminal, or told in lines.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{
    MultiProgress, ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressState, ProgressStyle,
};

use crate::cli::Failed;
use crate::cli::output::number;
use crate::runtime::{Builder, Progress, RebuildError};
use crate::types::TopicPartition;

const LOOK_EVERY: Duration = Duration::from_millis(100);
const SAY_EVERY: Duration = Duration::from_secs(5);
/// More partitions than this are drawn as one.
const BARS_MAX: usize = 16;

/// Follows a build until it has caught up.
pub(super) async fn follow(builder: &mut Builder) -> Result<(), RebuildError> {
    let mut shown = Shown::new();
    let mut near = None;
    loop {
        let progress = builder.look().await?;
        shown.take(&progress);
        if progress.has_caught_up(&mut near) {
            shown.end(&progress);
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Keeps a build going while a person thinks.
pub(super) async fn meanwhile<T: Send + 'static>(
    builder: &mut Builder,
    ask: impl FnOnce() -> Result<T, Failed> + Send + 'static,
) -> Result<T, Failed> {
    let mut answer = tokio::task::spawn_blocking(ask);
    loop {
        tokio::select! {
            biased;
            answer = &mut answer => {
                return answer.unwrap_or_else(|error| Err(Failed::new(super::CODE_NEEDS_A_PERSON, error)));
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        builder.look().await.map_err(super::failed)?;
    }
}

struct Shown {
    bars: Option<MultiProgress>,
    of_partitions: BTreeMap<TopicPartition, ProgressBar>,
    all: ProgressBar,
    began: Instant,
    first: Option<i64>,
    said: Instant,
}

impl Shown {
    fn new() -> Self {
        let is_drawn = std::io::stdout().is_terminal();
        let bars = is_drawn
            .then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stdout_with_hz(10)));
        let now = Instant::now();
        Self {
            all: bar(bars.as_ref(), "all"),
            bars,
            of_partitions: BTreeMap::new(),
            began: now,
            first: None,
            said: now,
        }
    }

    fn take(&mut self, progress: &Progress) {
        let (done, of) = sums(progress);
        self.first.get_or_insert(done);
        set(&self.all, done, of);
        if progress.shares.len() <= BARS_MAX && progress.shares.len() > 1 {
            for share in &progress.shares {
                let bars = self.bars.as_ref();
                let name = share.partition.to_string();
                let own = self
                    .of_partitions
                    .entry(share.partition.clone())
                    .or_insert_with(|| bar(bars, &name));
                set(own, share.taken_in - share.from, share.live - share.from);
            }
        }
        if self.bars.is_none() && self.said.elapsed() >= SAY_EVERY {
            self.said = Instant::now();
            self.say(progress);
        }
    }

    fn say(&self, progress: &Progress) {
        let (done, of) = sums(progress);
        let seconds = self.began.elapsed().as_secs_f64().max(0.001);
        let rate = ((done - self.first.unwrap_or(done)) as f64 / seconds) as i64;
        let left = match rate {
            ..=0 => "-".to_owned(),
            rate => format!("{} s", number((of - done).max(0) / rate)),
        };
        println!(
            "{} of {} offsets, {} records applied or dropped, {}/s, {left} left",
            number(done),
            number(of),
            number(progress.consumed),
            number(rate),
        );
    }

    fn end(&self, progress: &Progress) {
        for bar in self.of_partitions.values().chain([&self.all]) {
            bar.finish_and_clear();
        }
        let (_, of) = sums(progress);
        let seconds = self.began.elapsed().as_secs_f64();
        let parked = match progress.parked {
            0 => String::new(),
            parked => format!(", {} of them parked", number(parked)),
        };
        println!(
            "caught up: {} records in {} offsets{parked}, after {seconds:.1} s; {} behind the live generation",
            number(progress.consumed),
            number(of),
            number(progress.remaining())
        );
    }
}

/// Offsets that are passed, and of how many.
fn sums(progress: &Progress) -> (i64, i64) {
    let shares = || progress.shares.iter();
    (
        shares().map(|share| share.taken_in - share.from).sum(),
        shares().map(|share| (share.live - share.from).max(0)).sum(),
    )
}

fn set(bar: &ProgressBar, done: i64, of: i64) {
    bar.set_length(u64::try_from(of).unwrap_or(0));
    bar.set_position(u64::try_from(done).unwrap_or(0));
}

fn bar(bars: Option<&MultiProgress>, name: &str) -> ProgressBar {
    let Some(bars) = bars else {
        return ProgressBar::hidden();
    };
    let bar = bars.add(ProgressBar::new(0).with_finish(ProgressFinish::AndClear));
    let style = ProgressStyle::with_template(
        "{prefix:>24} {wide_bar:.cyan/dim} {human_pos}/{human_len} {rate:>12} {eta:>5}",
    );
    let bar = match style {
        Ok(style) => {
            let rate = |state: &ProgressState, to: &mut dyn Write| {
                let _ = write!(to, "{}/s", number(state.per_sec() as i64));
            };
            bar.with_style(style.progress_chars("━╸─").with_key("rate", rate))
        }
        Err(_) => bar,
    };
    bar.with_prefix(name.to_owned())
}
