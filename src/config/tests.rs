//! Text and environment in, settings or places of mistakes out.

use super::*;
use crate::projection::{Avro, Column, ColumnType, First, Format, Gate, Source, Start, Tombstones};

/// All that must be there.
const GOOD: &str = "\
[kafka]
bootstrap_servers = \"localhost:9092\"

[postgres]
url = \"postgres://localhost/shop\"
";

const PROJECTION: &str = "\
[projections.p]
topics = [\"t\"]
gate = \"none\"
columns = { a = \"text\" }
apply = [{ sql = \"INSERT INTO b SELECT a FROM events\" }]
";

fn read_text(text: &str, environment: &[(&str, &str)]) -> Draft {
    let variables = environment.iter();
    let variables = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    parse("f.toml", text, Path::new("/nowhere"), variables)
}

#[track_caller]
fn good(text: &str, environment: &[(&str, &str)]) -> Config {
    let config = read_text(text, environment).into_config();
    config.unwrap_or_else(|problems| panic!("{problems}"))
}

/// Each problem as `line:column what`, or `name what`, in the order in which they are shown.
fn shown(problems: &Problems) -> Vec<String> {
    let text = problems.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let whats = lines.iter().enumerate();
    let whats = whats.filter_map(|(i, line)| Some((i, line.strip_prefix("error: ")?)));
    let problem = |(i, what): (usize, &str)| {
        let place = lines[i + 1].split_once("--> ").unwrap().1;
        format!("{} {what}", place.strip_prefix("f.toml:").unwrap_or(place))
    };
    whats.map(problem).collect()
}

/// The problems of a text.
#[track_caller]
fn check(text: &str, expected: &[&str]) {
    assert_eq!(shown(&read_text(text, &[]).problems), expected, "{text}");
}

/// The problems of a line, put into the section of that name, which begins in line 6.
#[track_caller]
fn check_line(section: &str, line: &str, expected: &[&str]) {
    let (before, after) = match section {
        "kafka" | "postgres" => (String::new(), GOOD),
        _ => (GOOD.replace('\n', " # \n"), ""),
    };
    let text = match section {
        "kafka" | "postgres" => {
            let header = format!("[{section}]\n");
            GOOD.replace(&header, &format!("{header}{line}\n"))
        }
        "projections.p" => format!("{before}{PROJECTION}{line}\n"),
        _ => format!("{before}[{section}]\n{line}\n{after}"),
    };
    check(&text, expected);
}

#[test]
fn a_good_file_is_read() {
    let text = r#"
[kafka]
bootstrap_servers = "a:1,b:2"
group_prefix = "shop"
group_protocol = "consumer"
group_instance_id = "shop-0"
options = { "socket.nagle.disable" = "true", "linger.ms" = 5 }
[postgres]
url = "postgres://localhost/shop"
statement_timeout = "1m"
lock_timeout = "250ms"
[apply]
writers = 4
batch_records_max = 500
batch_linger = "0ms"
drain_max = "3 s"
[relay]
enabled = false
lease = "2s"
[projections.balances]
version = 3
topics = "ledger.entries"
entity = "/account"
sequence = "header:seq"
event_id = "key"
gate = "next"
first = "any"
tombstones = "filter"
start = "latest"
search_path = ["public"]
columns = { account = "text", memo = { type = "jsonb", from = "/a/b", nullable = true } }
[[projections.balances.apply]]
sql = "INSERT INTO b SELECT account FROM events"
[[projections.balances.emit]]
topic = "out"
per_event = true
sql = "SELECT _ref, memo AS payload FROM events"
"#;
    let config = good(text, &[]);
    assert_eq!(config.kafka.bootstrap_servers, "a:1,b:2");
    let options: Vec<_> = config.kafka.options.iter().collect();
    let expected = [("linger.ms", "5"), ("socket.nagle.disable", "true")];
    assert_eq!(options.len(), expected.len());
    for ((key, value), expected) in options.into_iter().zip(expected) {
        assert_eq!((&**key, &**value), expected);
    }
    assert_eq!(config.group_prefix, "shop");
    assert_eq!(config.group_protocol, GroupProtocol::Consumer);
    assert_eq!(config.group_instance_id.as_deref(), Some("shop-0"));
    assert_eq!(config.timeouts.statement, Duration::from_secs(60));
    assert_eq!(config.timeouts.lock, Duration::from_millis(250));
    assert_eq!(config.timeouts.idle_in_transaction, Duration::from_secs(10));
    assert_eq!(config.apply.writers, 4);
    assert_eq!(config.apply.batch_records_max, 500);
    assert_eq!(config.apply.batch_linger, Duration::ZERO);
    assert_eq!(config.apply.drain_max, Duration::from_secs(3));
    assert!(!config.relay.enabled);
    let [configured] = &config.projections[..] else {
        panic!("one projection")
    };
    let projection = &configured.projection;
    assert_eq!(projection.version, 3);
    assert_eq!(projection.topics, ["ledger.entries"]);
    assert_eq!(projection.gate, Gate::Next { first: First::Any });
    assert_eq!(
        projection.entity,
        Some(Source::Pointer("/account".to_owned()))
    );
    assert_eq!(projection.sequence, Some(Source::Header("seq".to_owned())));
    assert_eq!(projection.event_id, Some(Source::Key));
    assert_eq!(projection.tombstones, Some(Tombstones::Filter));
    assert_eq!(projection.start, Start::Latest);
    assert_eq!(projection.search_path, ["public"]);
    let memo = &projection.columns[1];
    assert_eq!(memo.source, Source::Pointer("/a/b".to_owned()));
    assert!(memo.nullable);
    assert_eq!(configured.sql.applies[0].label(), "apply 1");
    assert_eq!(configured.sql.emits[0].name, "out");
}

#[test]
fn the_example_is_good() {
    let text = include_str!("../../examples/ledger/tidegate.toml");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/ledger");
    let draft = parse("f.toml", text, &folder, std::iter::empty());
    assert_eq!(shown(&draft.problems), [""; 0]);
}

#[test]
fn what_is_not_set_has_a_default() {
    let config = good(GOOD, &[]);
    assert_eq!(config.group_prefix, "tidegate");
    assert_eq!(config.group_protocol, GroupProtocol::Classic);
    assert_eq!(config.group_instance_id, None);
    assert_eq!(config.timeouts.statement, Duration::from_secs(30));
    assert_eq!(config.apply.batch_records_max, 10_000);
    assert!(config.relay.enabled);
    assert!(config.projections.is_empty());
}

#[test]
fn the_environment_wins_over_the_file_and_the_file_over_the_default() {
    let text = GOOD.replace("[kafka]", "[kafka]\ngroup_prefix = \"file\"");
    assert_eq!(good(&text, &[]).group_prefix, "file");
    let variables = [
        ("TIDEGATE__KAFKA__GROUP_PREFIX", "environment"),
        ("TIDEGATE__RELAY__LEASE", "7s"),
        ("TIDEGATE__PROJECTIONS__P__GATE", "newest"),
        ("TIDEGATE__PROJECTIONS__P__ENTITY", "key"),
        ("TIDEGATE__PROJECTIONS__P__SEQUENCE", "/s"),
        ("TIDEGATE_CONFIG", "other.toml"),
        ("PATH", "/bin"),
    ];
    let config = good(&format!("{text}{PROJECTION}"), &variables);
    assert_eq!(config.group_prefix, "environment");
    assert_eq!(config.relay.lease, Duration::from_secs(7));
    assert_eq!(config.projections[0].projection.gate, Gate::Newest);
}

#[test]
fn the_environment_alone_is_enough() {
    let variables = [
        ("TIDEGATE__KAFKA__BOOTSTRAP_SERVERS", "b:1"),
        ("TIDEGATE__POSTGRES__URL", "postgres://localhost/x"),
        ("TIDEGATE__PROJECTIONS__P__GATE", "none"),
    ];
    let config = good(&PROJECTION.replace("gate = \"none\"\n", ""), &variables);
    assert_eq!(config.kafka.bootstrap_servers, "b:1");
    assert_eq!(config.projections[0].projection.gate, Gate::None);
}

/// The problems of the good file with one environment variable.
#[track_caller]
fn check_variable(name: &str, value: &str, what: &str) {
    let found = read_text(&format!("{GOOD}{PROJECTION}"), &[(name, value)]).problems;
    let expected = match what {
        "" => Vec::new(),
        what => vec![format!("environment variable {name} {what}")],
    };
    assert_eq!(shown(&found), expected);
}

#[test]
fn a_slip_in_a_variables_name_is_corrected() {
    for (name, cure) in [
        (
            "TIDEGATE__APPLY__WRITER",
            "did you mean TIDEGATE__APPLY__WRITERS?",
        ),
        (
            "TIDEGATE__HTTP__LISTN",
            "did you mean TIDEGATE__HTTP__LISTEN?",
        ),
        (
            "TIDEGATE__KAFKA__BOOTSTRAP_SERVER",
            "did you mean TIDEGATE__KAFKA__BOOTSTRAP_SERVERS?",
        ),
        ("TIDEGATE__X", "unset it, or correct its name"),
    ] {
        let text = read_text(GOOD, &[(name, "1")]).problems.to_string();
        assert!(text.contains(cure), "{text}");
    }
}

#[test]
fn an_environment_variable_must_name_a_setting() {
    check_variable("TIDEGATE__APPLY__WRITERS", "2", "");
    check_variable(
        "TIDEGATE__APPLY__WRITERS",
        "x",
        "`apply.writers` cannot be `x`",
    );
    check_variable(
        "TIDEGATE__KAFKA__GROUP",
        "x",
        "`kafka.group` is not a setting",
    );
    check_variable("TIDEGATE__POSTGRES__URL", "", "`postgres.url` is empty");
    check_variable(
        "TIDEGATE__POSTGRES__URL",
        "postgres://u:secret@h:x/d",
        "`postgres.url` cannot be read: error with configuration: invalid port number",
    );
    // No variable reaches into one table among many.
    check_variable(
        "TIDEGATE__PROJECTIONS__P__APPLY__SQL",
        "x",
        "`projections.p.apply.sql` is not a setting",
    );
    check_variable(
        "TIDEGATE__COLUMNS__A__TYPE",
        "x",
        "`columns.a.type` is not a setting",
    );
}

#[test]
fn what_is_missing_is_reported_with_its_cure() {
    check(
        "",
        &[
            "f.toml `kafka.bootstrap_servers` is missing",
            "f.toml `postgres.url` is missing",
        ],
    );
    check(
        "[kafka]\n\n[postgres]\n",
        &[
            "1:1 `kafka.bootstrap_servers` is missing",
            "3:1 `postgres.url` is missing",
        ],
    );
    let text = read_text("", &[]).problems.to_string();
    let cure = "= help: set it to postgres://user@host/database, or set TIDEGATE__POSTGRES__URL";
    assert!(text.contains(cure), "{text}");
}

#[test]
fn a_url_that_cannot_be_read_is_not_shown() {
    let text = GOOD.replace("localhost/shop", "u:secret@localhost:x/shop");
    let draft = read_text(&text, &[]);
    let expected =
        ["4:1 `postgres.url` cannot be read: error with configuration: invalid port number"];
    assert_eq!(shown(&draft.problems), expected);
    assert!(!draft.problems.to_string().contains("secret"));
}

#[test]
fn a_key_that_means_nothing_is_reported_with_the_nearest_one() {
    check_line(
        "kafka",
        "group_prefx = \"a\"",
        &["2:1 `kafka.group_prefx` is not a setting"],
    );
    check_line("kafak", "a = 1", &["6:2 `kafak` is not a setting"]);
    let suggested = |line: &str, cure: &str| {
        let text = read_text(&format!("{GOOD}[relay]\n{line}\n"), &[])
            .problems
            .to_string();
        assert!(text.contains(cure), "{text}");
    };
    suggested("enabeld = true", "did you mean `enabled`?");
    suggested("leas = \"1s\"", "did you mean `lease`?");
    suggested("foo = 1", "known are enabled, lease");
}

#[test]
fn a_misspelt_key_is_reported_once() {
    let text = format!("{GOOD}{PROJECTION}");
    check(
        &text.replace("gate =", "gaet ="),
        &["8:1 `projections.p.gaet` is not a setting"],
    );
    check(
        &text.replace("topics =", "topic ="),
        &["7:1 `projections.p.topic` is not a setting"],
    );
    check(
        &text.replace("sql =", "sqll ="),
        &["10:12 `projections.p.apply.sqll` is not a setting"],
    );
    check(
        &text.replace("url =", "ulr ="),
        &["5:1 `postgres.ulr` is not a setting"],
    );
}

#[test]
fn options_that_carry_a_promise_are_refused() {
    check_line(
        "kafka",
        "options = { \"group.id\" = \"a\", \"linger.ms\" = \"5\", acks = 1 }",
        &[
            "2:13 `group.id` is managed by tidegate",
            "2:50 `acks` is managed by tidegate",
        ],
    );
    check_line(
        "kafka",
        "options = { security.protocol = \"SSL\" }",
        &["2:13 `kafka.options.security` is not a string"],
    );
    check_line(
        "kafka",
        "options = 5",
        &["2:11 `kafka.options` is an integer, not a table"],
    );
}

#[test]
fn an_option_is_one_that_librdkafka_takes() {
    check_line(
        "kafka",
        "options = { \"sesion.timeout.ms\" = 6000, \"session.timeout.ms\" = \"x\" }",
        &[
            "2:13 librdkafka does not take `sesion.timeout.ms`: No such configuration property: \"sesion.timeout.ms\"",
            "2:41 librdkafka does not take `session.timeout.ms`: Invalid value for configuration property \"session.timeout.ms\"",
        ],
    );
}

// While a partition is drained nothing else is said to the group.
#[test]
fn a_revoke_ends_before_the_membership_does() {
    let drain = |drain: &str, options: &str, expected: &[&str]| {
        let text = GOOD.replace("[kafka]", &format!("[kafka]\noptions = {{ {options} }}"));
        check(&format!("{text}[apply]\n{drain}"), expected);
    };
    let short = "\"session.timeout.ms\" = 6000, \"max.poll.interval.ms\" = 6000";
    drain("", "", &[]);
    drain("drain_max = \"4m\"", "", &[]);
    let what = "8:13 `apply.drain_max` is 300s: a revoke could last 303s, and the group waits no longer than `max.poll.interval.ms`, 300s";
    drain("drain_max = \"5m\"", "", &[what]);
    drain("drain_max = \"2900ms\"", short, &[]);
    let what = "8:13 `apply.drain_max` is 3s: a revoke could last 6s, and the group waits no longer than `max.poll.interval.ms`, 6s";
    drain("drain_max = \"3s\"", short, &[what]);
    // The default is too long then.
    let what = "2:42 `apply.drain_max` is 10s: a revoke could last 13s, and the group waits no longer than `max.poll.interval.ms`, 6s";
    drain("", short, &[what]);
    let variable = [("TIDEGATE__APPLY__DRAIN_MAX", "10m")];
    let shown = read_text(GOOD, &variable).problems.to_string();
    assert!(shown.contains("environment variable TIDEGATE__APPLY__DRAIN_MAX"));
    assert!(shown.contains("help: write less than 297s, or raise `max.poll.interval.ms`"));
}

#[test]
fn a_session_is_no_longer_than_a_member_may_be_silent() {
    let lengths = |options: &str, expected: &[&str]| {
        let drain = "TIDEGATE__APPLY__DRAIN_MAX";
        let text = GOOD.replace("[kafka]", &format!("[kafka]\noptions = {{ {options} }}"));
        assert_eq!(
            shown(&read_text(&text, &[(drain, "1s")]).problems),
            expected
        );
    };
    lengths("\"session.timeout.ms\" = 45000", &[]);
    let what = "2:13 `max.poll.interval.ms`, 20s, is less than `session.timeout.ms`, 45s";
    lengths("\"max.poll.interval.ms\" = 20000", &[what]);
    let what = "2:13 `max.poll.interval.ms`, 300s, is less than `session.timeout.ms`, 301s";
    lengths("\"session.timeout.ms\" = 301000", &[what]);
}

#[test]
fn where_the_brokers_decide_they_say_how_long_a_session_is() {
    check_line(
        "kafka",
        "group_protocol = \"consumer\"\noptions = { \"session.timeout.ms\" = 6000 }",
        &["3:13 `session.timeout.ms` cannot be set with `group_protocol` `consumer`"],
    );
}

#[test]
fn an_instance_id_is_one_that_kafka_takes() {
    check_line("kafka", "group_instance_id = \"a.b_c-D9\"", &[]);
    check_line(
        "kafka",
        "group_instance_id = \"a b\"",
        &["2:21 `kafka.group_instance_id` cannot be `a b`"],
    );
    check_line(
        "kafka",
        "group_instance_id = \"\"",
        &["2:21 `kafka.group_instance_id` cannot be ``"],
    );
    let text = GOOD.replace(
        "[kafka]",
        "[kafka]\noptions = { \"group.instance.id\" = \"a\" }",
    );
    let text = read_text(&text, &[]).problems.to_string();
    assert!(text.contains("set `kafka.group_instance_id`"), "{text}");
}

#[test]
fn a_duration_has_a_unit_and_bounds() {
    for text in ["10s", "50ms", "5m", "5min", "1 s", "1440m", "24h", "1d"] {
        check_line("postgres", &format!("lock_timeout = \"{text}\""), &[]);
    }
    for text in [
        "10",
        "",
        "s",
        "-1s",
        "1.5s",
        "25h",
        "0s",
        "1441m",
        "99999999999999999999s",
        "1ü",
    ] {
        let what = format!("5:16 `postgres.lock_timeout` cannot be `{text}`");
        check_line("postgres", &format!("lock_timeout = \"{text}\""), &[&what]);
    }
    check_line(
        "postgres",
        "lock_timeout = 10",
        &["5:16 `postgres.lock_timeout` cannot be `10`"],
    );
    check_line(
        "postgres",
        "lock_timeout = [\"1s\"]",
        &["5:16 `postgres.lock_timeout` is an array, not a single value"],
    );
    check_line("apply", "batch_linger = \"0ms\"", &[]);
}

#[test]
fn a_history_is_kept_for_hours_or_days() {
    let keeps = |line: &str| {
        let config = good(&format!("{GOOD}{PROJECTION}{line}\n"), &[]);
        let hours = |history: Duration| history.as_secs() / 3600;
        config.projections[0].projection.history.map(hours)
    };
    assert_eq!(keeps(""), None);
    assert_eq!(keeps("history = \"off\""), None);
    assert_eq!(keeps("history = \"48h\""), Some(48));
    assert_eq!(keeps("history = \"7d\""), Some(7 * 24));
    for text in [
        "",
        "0h",
        "7",
        "7m",
        "3651d",
        "d",
        "1.5d",
        "99999999999999999999d",
    ] {
        let what = format!("11:11 `history` cannot be `{text}`");
        check_line("projections.p", &format!("history = \"{text}\""), &[&what]);
    }
}

#[test]
fn resolved_dead_letters_are_kept_for_days() {
    let days = |text: &str| {
        let config = good(&format!("{GOOD}{text}"), &[]);
        config.keep_letters.as_secs() / (24 * 60 * 60)
    };
    assert_eq!(days(""), 30);
    assert_eq!(days("[dead_letters]\nkeep_days = 1\n"), 1);
    check_line(
        "dead_letters",
        "keep_days = 0",
        &["7:13 `dead_letters.keep_days` cannot be `0`"],
    );
}

#[test]
fn sent_messages_are_kept_for_up_to_ten_years() {
    let keep = |text: &str| good(&format!("{GOOD}{text}"), &[]).keep_messages.as_secs();
    assert_eq!(keep(""), 24 * 60 * 60);
    assert_eq!(keep("[outbox]\nkeep = \"7d\"\n"), 7 * 24 * 60 * 60);
    for text in ["0s", "3651d", "off", "99999999999999999999d"] {
        let what = format!("7:8 `outbox.keep` cannot be `{text}`");
        check_line("outbox", &format!("keep = \"{text}\""), &[&what]);
    }
}

#[test]
fn the_relays_headers_can_be_renamed_and_left_out() {
    let headers = |text: &str| good(&format!("{GOOD}{text}"), &[]).relay.headers;
    assert_eq!(headers("").id.as_deref(), Some("ce_id"));
    let names = headers("[relay.headers]\nid = \"event-id\"\ntype = \"\"\n");
    assert_eq!(names.id.as_deref(), Some("event-id"));
    assert_eq!((names.kind, names.time.is_some()), (None, true));
    check_line(
        "relay.headers",
        "id = \"ce_type\"",
        &["6:1 `relay.headers` has the name `ce_type` twice"],
    );
}

#[test]
fn dead_letters_go_to_a_topic_that_the_projection_does_not_read() {
    let line = |topic: &str| format!("dead_letter_topic = \"{topic}\"");
    check_line("projections.p", &line("t-dead"), &[]);
    check_line(
        "projections.p",
        &line("t"),
        &["11:21 `t` is a topic that the projection reads: it would park its own dead letters"],
    );
    check_line(
        "projections.p",
        &line("a b"),
        &["11:21 `a b` cannot name a topic"],
    );
    check_line(
        "projections.p",
        &format!("{}\non_failure = \"halt\"", line("t-dead")),
        &["11:21 with `on_failure = \"halt\"` there are no dead letters to send"],
    );
}

#[test]
fn a_count_has_bounds() {
    check_line("apply", "writers = 64", &[]);
    check_line(
        "apply",
        "writers = 0",
        &["7:11 `apply.writers` cannot be `0`"],
    );
    check_line(
        "apply",
        "writers = -1",
        &["7:11 `apply.writers` cannot be `-1`"],
    );
    check_line(
        "apply",
        "writers = \"many\"",
        &["7:11 `apply.writers` cannot be `many`"],
    );
    check_line(
        "relay",
        "enabled = \"yes\"",
        &["7:11 `relay.enabled` cannot be `yes`"],
    );
}

#[test]
fn columns_have_two_forms() {
    let check_columns = |columns: &str, expected: &[&str]| {
        let text = PROJECTION.replace("{ a = \"text\" }", columns);
        check(&format!("{GOOD}{text}"), expected);
    };
    check_columns("{ a = \"double precision\" }", &[]);
    check_columns("{ a = { type = \"uuid\" } }", &[]);
    check_columns(
        "{ a = { type = \"text\", from = \"key\", nullable = false } }",
        &[],
    );
    check_columns(
        "{ a = \"string\" }",
        &["9:17 column `a`: unknown type `string`"],
    );
    check_columns(
        "{ a = \"money\" }",
        &["9:17 column `a`: unknown type `money`"],
    );
    check_columns("{ a = 5 }", &["9:17 column `a` is an integer"]);
    check_columns(
        "{ a = { from = \"key\" } }",
        &["9:17 column `a` has no type"],
    );
    check_columns(
        "{ a = { type = 5 } }",
        &["9:26 column `a`: unknown type `5`"],
    );
    check_columns(
        "{ a = { type = \"text\", from = \"b\", nul = true } }",
        &[
            "9:41 `from`: `b` is not a source",
            "9:46 `projections.p.columns.a.nul` is not a setting",
        ],
    );
    check_columns(
        "{ a = { type = \"text\", nullable = 1 } }",
        &["9:45 `projections.p.columns.a.nullable` cannot be `1`"],
    );
    check_columns(
        "{ a = \"text\", _b = \"text\", C = \"text\" }",
        &[
            "9:25 column `_b`: names that begin with `_` are tidegate's own",
            "9:38 column `C`: a column's name is lower-case letters, digits and _, beginning with a letter",
        ],
    );
    check_columns("\"a\"", &["9:11 `columns` is a string, not a table"]);
}

#[test]
fn a_statement_that_names_a_wrong_column_is_not_checked_further() {
    let text = format!("{GOOD}{PROJECTION}").replace("a = \"text\"", "a = \"text\", zz = \"tex\"");
    let text = text.replace(
        "apply = [",
        "apply = [{ sql = \"INSERT INTO b SELECT ZZ FROM events\" },",
    );
    let draft = read_text(&text, &[]);
    assert_eq!(
        shown(&draft.problems),
        ["9:30 column `zz`: unknown type `tex`"]
    );
    let labels: Vec<_> = draft.projections[0]
        .sql
        .applies
        .iter()
        .map(|s| s.label())
        .collect();
    assert_eq!(labels, ["apply 2"]);
    assert_eq!(draft.projections[0].applies.len(), 1);
}

#[test]
fn a_gate_has_what_it_needs() {
    let check_gate = |gate: &str, expected: &[&str]| {
        check(
            &format!("{GOOD}{PROJECTION}").replace("gate = \"none\"", gate),
            expected,
        );
    };
    let both = "gate = \"next\"\nentity = \"key\"\nsequence = \"/s\"";
    check_gate(both, &[]);
    check_gate(&format!("{both}\nfirst = 0"), &[]);
    check_gate(
        &format!("{both}\nfirst = \"one\""),
        &["11:9 `first` cannot be `one`"],
    );
    check_gate(
        "gate = \"newest\"",
        &["8:8 gate `newest` needs `entity` and `sequence`"],
    );
    check_gate(
        "gate = \"next\"\nentity = \"key\"",
        &["8:8 gate `next` needs `sequence`"],
    );
    check_gate(
        "gate = \"nxt\"",
        &["8:8 `projections.p.gate` cannot be `nxt`"],
    );
    check_gate(
        "",
        &[
            "6:14 `projections.p.gate` is missing: tidegate does not guess how events are to be admitted",
        ],
    );
    check_gate(
        "gate = \"none\"\nfirst = 5",
        &["9:9 `first` means nothing with gate `none`"],
    );
    check_gate(
        "gate = \"newest\"\nentity = \"account\"\nsequence = \"header:\"",
        &[
            "9:10 `entity`: `account` is not a source",
            "10:12 `sequence`: `header:` is not a source",
        ],
    );
}

#[test]
fn a_topic_is_one_that_kafka_has() {
    let check_topics = |topics: &str, expected: &[&str]| {
        check(
            &format!("{GOOD}{PROJECTION}").replace("[\"t\"]", topics),
            expected,
        );
    };
    check_topics("\"a.b_c-D9\"", &[]);
    check_topics("[]", &["7:10 a projection needs at least one topic"]);
    check_topics("[\"a\", \"^b\"]", &["7:16 `^b` cannot name a topic"]);
    check_topics("[\"\"]", &["7:11 `` cannot name a topic"]);
    check_topics("[\"a\", \"b\", \"a\"]", &["7:21 topic `a` is named twice"]);
    check_topics(
        "5",
        &["7:10 `projections.p.topics` holds an integer, not a string"],
    );
    check(
        &format!("{GOOD}{PROJECTION}").replace("topics = [\"t\"]\n", ""),
        &["6:14 `projections.p.topics` is missing"],
    );
}

#[test]
fn a_projection_has_a_name_of_its_own() {
    let check_name = |name: &str, what: &str| {
        let text =
            format!("{GOOD}{PROJECTION}").replace("projections.p", &format!("projections.{name}"));
        check(&text, &[what]);
    };
    check_name(
        "Big",
        "6:14 `Big` cannot name a projection: it becomes a schema and part of a consumer group",
    );
    check_name(
        "public",
        "6:14 `public` is a name of Postgres or Tidegate itself",
    );
    check_name(
        "pg_x",
        "6:14 `pg_x` is a name of Postgres or Tidegate itself",
    );
    check_line(
        "projections",
        "p = 5",
        &["7:1 `projections.p` is an integer, not a table"],
    );
}

#[test]
fn files_are_read_beside_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("good.sql"), "CREATE TABLE b (a text)").unwrap();
    std::fs::write(folder.path().join("bad.sql"), "-- ü\nSELECT 1;\n  COMMIT;").unwrap();
    let read = |line: &str| {
        let text = format!("{GOOD}{PROJECTION}").replace("gate =", &format!("{line}\ngate ="));
        parse("f.toml", &text, folder.path(), std::iter::empty())
    };
    let config = read("setup = \"good.sql\"").into_config().unwrap();
    assert_eq!(
        config.projections[0].projection.setup,
        "CREATE TABLE b (a text)"
    );

    let draft = read("seed = \"none.sql\"");
    let path = folder.path().join("none.sql").display().to_string();
    let what = format!("8:8 `seed`: {path} cannot be read: No such file or directory (os error 2)");
    assert_eq!(shown(&draft.problems), [what]);
    // Without its tables, every statement would be wrong.
    assert!(draft.projections[0].sql.applies.is_empty());

    let draft = read("setup = \"bad.sql\"");
    let path = folder.path().join("bad.sql").display().to_string();
    let what = format!("{path}:3:3 `setup` ends the transaction that it runs in");
    assert_eq!(shown(&draft.problems), [what]);
}

#[test]
fn statements_are_wrong_where_they_are_wrong() {
    let check_sql = |sql: &str, expected: &[&str]| {
        let text = format!("{GOOD}{PROJECTION}");
        let old = "\"INSERT INTO b SELECT a FROM events\"";
        check(&text.replace(old, sql), expected);
    };
    check_sql(
        "\"SELECT 'ü', $1 FROM events\"",
        &["10:31 projection `p`, apply 1: `$n` would name one of tidegate's own arrays"],
    );
    check_sql(
        "'SELECT \"ü\", $1 FROM events'",
        &["10:31 projection `p`, apply 1: `$n` would name one of tidegate's own arrays"],
    );
    check_sql(
        "\"\"\"\nSELECT 'ü',\n  $1 FROM events\"\"\"",
        &["12:3 projection `p`, apply 1: `$n` would name one of tidegate's own arrays"],
    );
    check_sql(
        "'''SELECT\n\t$1 FROM events'''",
        &["11:2 projection `p`, apply 1: `$n` would name one of tidegate's own arrays"],
    );
    check_sql(
        "\"\"\"\r\nSELECT 'ü',\r\n  $1 FROM events\"\"\"",
        &["12:3 projection `p`, apply 1: `$n` would name one of tidegate's own arrays"],
    );
    // With escapes the text in the file is another one: the statement as a whole is named.
    check_sql(
        "\"SELECT \\\"x\\\", $1 FROM events\"",
        &["10:18 projection `p`, apply 1: `$n` would name one of tidegate's own arrays"],
    );
    check_sql("\"\"", &["10:18 `projections.p.apply.sql` is empty"]);
    check_sql(
        "5",
        &[
            "10:18 projection `p`, apply 1: the statement reads neither `events` nor `latest`, so what it does would depend on how events are batched",
        ],
    );
    check_sql(
        "[\"SELECT\"]",
        &["10:18 `projections.p.apply.sql` is an array, not a single value"],
    );
}

#[test]
fn the_latest_event_is_that_of_an_entity() {
    let text = format!("{GOOD}{PROJECTION}").replace("a FROM events", "a FROM latest");
    check(
        &text,
        &[
            "10:47 projection `p`, apply 1: `latest` has the last event of each entity, and there is no `entity`",
        ],
    );
    check(&format!("{text}entity = \"key\"\n"), &[]);
}

#[test]
fn what_an_emit_sends_does_not_depend_on_how_events_are_batched() {
    let check_emit = |settings: &str, sql: &str, expected: &[&str]| {
        let emit = format!("emit = [{{ topic = \"a\", {settings}sql = \"{sql}\" }}]");
        let text = format!("{GOOD}{PROJECTION}entity = \"key\"\n{emit}\n");
        check(&text, expected);
    };
    let latest = "SELECT _ref, a AS payload FROM latest";
    let what = "12:62 projection `p`, emit a: `latest` has the last event of each entity in the batch, so which messages leave would depend on how events are batched";
    check_emit("", latest, &[what]);
    check_emit("per_event = true, ", latest, &[]);
    check_emit("", "SELECT _ref, a AS payload FROM events", &[]);
    check_emit("", "SELECT _ref, b.latest AS payload FROM events, b", &[]);
}

#[test]
fn emits_have_a_topic_and_a_name_of_their_own() {
    let check_emit = |emit: &str, expected: &[&str]| {
        check(&format!("{GOOD}{PROJECTION}emit = [{emit}]\n"), expected);
    };
    let sql = "sql = \"SELECT _ref, a AS payload FROM events\"";
    check_emit(
        &format!("{{ topic = \"a\", {sql} }}, {{ topic = \"a\", name = \"b\", {sql} }}"),
        &[],
    );
    check_emit(
        &format!("{{ {sql} }}"),
        &["11:9 `projections.p.emit.topic` is missing"],
    );
    check_emit(
        &format!("{{ topic = \"a b\", {sql} }}"),
        &["11:19 `a b` cannot name a topic"],
    );
    check_emit(
        &format!("{{ topic = \"a\", {sql} }}, {{ name = \"a\", topic = \"b\", {sql} }}"),
        &["11:82 two emits are named `a`"],
    );
    check_emit(
        "{ topic = \"a\" }",
        &["11:9 `projections.p.emit.sql` is missing"],
    );
    check_emit("5", &["11:8 `projections.p.emit` is an array, not tables"]);
}

#[test]
fn a_projection_applies_something() {
    let text = format!("{GOOD}{PROJECTION}");
    let without = &text[..text.find("apply").unwrap()];
    check(without, &["6:14 `projections.p` applies nothing"]);
    check(
        &format!("{without}apply = []\n"),
        &["6:14 `projections.p` applies nothing"],
    );
    check(
        &format!("{without}apply = 5\n"),
        &["10:9 `projections.p.apply` is an integer, not tables"],
    );
    check(
        &format!("{text}per_event = true\n"),
        &["11:1 `projections.p.per_event` is not a setting"],
    );
}

#[test]
fn the_syntax_is_checked_first() {
    check(
        "[kafka]\ngroup_prefix = ü\nx = [1,\n",
        &[
            "2:16 string values must be quoted, expected literal string",
            "3:8 unclosed array, expected `]`",
        ],
    );
    check("[a]\n[a]\n", &["2:2 duplicate key"]);
    // What is not closed makes a mistake of each line behind it.
    let text = format!("[a]\nx = [1\n{}", "y = 1\n".repeat(9));
    let found = shown(&read_text(&text, &[]).problems);
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(
        found[0],
        "3:1 missing comma between array elements, expected `,`"
    );
}

#[test]
fn a_tombstone_that_is_an_event_has_no_value_to_read() {
    let tombstones = |entity: &str| {
        let in_key = PROJECTION.replace(
            "gate",
            &format!("entity = \"{entity}\"\ntombstones = \"event\"\ngate"),
        );
        shown(&read_text(&format!("{GOOD}{in_key}"), &[]).problems)
    };
    assert_eq!(tombstones("key"), [""; 0]);
    assert!(tombstones("/a")[0].contains("in which `entity` is looked for"));
}

#[test]
fn all_mistakes_come_in_the_order_of_the_file() {
    let text = format!(
        "top = 1\n{GOOD}[apply]\nwriters = 0\n{}",
        PROJECTION
            .replace("\"none\"", "\"nxt\"")
            .replace("a FROM", "$1 FROM")
    );
    let draft = read_text(&text, &[("TIDEGATE__X", "1")]);
    assert_eq!(
        shown(&draft.problems),
        [
            "1:1 `top` is not a setting",
            "8:11 `apply.writers` cannot be `0`",
            "11:8 `projections.p.gate` cannot be `nxt`",
            "13:40 projection `p`, apply 1: `$n` would name one of tidegate's own arrays",
            "environment variable TIDEGATE__X `x` is not a setting",
        ]
    );
    assert!(draft.into_config().is_err());
}

#[test]
fn a_problem_is_shown_as_a_compiler_would() {
    let text = "[kafka]\nbootstrap_servers = \"b\"\n\n[postgres]\nurl = \"postgres://h/d\"\n\n\n\n[apply]\nwritres = 2\nbatch_linger = \"\t10\"\n";
    let expected = "\
error: `apply.writres` is not a setting
  --> f.toml:10:1
   |
10 | writres = 2
   | ^^^^^^^
   = help: did you mean `writers`?

error: `apply.batch_linger` cannot be `\t10`
  --> f.toml:11:16
   |
11 | batch_linger = \"\t10\"
   |                ^^^^^
   = help: write a duration such as \"50ms\", \"10s\" or \"5m\", up to a day
";
    assert_eq!(read_text(text, &[]).problems.to_string(), expected);
}

#[test]
fn the_same_problem_is_reported_once() {
    let mut problems = Problems::default();
    for _ in 0..2 {
        problems.add(Place::Name("a".to_owned()), "b".to_owned(), "c");
    }
    assert_eq!(problems.len(), 1);
    assert_eq!(problems.to_string(), "error: b\n --> a\n  = help: c\n");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let draft = super::draft(Path::new("/nowhere/f.toml"), std::iter::empty());
    let what = "/nowhere/f.toml the configuration file cannot be read: No such file or directory (os error 2)";
    assert_eq!(shown(&draft.problems), [what]);
    assert!(draft.into_config().is_err());
}

/// A configuration beside files with schemas.
#[track_caller]
fn check_avro(settings: &str, expected: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let entry = r#"{"type": "record", "name": "Entry", "fields": [
        {"name": "account", "type": "string"}, {"name": "amount", "type": ["null", "long"]}, {"name": "flag", "type": "Flag"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "price", "type": "double"}]}}}]}"#;
    let flag = r#"{"type": "enum", "name": "Flag", "symbols": ["Y", "N"]}"#;
    let broken = "{\n  \"type\": record\n}";
    let nameless = r#"{"type": "record"}"#;
    for (name, text) in [
        ("entry.avsc", entry),
        ("flag.avsc", flag),
        ("broken.avsc", broken),
        ("nameless.avsc", nameless),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let text = format!(
        "{GOOD}[projections.p]\ntopics = [\"t\"]\ngate = \"none\"\nformat = \"avro\"\napply = [{{ sql = \"INSERT INTO b SELECT _ref FROM events\" }}]\n{settings}\n"
    );
    let draft = parse("f.toml", &text, folder.path(), std::iter::empty());
    let place = format!("{}/", folder.path().display());
    let found = shown(&draft.problems).into_iter();
    let found: Vec<String> = found.map(|text| text.replace(&place, "")).collect();
    assert_eq!(found, expected, "{text}");
}

