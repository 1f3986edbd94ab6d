//! Writes gauges in the text format of Prometheus, from what is known at this moment.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::health::{Build, Snapshot, Verdict};
use crate::telemetry::table::{
    BUILD_INFO, DATABASE_UP, HELD_BACK_RECORDS, KAFKA_UP, LAG_RECORDS, LAG_SECONDS,
    LOG_START_DISTANCE_RECORDS, OUT_OF_GROUP, OUTBOX_OLDEST_UNSENT_AGE_SECONDS,
    OUTBOX_QUARANTINED_MESSAGES, OUTBOX_UNSENT_MESSAGES, PARKED_OLDEST_AGE_SECONDS, PARKED_RECORDS,
    PARTITION_STATE, POSITION_NEXT_OFFSET, PROCESS_START_TIME_SECONDS, PROJECTION_PAUSED, READY,
    REBUILD_DONE_RECORDS, REBUILD_HALTED, REBUILD_LEFT_RECORDS, RETENTION_RUNWAY_SECONDS, STALLED,
};
use crate::telemetry::{self, Metric};

/// Appends all gauges.
pub(super) fn write(text: &mut String, seen: &Snapshot, verdict: &Verdict) {
    of_partitions(text, seen);
    of_database(text, seen);
    let out = seen.out_of_group.keys();
    family(text, OUT_OF_GROUP, out.map(|name| (vec![&**name], 1.0)));
    let yes = |yes: bool| if yes { 1.0 } else { 0.0 };
    one(text, READY, yes(verdict.unable(seen).is_empty()));
    one(text, STALLED, yes(!verdict.stalled(seen).is_empty()));
    for (metric, dependency) in [(DATABASE_UP, &seen.database), (KAFKA_UP, &seen.kafka)] {
        if let Some(dependency) = dependency {
            one(text, metric, yes(dependency.up));
        }
    }
    family(text, BUILD_INFO, [(vec![env!("CARGO_PKG_VERSION")], 1.0)]);
    let age = chrono::Duration::from_std(seen.now - seen.began).unwrap_or_default();
    let began = (seen.clock - age).timestamp_millis() as f64 / 1e3;
    one(text, PROCESS_START_TIME_SECONDS, began);
    for (metric, value) in telemetry::process() {
        one(text, metric, value);
    }
}

fn of_partitions(text: &mut String, seen: &Snapshot) {
    let numbers: BTreeMap<i32, String> = seen
        .partitions
        .keys()
        .map(|(_, partition)| (partition.partition(), partition.partition().to_string()))
        .collect();
    let all = || {
        seen.partitions
            .iter()
            .map(|((projection, partition), view)| {
                let number = numbers
                    .get(&partition.partition())
                    .map_or("", String::as_str);
                (vec![&**projection, partition.topic(), number], view)
            })
    };
    let states = all().map(|(mut labels, view)| {
        labels.push(view.doing.name());
        (labels, 1.0)
    });
    family(text, PARTITION_STATE, states);
    let next = all().filter_map(|(labels, view)| Some((labels, view.next? as f64)));
    family(text, POSITION_NEXT_OFFSET, next);
    let lag = all().filter_map(|(labels, view)| Some((labels, view.lag()? as f64)));
    family(text, LAG_RECORDS, lag);
    let lag = all().filter_map(|(labels, view)| {
        Some((labels, view.lag_time(seen.now, seen.clock)?.as_secs_f64()))
    });
    family(text, LAG_SECONDS, lag);
    let held = all().filter_map(|(labels, view)| Some((labels, view.log?.held_back as f64)));
    family(text, HELD_BACK_RECORDS, held);
    let start =
        all().filter_map(|(labels, view)| Some((labels, (view.next? - view.log?.low) as f64)));
    family(text, LOG_START_DISTANCE_RECORDS, start);
    let runway = seen
        .partitions
        .iter()
        .filter_map(|((projection, partition), view)| {
            let kept = *seen.kept.get(partition.topic())?;
            let number = numbers.get(&partition.partition())?;
            let runway = view.runway(kept, seen.clock)?.as_secs_f64();
            Some((vec![&**projection, partition.topic(), number], runway))
        });
    family(text, RETENTION_RUNWAY_SECONDS, runway);
}

