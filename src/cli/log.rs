//! What is logged, and how.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt};

use super::discreet::Discreet;
use super::{Done, Failed};
#[cfg(feature = "opentelemetry")]
use crate::telemetry;

/// librdkafka speaks for itself; what rdkafka logs of the same events is left out.
const DEFAULT_LOG: &str = "info,rdkafka=off";
/// The same for a command that shows by itself what it does.
pub(super) const QUIET_LOG: &str = "warn,rdkafka=off";

#[derive(Debug, clap::Args)]
pub(super) struct LogArguments {
    /// How log lines are written to standard error
    #[arg(
        long,
        env = "TIDEGATE_LOG_FORMAT",
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    log_format: Format,
    /// What to log: a level, or targets with levels, such as `info,tidegate=debug`
    #[arg(
        long,
        env = "TIDEGATE_LOG",
        default_value = DEFAULT_LOG,
        value_name = "FILTER"
    )]
    log: String,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum Format {
    /// `text` on a terminal, `json` otherwise
    #[default]
    Auto,
    /// For a person
    Text,
    /// One JSON object a line
    Json,
}

/// Logs from now on. A program that has its own subscriber keeps it.
pub(super) fn log(arguments: &LogArguments) -> Done {
    begin(&arguments.log, arguments.log_format)
}

/// The same for a command that a person has before them.
pub(super) fn log_text(filter: &str) -> Done {
    begin(filter, Format::Text)
}

fn begin(filter: &str, format: Format) -> Done {
    if tracing::dispatcher::has_been_set() {
        return Ok(());
    }
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Failed::new(64, anyhow::Error::new(error).context("--log")))?;
    let terminal = std::io::stderr().is_terminal();
    let log = fmt::layer().with_writer(Discreet).with_ansi(terminal);
    let json = match format {
        Format::Auto => !terminal,
        Format::Text => false,
        Format::Json => true,
    };
    let log = if json {
        let log = log.json().flatten_event(true);
        log.with_current_span(true).with_span_list(false).boxed()
    } else {
        log.boxed()
    };
    let log = tracing_subscriber::registry().with(log.with_filter(filter));
    #[cfg(not(feature = "opentelemetry"))]
    log.init();
    #[cfg(feature = "opentelemetry")]
    match telemetry::spans::exporting() {
        Ok(Some(exporting)) => log.with(exporting).init(),
        // A layer that is none has what is not logged looked at all the same, and lines that are to be are lost by that.
        Ok(None) => log.init(),
        Err(why) => {
            log.init();
            tracing::warn!(why, "no spans are exported; see the variables OTEL_*");
        }
    }
    Ok(())
}