#[test]
fn paths_and_types_are_compared_with_the_schema() {
    let with =
        |more: &str| format!("framing = \"raw\"\nschema = [\"flag.avsc\", \"entry.avsc\"]\n{more}");
    check_avro(&with(""), &[]);
    check_avro(
        &with(
            "entity = \"/account\"\nsequence = \"/amount\"\nevent_id = \"header:id\"\ncolumns = { account = \"text\", amount = { type = \"bigint\", nullable = true }, at = \"timestamptz\", flag = \"text\", price = { type = \"double precision\", from = \"/lines/0/price\" }, lines = \"jsonb\" }",
        ),
        &[],
    );
    check_avro(
        &with(
            "entity = \"/acount\"\nsequence = \"/account/x\"\nevent_id = \"/lines\"\n[projections.p.columns]\namount = \"text\"\nat = \"bigint\"\nprice = { type = \"text\", from = \"/lines/x/price\" }\nflag = \"uuid\"",
        ),
        &[
            "13:10 `entity`: the schema has no `acount` at `/acount`",
            "14:12 `sequence`: the schema has no `x` at `/account/x`",
            "15:12 `event_id`: the schema has a record, an array or a map at `/lines`, which cannot be a string, a UUID or an integer",
            "17:10 column `amount`: the schema has an integer at `/amount`, which cannot be text",
            "18:6 column `at`: the schema has a timestamp at `/at`, which cannot be bigint",
            "19:33 column `price`: the schema has no `x` at `/lines/x/price`",
        ],
    );
}

