//! Bodies of answers: a status, the reasons for it, and what else is known.

use serde_json::{Value, json};

use crate::health::{Reason, Snapshot};

pub(super) fn alive(_: &Snapshot, reasons: &[Reason]) -> Value {
    answer("alive", "stuck", reasons)
}

pub(super) fn ready(_: &Snapshot, reasons: &[Reason]) -> Value {
    answer("ready", "not ready", reasons)
}

pub(super) fn progress(seen: &Snapshot, reasons: &[Reason]) -> Value {
    let mut answer = answer("getting on", "stalled", reasons);
    let partitions = seen.partitions.iter().map(|((projection, partition), view)| {
        json!({
            "projection": projection, "topic": partition.topic(), "partition": partition.partition(),
            "state": view.doing.name(), "cause": view.cause, "next_offset": view.next, "lag": view.lag(),
            "lag_seconds": view.lag_time(seen.now, seen.clock).map(|lag| lag.as_secs()),
            "seconds": seen.now.saturating_duration_since(view.since).as_secs(),
        })
    });
    answer["partitions"] = partitions.collect();
    let paused = seen.figures.iter().flat_map(|figures| &figures.paused);
    answer["paused"] = paused
        .filter(|(_, paused)| **paused)
        .map(|(projection, _)| Value::from(projection.as_str()))
        .collect();
    let builds = seen.figures.iter().flat_map(|figures| &figures.detached);
    answer["builds"] = builds
        .map(|build| {
            json!({ "projection": build.projection, "generation": build.generation, "trouble": build.trouble })
        })
        .collect();
    answer
}

fn answer(yes: &str, no: &str, reasons: &[Reason]) -> Value {
    let status = if reasons.is_empty() { yes } else { no };
    let reasons = reasons.iter().map(|reason| {
        let partition = reason.partition.as_ref();
        json!({
            "code": reason.code, "text": reason.text, "seconds": reason.seconds, "projection": reason.projection,
            "topic": partition.map(|partition| partition.topic()),
            "partition": partition.map(|partition| partition.partition()),
        })
    });
    json!({ "status": status, "reasons": reasons.collect::<Vec<_>>() })
}
