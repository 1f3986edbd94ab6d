//! Rules about the source itself. No Kafka and no Postgres is needed for these.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// No file is longer, so that each can be read at one sitting.
const LINES_MAX: usize = 700;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a folder with this ending: path from the root, and text.
fn files(folder: &str, ending: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders: Vec<PathBuf> = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == ending) {
                let name = path.strip_prefix(root()).unwrap().display().to_string();
                found.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

/// A file's code: without comments, and without what only unit tests use.
fn code(text: &str) -> String {
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..tests].lines();
    let code = lines.map(|line| match line.find("//") {
        // Not the `//` of an address in a string.
        Some(at) if !line[..at].ends_with(':') => &line[..at],
        _ => line,
    });
    code.collect::<Vec<_>>().join("\n")
}

/// Whether code names a path that begins so: `tokio::`, `use tokio;`.
fn names(code: &str, path: &str) -> bool {
    let mut rest = code;
    while let Some(at) = rest.find(path) {
        let before = rest[..at].chars().next_back();
        let after = rest[at + path.len()..].chars().next();
        let word = |c: char| c.is_alphanumeric() || c == '_';
        if !before.is_some_and(|c| word(c) || c == ':') && !after.is_some_and(word) {
            return true;
        }
        rest = &rest[at + path.len()..];
    }
    false
}