#[test]
fn a_path_into_a_key_needs_the_keys_schema() {
    let with = |entity: &str, more: &str| {
        format!(
            "framing = \"raw\"\nschema = [\"flag.avsc\", \"entry.avsc\"]\nentity = \"key:{entity}\"\n{more}"
        )
    };
    let key_schema = "key_schema = [\"flag.avsc\", \"entry.avsc\"]";
    check_avro(&with("/account", key_schema), &[]);
    check_avro(
        &with("/account", ""),
        &[
            "13:10 `entity`: `key:/account` is a part of the key, and needs `key_schema`, by which keys in Avro are read",
        ],
    );
    check_avro(
        &with("/acount", key_schema),
        &["13:10 `entity`: the schema has no `acount` at `/acount`"],
    );
    check_line(
        "projections.p",
        "key_schema = \"a.avsc\"",
        &["11:14 `key_schema` means nothing where values are not in Avro"],
    );
}

#[test]
fn a_schema_that_cannot_be_read_is_named_with_its_line() {
    check_avro(
        "",
        &[
            "9:10 `format = \"avro\"` needs `schema`, by which values are read",
            "9:10 the framing `confluent` needs [schema_registry]",
        ],
    );
    let raw = |schema: &str| format!("framing = \"raw\"\nschema = {schema}");
    check_avro(
        &raw("\"nowhere.avsc\""),
        &["12:10 nowhere.avsc cannot be read: No such file or directory (os error 2)"],
    );
    check_avro(
        &raw("\"broken.avsc\""),
        &["broken.avsc:2:11 not JSON: expected value at line 2 column 11"],
    );
    check_avro(
        &raw("\"nameless.avsc\""),
        &["nameless.avsc not an Avro schema: No `name` field"],
    );
    check_avro(
        &raw("\"entry.avsc\""),
        &["entry.avsc not an Avro schema: Unknown primitive type: Flag"],
    );
    check_avro(
        "framing = \"raw\"\nschema = \"flag.avsc\"\nwritten_with = [\"flag.avsc\", \"flag.avsc\"]",
        &["13:16 a value without a frame does not say which of several schemas wrote it"],
    );
    check_avro(
        "framing = \"boxed\"\nschema = \"flag.avsc\"\n[schema_registry]\nurl = \"http://r\"",
        &["11:11 `projections.p.framing` cannot be `boxed`"],
    );
    check_avro(
        "framing = \"confluent\"\nschema = \"flag.avsc\"\nwritten_with = \"flag.avsc\"\n[schema_registry]\nurl = \"http://r\"",
        &["13:16 `written_with` means nothing with the framing `confluent`"],
    );
    check_line(
        "projections.p",
        "schema = \"a.avsc\"",
        &["11:10 `schema` means nothing with `format = \"json\"`"],
    );
}

