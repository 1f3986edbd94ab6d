//! The table of metrics is what docs, alerts and dashboards say it is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::table::ALL;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_documented_metrics_are_those_that_are_served() {
    let expected: Vec<String> = ALL
        .iter()
        .map(|metric| {
            let labels: Vec<String> = metric
                .labels
                .iter()
                .map(|label| format!("`{label}`"))
                .collect();
            let (name, kind, help) = (metric.name, metric.kind.name(), metric.help);
            format!("| `{name}` | {kind} | {} | {help} |", labels.join(", "))
        })
        .collect();
    let text = read("docs/metrics.md");
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| `tidegate_") || line.starts_with("| `process_"));
    let documented: Vec<&str> = rows.collect();
    assert_eq!(
        documented,
        expected,
        "the table of docs/metrics.md should be:\n{}",
        expected.join("\n")
    );
}

#[test]
fn names_are_as_prometheus_has_them() {
    let mut names = BTreeSet::new();
    for metric in ALL {
        let name = metric.name;
        assert!(names.insert(name), "{name} is there twice");
        let of_counter = metric.kind.name() == "counter";
        assert_eq!(name.ends_with("_total"), of_counter, "{name}");
        assert!(
            !metric.help.contains(['|', '\n']) && !metric.help.ends_with('.'),
            "{name}"
        );
        // Whatever an event can choose would make series without end.
        for label in metric.labels {
            let known = [
                "projection",
                "topic",
                "partition",
                "state",
                "outcome",
                "reason",
                "phase",
                "group",
                "version",
            ];
            assert!(known.contains(label), "{name} has the label {label}");
        }
    }
}