/// The modules of ours that a file names: `crate::store` is `store`.
fn modules_named(code: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    let mut add = |path: &str| {
        let name: String = path
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        if !name.is_empty() {
            named.insert(name);
        }
    };
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => add(rest),
            // `use crate::{a, b::c}`: the names at the list's own depth.
            Some(list) => {
                let mut depth = 0;
                let mut begin = true;
                for (at, c) in list.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => begin = true,
                        c if c.is_whitespace() => {}
                        _ if begin => {
                            add(&list[at..]);
                            begin = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    named
}

/// The module that a file belongs to: `src/store/gate.rs` is of `store`.
fn module(file: &str) -> &str {
    let path = file.strip_prefix("src/").unwrap();
    path.split(['/', '.']).next().unwrap()
}

/// Who may know whom. What is not listed knows nothing of ours but itself.
const KNOWS: [(&str, &[&str]); 21] = [
    ("types", &[]),
    ("telemetry", &[]),
    ("engine", &[]),
    ("failpoint", &[]),
    ("health", &["types"]),
    ("http", &["health", "telemetry"]),
    ("avro", &[]),
    (
        "registry",
        &["types", "avro", "engine", "store", "telemetry"],
    ),
    ("projection", &["types", "engine", "avro", "store", "cli"]),
    (
        "codec",
        &["types", "engine", "avro", "registry", "projection"],
    ),
    ("store", &["types", "engine"]),
    (
        "sql_projection",
        &["types", "engine", "avro", "projection", "store"],
    ),
    ("kafka", &["types", "telemetry", "failpoint"]),
    (
        "relay",
        &[
            "types",
            "engine",
            "failpoint",
            "store",
            "kafka",
            "telemetry",
        ],
    ),
    (
        "runtime",
        &[
            "types",
            "engine",
            "failpoint",
            "projection",
            "codec",
            "registry",
            "store",
            "kafka",
            "relay",
            "config",
            "telemetry",
            "health",
        ],
    ),
    (
        "config",
        &[
            "types",
            "engine",
            "avro",
            "registry",
            "codec",
            "projection",
            "sql_projection",
            "store",
            "kafka",
        ],
    ),
    (
        "testing",
        &["types", "avro", "projection", "runtime", "store"],
    ),
    (
        "cli",
        &[
            "testing",
            "types",
            "engine",
            "avro",
            "projection",
            "sql_projection",
            "store",
            "kafka",
            "relay",
            "runtime",
            "config",
            "codec",
            "registry",
            "health",
            "http",
            "telemetry",
        ],
    ),
    ("outbox", &["types", "store", "projection"]),
    (
        "fuzzing",
        &["types", "avro", "projection", "codec", "sql_projection"],
    ),
    ("lib", &["cli", "outbox", "projection", "types"]),
];

#[test]
fn modules_know_only_whom_they_may() {
    let mut wrong = Vec::new();
    for (file, text) in files("src", "rs") {
        let own = module(&file);
        let known = KNOWS.iter().find(|(name, _)| *name == own);
        for other in modules_named(&code(&text)) {
            let allowed =
                other == own || known.is_some_and(|(_, others)| others.contains(&&*other));
            // Only modules count: `crate::Error` is a type.
            let is_module = KNOWS.iter().any(|(name, _)| *name == other) || other == "telemetry";
            // Tests build what they need from where it is.
            if is_module && !allowed && !file.ends_with("/tests.rs") {
                wrong.push(format!("{file} knows {other}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_module_is_in_the_list() {
    let known: BTreeSet<&str> = KNOWS.iter().map(|(name, _)| *name).collect();
    let found: BTreeSet<String> = files("src", "rs")
        .keys()
        .map(|f| module(f).to_owned())
        .collect();
    let unlisted: Vec<&String> = found
        .iter()
        .filter(|m| !known.contains(&***m) && *m != "main")
        .collect();
    assert!(unlisted.is_empty(), "say whom these may know: {unlisted:?}");
}

/// A file names none of these paths.
fn assert_free_of(module_name: &str, paths: &[&str]) {
    for (file, text) in files("src", "rs") {
        if module(&file) == module_name {
            let code = code(&text);
            let found: Vec<&&str> = paths.iter().filter(|path| names(&code, path)).collect();
            assert!(found.is_empty(), "{file} names {found:?}");
        }
    }
}

#[test]
fn decisions_are_pure() {
    let impure = [
        "tokio",
        "sqlx",
        "rdkafka",
        "std::time::Instant",
        "std::time::SystemTime",
        "Instant",
        "SystemTime",
        "fastrand",
        "std::fs",
        "std::env",
        "std::thread",
        "async",
        "await",
    ];
    assert_free_of("engine", &impure);
    assert_free_of("types", &impure);
}

/// Where a library may be named; a folder or a file.
#[track_caller]
fn assert_only_in(library: &str, allowed: &[&str]) {
    let strangers: Vec<String> = files("src", "rs")
        .into_iter()
        .filter(|(file, text)| {
            names(&code(text), library) && !allowed.iter().any(|allowed| file.starts_with(allowed))
        })
        .map(|(file, _)| file)
        .collect();
    assert!(strangers.is_empty(), "{library} is named in {strangers:?}");
}

#[test]
fn postgres_and_kafka_stay_in_their_modules() {
    assert_only_in(
        "sqlx",
        &[
            "src/store/",
            "src/sql_projection/",
            "src/projection/bulk.rs",
            "src/projection/context.rs",
            "src/projection/exact.rs",
            "src/projection/fold",
            "src/projection/gate_in.rs",
            "src/projection/handler.rs",
            "src/outbox.rs",
            // Only the connection, which is handed on.
            "src/runtime/admission.rs",
            "src/runtime/adoption.rs",
            "src/runtime/apply.rs",
            "src/runtime/bulk.rs",
            "src/runtime/claim.rs",
            "src/runtime/history.rs",
            "src/runtime/housekeeping.rs",
            "src/runtime/letters.rs",
            "src/runtime/observer.rs",
            "src/runtime/redrive.rs",
            "src/runtime/rehearsal.rs",
            "src/runtime/refusal.rs",
            "src/runtime/parking.rs",
            "src/runtime/quarantine.rs",
            "src/runtime/rebuild/",
            "src/runtime/reposition.rs",
            "src/runtime/reset.rs",
            "src/runtime/service.rs",
            "src/runtime/start.rs",
            "src/runtime/stragglers.rs",
            "src/runtime/writer/bulk.rs",
            "src/runtime/writer/mod.rs",
            "src/relay/",
            "src/cli/",
        ],
    );
    assert_only_in(
        "rdkafka",
        &[
            "src/kafka/",
            "src/relay/",
            "src/runtime/service.rs",
            "src/cli/demo",
            "src/cli/explain/log.rs",
            // A log filter names it.
            "src/cli/log.rs",
        ],
    );
}

#[test]
fn only_the_command_line_prints() {
    for (file, text) in files("src", "rs") {
        let code = code(&text);
        let prints = ["println!", "eprintln!", "print!(", "dbg!"]
            .iter()
            .any(|p| code.contains(p));
        assert!(!prints || file.starts_with("src/cli/"), "{file} prints");
    }
}

#[test]
fn every_sql_file_is_used_once_and_says_what_it_does() {
    let sources = files("src", "rs");
    let sql: Vec<(String, String)> = files("src", "sql")
        .into_iter()
        .chain(files("migrations", "sql"))
        .collect();
    assert!(sql.len() > 30);
    for (file, text) in sql {
        assert!(
            text.starts_with("-- "),
            "{file} does not begin with a comment"
        );
        assert!(
            text.ends_with('\n') && !text.ends_with("\n\n"),
            "{file} ends with one newline"
        );
        let name = file.rsplit('/').next().unwrap();
        let uses: usize = sources
            .values()
            .map(|source| {
                let folders = ["sql/", "../../migrations/"];
                let include = |folder| format!("include_str!(\"{folder}{name}\")");
                folders
                    .iter()
                    .map(|folder| source.matches(&include(folder)).count())
                    .sum::<usize>()
            })
            .sum();
        assert_eq!(uses, 1, "{file} is included {uses} times");
    }
}

/// The promises that a text names: `I1` to `I10`, as words.
fn promises(text: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for word in text.split(|c: char| !c.is_alphanumeric() && c != '_') {
        let number: Option<u32> = word
            .strip_prefix('I')
            .and_then(|number| number.parse().ok());
        found.extend(number.filter(|number| (1..=10).contains(number)));
    }
    found
}

/// The comment lines, which is where a promise is named.
fn comments(text: &str, begin: &str) -> String {
    let comments = text
        .lines()
        .filter_map(|line| Some(&line[line.find(begin)?..]));
    comments.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_promise_that_code_carries_is_named_by_a_test() {
    let mut carried = BTreeMap::new();
    for (kind, comment) in [("rs", "//"), ("sql", "--")] {
        for (file, text) in files("src", kind) {
            for promise in promises(&comments(&text, comment)) {
                carried.entry(promise).or_insert(file.clone());
            }
        }
    }
    let mut tested = BTreeSet::new();
    for (file, text) in files("tests/it", "rs") {
        if !file.ends_with("tidy.rs") && !file.contains("/harness/") {
            // Right above a test.
            let lines: Vec<&str> = text.lines().collect();
            for (at, _) in lines
                .iter()
                .enumerate()
                .filter(|(_, line)| **line == "#[test]")
            {
                let above = lines[..at]
                    .iter()
                    .rev()
                    .take_while(|line| line.starts_with("// "));
                tested.extend(promises(&above.copied().collect::<Vec<_>>().join("\n")));
            }
        }
    }
    assert!(carried.len() >= 7, "{carried:?}");
    for (promise, file) in carried {
        assert!(
            tested.contains(&promise),
            "I{promise} is carried by {file}, and named by no test"
        );
    }
}

#[test]
fn every_crash_point_has_a_test_and_a_row_in_the_failure_matrix() {
    let tests = fs::read_to_string(root().join("tests/it/crash.rs")).unwrap();
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for point in crate::failpoint::ALL {
        let kind = point.split('-').next().unwrap();
        // A test goes through all points of a kind, and fails if one is not reached.
        let goes_through = format!("points(\"{kind}\")");
        assert!(tests.contains(&goes_through), "no test reaches {point}");
        let row = format!("| `{point}` |");
        assert!(architecture.contains(&row), "no row for {point}");
    }
}

#[test]
fn no_file_is_too_long() {
    let all = ["src", "tests", "examples"].map(|folder| files(folder, "rs"));
    for (file, text) in all.into_iter().flatten() {
        if file.ends_with("/tests.rs") {
            continue; // tables of cases
        }
        let lines = text.lines().count();
        assert!(
            lines <= LINES_MAX,
            "{file} has {lines} lines; {LINES_MAX} are allowed"
        );
    }
}

#[test]
fn every_module_begins_with_an_essay() {
    for folder in ["src", "tests", "examples"] {
        for (file, text) in files(folder, "rs") {
            let is_tests = file.ends_with("/tests.rs");
            assert!(
                is_tests || text.starts_with("//! "),
                "{file} says nothing about itself"
            );
        }
    }
}

#[test]
fn every_test_that_the_cases_name_exists() {
    let text = fs::read_to_string(root().join("docs/cases.md")).unwrap();
    let code: String = ["tests", "src"]
        .iter()
        .flat_map(|folder| files(folder, "rs").into_values())
        .collect();
    // Test names are the long ones between backticks.
    let named = text.split('`').skip(1).step_by(2);
    let tests: Vec<&str> = named
        .filter(|name| name.matches('_').count() >= 3 && !name.contains([' ', '.']))
        .collect();
    assert!(tests.len() > 40, "{tests:?}");
    let missing: Vec<&&str> = tests
        .iter()
        .filter(|name| !code.contains(&format!("fn {name}()")))
        .collect();
    assert!(missing.is_empty(), "docs/cases.md names {missing:?}");
}