#[test]
fn a_registry_needs_an_address_and_one_way_in() {
    let settings = |lines: &str| {
        let config = good(&format!("{GOOD}[schema_registry]\n{lines}"), &[]);
        config.schema_registry.unwrap()
    };
    let found = settings("url = \"http://a:1/, https://b/x\"\nunknown_grace = \"1m\"");
    assert_eq!(found.urls, ["http://a:1/", "https://b/x"]);
    assert_eq!(
        (found.timeout, found.unknown_grace),
        (Duration::from_secs(5), Duration::from_secs(60))
    );
    assert!(good(GOOD, &[]).schema_registry.is_none());
    let environment = [
        ("TIDEGATE__SCHEMA_REGISTRY__URL", "http://a"),
        ("TIDEGATE__SCHEMA_REGISTRY__TOKEN", "t0ken"),
    ];
    let config = good(GOOD, &environment);
    assert_eq!(config.secrets().cleaned("a t0ken b"), "a *** b");
    assert!(
        matches!(config.schema_registry.unwrap().credentials, Credentials::Bearer(t) if t == "t0ken")
    );
    let check = |lines: &str, expected: &[&str]| {
        check(&format!("{GOOD}[schema_registry]\n{lines}\n"), expected);
    };
    check("", &["6:1 `schema_registry.url` is missing"]);
    for (url, why) in [
        ("registry:8081", "begins with neither http:// nor https://"),
        ("http://", "begins with neither http:// nor https://"),
        (
            "http://user:secret@a",
            "names a user; there are settings for that",
        ),
        ("http://a?x=y", "goes on behind its path"),
    ] {
        let expected = format!("7:7 an address in `schema_registry.url` {why}");
        check(&format!("url = \"{url}\""), &[&expected]);
    }
    let together = "8:8 `user` and `password` go together, and `token` alone";
    check("url = \"http://a\"\nuser = \"u\"", &[together]);
    check(
        "url = \"http://a\"\nca_file = \"nowhere.pem\"",
        &[
            "8:11 `ca_file`: /nowhere/nowhere.pem cannot be read: No such file or directory (os error 2)",
        ],
    );
}