/// What every process says of the same tables; a reader takes the greatest.
fn of_database(text: &mut String, seen: &Snapshot) {
    let Some(figures) = &seen.figures else { return };
    let age = |since: chrono::DateTime<chrono::Utc>| {
        (seen.clock - since)
            .to_std()
            .unwrap_or_default()
            .as_secs_f64()
    };
    let paused = figures.paused.iter();
    let paused =
        paused.map(|(projection, paused)| (vec![&**projection], f64::from(u8::from(*paused))));
    family(text, PROJECTION_PAUSED, paused);
    let builds = figures.builds.iter();
    let builds: Vec<_> = builds
        .map(|of| (of, of.partition.partition().to_string()))
        .collect();
    for (metric, value) in [
        (REBUILD_DONE_RECORDS, (|of| of.done) as fn(&Build) -> i64),
        (REBUILD_LEFT_RECORDS, |of| of.remaining),
    ] {
        let series = builds.iter().map(|(of, number)| {
            let labels = vec![&*of.projection, of.partition.topic(), &**number];
            (labels, value(of) as f64)
        });
        family(text, metric, series);
    }
    let halted = figures.detached.iter().map(|of| {
        let halted = !of.trouble.is_empty();
        (vec![&*of.projection], f64::from(u8::from(halted)))
    });
    family(text, REBUILD_HALTED, halted);
    let letters = figures.letters.iter();
    let parked = letters.map(|of| (vec![&*of.projection, &*of.reason], of.waiting as f64));
    family(text, PARKED_RECORDS, parked);
    let mut oldest: BTreeMap<&str, f64> = BTreeMap::new();
    for of in &figures.letters {
        let entry = oldest.entry(&of.projection).or_default();
        *entry = entry.max(age(of.oldest));
    }
    let oldest = oldest
        .into_iter()
        .map(|(projection, age)| (vec![projection], age));
    family(text, PARKED_OLDEST_AGE_SECONDS, oldest);
    one(text, OUTBOX_UNSENT_MESSAGES, figures.unsent as f64);
    one(
        text,
        OUTBOX_OLDEST_UNSENT_AGE_SECONDS,
        figures.oldest_unsent.map_or(0.0, age),
    );
    one(
        text,
        OUTBOX_QUARANTINED_MESSAGES,
        figures.quarantined as f64,
    );
}

fn one(text: &mut String, metric: Metric, value: f64) {
    family(text, metric, [(Vec::new(), value)]);
}

/// One metric with all its series; nothing at all if it has none.
fn family<'a>(
    text: &mut String,
    metric: Metric,
    series: impl IntoIterator<Item = (Vec<&'a str>, f64)>,
) {
    let mut begun = false;
    for (values, value) in series {
        if !std::mem::replace(&mut begun, true) {
            let (name, kind) = (metric.name, metric.kind.name());
            let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", metric.help);
        }
        text.push_str(metric.name);
        debug_assert_eq!(values.len(), metric.labels.len(), "{}", metric.name);
        for (index, (label, value)) in metric.labels.iter().zip(values).enumerate() {
            let opening = if index == 0 { '{' } else { ',' };
            let _ = write!(text, "{opening}{label}=\"{}\"", escaped(value));
        }
        if !metric.labels.is_empty() {
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
    }
    if begun {
        text.push('\n');
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::table::PARKED_RECORDS;

    #[test]
    fn a_family_is_written_as_prometheus_reads_it() {
        let mut text = String::new();
        family(&mut text, PARKED_RECORDS, [(vec!["p", "a\"b\\c\nd"], 2.0)]);
        let (_, series) = text.split_once("gauge\n").unwrap();
        let expected = "tidegate_parked_records{projection=\"p\",reason=\"a\\\"b\\\\c\\nd\"} 2\n\n";
        assert_eq!(series, expected);
    }

    #[test]
    fn a_family_without_series_is_left_out() {
        let mut text = String::new();
        family(&mut text, PARKED_RECORDS, []);
        assert_eq!(text, "");
    }
}
