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

/// The names of metrics that a text uses, without the ends of a histogram's series.
fn used(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| {
        ["tidegate_", "process_"]
            .iter()
            .any(|begin| word.starts_with(begin))
    });
    names
        .map(|name| {
            let plain = ["_bucket", "_sum", "_count"].iter().find_map(|end| {
                let plain = name.strip_suffix(end)?;
                let histogram = ALL
                    .iter()
                    .any(|metric| metric.name == plain && metric.kind.name() == "histogram");
                histogram.then_some(plain)
            });
            plain.unwrap_or(name).to_owned()
        })
        .collect()
}

#[test]
fn alerts_and_dashboard_use_metrics_that_are_served() {
    let served: BTreeSet<&str> = ALL.iter().map(|metric| metric.name).collect();
    for file in [
        "deploy/prometheus/alerts.yml",
        "deploy/prometheus/alerts_test.yml",
        "deploy/grafana/tidegate.json",
        "deploy/kubernetes/scaledobject.yaml",
        "docs/operations.md",
    ] {
        for name in used(&read(file)) {
            // A role's name is no metric's.
            assert!(
                served.contains(&*name) || name == "tidegate_runtime",
                "{file} uses {name}, which nobody serves"
            );
        }
    }
    assert!(used(&read("deploy/grafana/tidegate.json")).len() > 20);
}

#[test]
fn every_alert_has_its_section_in_the_runbook() {
    let (alerts, runbook) = (
        read("deploy/prometheus/alerts.yml"),
        read("docs/runbook.md"),
    );
    let after = |text: &str, begin: &str| -> Vec<String> {
        let found = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix(begin).map(str::to_owned));
        found.collect()
    };
    let names = after(&alerts, "- alert: ");
    assert!(names.len() > 10, "{names:?}");
    assert_eq!(
        after(&runbook, "## "),
        names,
        "sections of the runbook, in the order of the alerts"
    );
    let links: Vec<String> = names
        .iter()
        .map(|name| format!("docs/runbook.md#{}", name.to_lowercase()))
        .collect();
    let urls = after(&alerts, "runbook_url: ");
    assert!(
        urls.iter()
            .zip(&links)
            .all(|(url, link)| url.ends_with(&**link))
            && urls.len() == links.len()
    );
    for section in runbook.split("\n## ").skip(1) {
        for part in ["**Symptom.**", "**Meaning.**", "**First command.**"] {
            assert!(section.contains(part), "{part} is missing in {section}");
        }
    }
}