#[test]
fn an_address_to_listen_at_has_a_port() {
    let listen = |text: &str, environment: &[(&str, &str)]| {
        let http = good(&format!("{GOOD}{text}"), environment).http;
        http.map(|http| http.listen)
    };
    assert_eq!(listen("", &[]), None);
    let file = "[http]\nlisten = \"127.0.0.1:9600\"\n";
    let address = |text: &str| Some(text.parse().unwrap());
    assert_eq!(listen(file, &[]), address("127.0.0.1:9600"));
    let variable = "TIDEGATE__HTTP__LISTEN";
    assert_eq!(listen(file, &[(variable, "[::]:80")]), address("[::]:80"));
    assert_eq!(listen(file, &[(variable, "")]), None);
    check_line(
        "http",
        "listen = \"9600\"",
        &["7:10 `http.listen` cannot be `9600`"],
    );
    check_line(
        "http",
        "listn = \"127.0.0.1:9600\"",
        &["7:1 `http.listn` is not a setting"],
    );
}

#[test]
fn whoever_can_reach_the_admin_api_must_know_its_token() {
    let token = "admin_token = \"0123456789abcdef\"";
    for fine in [
        "listen = \"127.0.0.1:1\"\nadmin = true".to_owned(),
        "listen = \"[::1]:1\"\nadmin = true".to_owned(),
        "listen = \"0.0.0.0:1\"\nadmin = false".to_owned(),
        format!("listen = \"0.0.0.0:1\"\nadmin = true\n{token}"),
    ] {
        good(&format!("{GOOD}[http]\n{fine}\n"), &[]);
    }
    check_line(
        "http",
        "listen = \"0.0.0.0:1\"\nadmin = true",
        &[
            "8:9 `http.admin` is on at 0.0.0.0:1, where others can reach it, without `http.admin_token`",
        ],
    );
    check_line(
        "http",
        "admin = true",
        &["7:9 `http.admin` is on, and nothing listens"],
    );
    check_line(
        "http",
        "admin_token = \"short\"",
        &["7:15 `http.admin_token` is too short, or not of visible ASCII characters"],
    );
}

#[test]
fn a_memory_budget_is_a_size() {
    let budget = |text: &str| good(&format!("{GOOD}{text}"), &[]).memory.budget;
    assert_eq!(budget(""), 512 << 20);
    assert_eq!(budget("[memory]\nbudget = \"64MB\"\n"), 64 << 20);
    for wrong in ["512", "31MB", "1TB", "-1MB"] {
        check_line(
            "memory",
            &format!("budget = \"{wrong}\""),
            &[&format!("7:10 `memory.budget` cannot be `{wrong}`")],
        );
    }
}

#[test]
fn variables_name_options_of_librdkafka_too() {
    let file = GOOD.replace(
        "[kafka]\n",
        "[kafka]\noptions = { \"client.rack\" = \"a\", \"sasl.username\" = \"u\" }\n",
    );
    let variables = [
        ("TIDEGATE__KAFKA__OPTIONS__SASL__PASSWORD", "hunter22"),
        ("TIDEGATE__KAFKA__OPTIONS__CLIENT__RACK", "b"),
    ];
    let config = good(&file, &variables);
    let option = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let expected = [
        option("client.rack", "b"),
        option("sasl.password", "hunter22"),
        option("sasl.username", "u"),
    ];
    assert_eq!(config.kafka.options, expected.into());
    assert_eq!(config.secrets().cleaned("hunter22"), "***");
    let managed = "environment variable TIDEGATE__KAFKA__OPTIONS__GROUP__ID `group.id` is managed by tidegate";
    check_variable(
        "TIDEGATE__KAFKA__OPTIONS__GROUP__ID",
        "g",
        managed.split_once("ID ").unwrap().1,
    );
}

#[test]
fn a_value_can_come_from_a_file_that_a_variable_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("url");
    std::fs::write(&path, "postgres://u:hunter22@h/d\n").unwrap();
    let path = path.display().to_string();
    let name = "TIDEGATE__POSTGRES__URL__FILE";
    let config = good(GOOD, &[(name, &path)]);
    assert_eq!(config.postgres_url, "postgres://u:hunter22@h/d");
    assert_eq!(config.secrets().cleaned("hunter22"), "***");
    check_variable(
        name,
        "/nowhere/url",
        "/nowhere/url cannot be read: No such file or directory (os error 2)",
    );
    let twice = [
        (name, &*path),
        ("TIDEGATE__POSTGRES__URL", "postgres://h/d"),
    ];
    let what = format!(
        "environment variable {name} `postgres.url` is set by a file and by TIDEGATE__POSTGRES__URL"
    );
    assert_eq!(shown(&read_text(GOOD, &twice).problems), [what]);
}

#[test]
fn a_gate_in_the_row_names_what_its_statement_has_to_write() {
    let in_row = r#"
[projections.p]
topics   = ["t"]
entity   = "key"
sequence = "/seq"
gate     = "next"
gate_in  = "b.id"
[[projections.p.apply]]
sql = "INSERT INTO b SELECT max(_sequence), max(_previous) FROM events ON CONFLICT (id) DO UPDATE SET c = 1 WHERE b._sequence = excluded._previous"
"#;
    let check_said = |text: &str, expected: &[&str]| {
        let found = shown(&read_text(&format!("{GOOD}{text}"), &[]).problems);
        let what: Vec<&str> = found
            .iter()
            .filter_map(|p| Some(p.split_once(' ')?.1))
            .collect();
        assert_eq!(what, expected, "{text}");
    };
    check_said(in_row, &[]);
    check_said(
        &in_row.replace("\"b.id\"", "\"b\""),
        &["`gate_in` cannot be `b`"],
    );
    check_said(
        &in_row
            .replace("max(_previous)", "1")
            .replace("excluded._previous", "2"),
        &[
            "apply 1: with `gate_in` it has to write `_sequence` and `_previous` of its events, and `_previous` is not named",
        ],
    );
    check_said(
        &in_row.replace(" WHERE b._sequence = excluded._previous", ""),
        &[
            "apply 1: with `gate_in` ON CONFLICT has to compare the row's `_sequence` with `_previous`",
        ],
    );
    check_said(
        &in_row.replace("INSERT INTO b", "WITH d AS (DELETE FROM b) INSERT INTO b"),
        &["apply 1: with `gate_in` rows stay: one that is deleted takes its entity's gate along"],
    );
    check_said(
        &in_row.replace("\"next\"", "\"none\""),
        &["there is no gate to keep in a row"],
    );
    check_said(
        &in_row.replace("gate_in", "event_id = \"/id\"\ngate_in"),
        &["an event that `event_id` drops would leave no sequence in its entity's row"],
    );
    check_said(
        &in_row.replace("sql = ", "per_event = true\nsql = "),
        &[
            "apply 1: with `gate_in` a batch is applied in one piece, so there is neither `per_event` nor `types`",
        ],
    );
    let two = format!(
        "{in_row}[[projections.p.apply]]\nsql = \"INSERT INTO c SELECT _sequence, _previous FROM events\""
    );
    check_said(
        &two,
        &["with `gate_in` there is one `apply`: the one that writes `b`"],
    );
}

#[test]
fn a_projection_in_rust_is_told_by_its_format_as_one_in_toml() {
    struct Nothing;
    impl crate::projection::BatchHandler for Nothing {
        async fn apply(
            &self,
            _: &mut crate::projection::Context<'_>,
            _: &crate::projection::Batch<'_>,
        ) -> Result<(), crate::projection::HandlerError> {
            Ok(())
        }
    }
    let in_rust = |format: Format| {
        let id = Source::Pointer("/id".to_owned());
        Projection::batch("p", 1, &["t"], Gate::Newest, Nothing)
            .entity(id.clone())
            .column(Column::new("id", ColumnType::Text, id))
            .format(format)
    };
    let folder = tempfile::tempdir().unwrap();
    let schema = r#"{"type": "record", "name": "R", "fields": [
        {"name": "before", "type": ["null", {"type": "record", "name": "V", "fields": [{"name": "id", "type": "string"}]}]},
        {"name": "after", "type": ["null", "V"]}, {"name": "op", "type": "string"},
        {"name": "source", "type": {"type": "record", "name": "S", "fields": [{"name": "lsn", "type": "long"}]}}]}"#;
    std::fs::write(folder.path().join("r.avsc"), schema).unwrap();
    // Without what is the handler's own: a statement, or nothing.
    let shared = |projection: &Projection| {
        let statements = projection.statements();
        let (shared, _) = statements.split_once("; seed").unwrap();
        (projection.definition(), shared.to_owned())
    };
    let mut found = BTreeSet::new();
    for (settings, format) in [
        ("format = \"debezium\"", Format::Debezium(None)),
        (
            "format = \"debezium\"\nschema = \"r.avsc\"\nframing = \"raw\"",
            Format::Debezium(Some(Avro::raw(schema))),
        ),
        (
            "format = \"debezium\"\nschema = \"r.avsc\"\nframing = \"single-object\"\nkey_schema = \"r.avsc\"",
            Format::Debezium(Some(Avro::single_object(schema, &[]).key(schema))),
        ),
    ] {
        let text = format!(
            "{GOOD}[projections.p]\ntopics = [\"t\"]\ngate = \"newest\"\nentity = \"/id\"\ncolumns = {{ id = \"text\" }}\napply = [{{ sql = \"INSERT INTO b SELECT id FROM events\" }}]\n{settings}\n"
        );
        let draft = parse("f.toml", &text, folder.path(), std::iter::empty());
        let config = draft.into_config().unwrap();
        let in_rust = shared(&in_rust(format));
        assert_eq!(in_rust, shared(&config.projections[0].projection));
        found.insert(in_rust.1);
    }
    assert_eq!(found.len(), 3, "another format is another definition");
}
