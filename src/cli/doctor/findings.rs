//! What facts mean for the guarantee. Pure.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::cli::output::counted;
use crate::kafka::TopicFacts;
use crate::store::migration::State;
use crate::store::server::Facts;

/// The oldest Postgres that is supported.
const POSTGRES_MIN: i32 = 130_000;
/// Clocks may differ by so much.
const SKEW_MAX: Duration = Duration::from_secs(2);
/// The largest message that is emitted.
const MESSAGE_MAX: i64 = 1_000_000;
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Configuration,
    Postgres,
    Kafka,
}

impl Of {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Postgres => "postgres",
            Self::Kafka => "kafka",
        }
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Good,
    /// Worth knowing.
    Note,
    /// It works, and promises less.
    Weak,
    /// It cannot work.
    Bad,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Note => "note",
            Self::Weak => "weak",
            Self::Bad => "bad",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) of: Of,
    pub(super) level: Level,
    pub(super) text: String,
    pub(super) cure: &'static str,
}

impl Finding {
    fn new(of: Of, level: Level, text: impl Into<String>, cure: &'static str) -> Self {
        let text = text.into();
        Self {
            of,
            level,
            text,
            cure,
        }
    }

    pub(super) fn good(of: Of, text: impl Into<String>) -> Self {
        Self::new(of, Level::Good, text, "")
    }

    pub(super) fn bad(of: Of, text: impl Into<String>, cure: &'static str) -> Self {
        Self::new(of, Level::Bad, text, cure)
    }
}

pub(super) fn is_weakened(found: &[Finding]) -> bool {
    found.iter().any(|finding| finding.level == Level::Weak)
}

pub(super) fn of_configuration(synchronous_commit: bool) -> Option<Finding> {
    (!synchronous_commit).then(|| {
        let text = "apply.synchronous_commit is off: a crash of Postgres takes back the last batches, each as a whole, and they are applied again";
        Finding::new(Of::Configuration, Level::Note, text, "")
    })
}

/// Whether somebody between here and the server lets others use its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooler {
    NotSeen,
    Seen,
    /// It does, and statements that were prepared are gone then.
    Forgets,
}

/// `needed`: connections of one process; `pooled`: as configured.
pub(super) fn of_server(
    facts: &Facts,
    ours: DateTime<Utc>,
    (pooler, pooled): (Pooler, bool),
    needed: usize,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |when: bool, level: Level, text: String, cure: &'static str| {
        if when {
            found.push(Finding::new(Of::Postgres, level, text, cure));
        }
    };
    let old = format!("version {} is too old", facts.version_name);
    add(
        facts.version < POSTGRES_MIN,
        Level::Bad,
        old,
        "use Postgres 13 or newer",
    );
    let reads = "it only reads: a standby, or `default_transaction_read_only`".to_owned();
    add(
        facts.in_recovery || facts.reads_only,
        Level::Bad,
        reads,
        "let `postgres.url` name the primary, or several hosts behind an address that follows it",
    );
    let fsync = "fsync is off: a crash of the machine may leave some of a transaction".to_owned();
    add(!facts.fsync, Level::Weak, fsync, "set fsync = on");
    let pages = "full_page_writes is off: a crash of the machine may leave torn pages".to_owned();
    add(
        !facts.full_page_writes,
        Level::Weak,
        pages,
        "set full_page_writes = on, unless the file system writes pages as a whole",
    );
    let standbys = "there is no synchronous standby: over a failover to one that lags behind, what was committed last is gone. It is applied again, but a stopped worker may commit once more there, and messages may have been sent that were never stored";
    add(
        facts.synchronous_standbys.is_empty(),
        Level::Weak,
        standbys.to_owned(),
        "where failovers happen, set synchronous_standby_names",
    );
    let local = format!(
        "synchronous_commit is {}: a commit does not wait for the standby",
        facts.synchronous_commit
    );
    let waits = !matches!(&*facts.synchronous_commit, "off" | "local");
    add(
        !waits && !facts.synchronous_standbys.is_empty(),
        Level::Note,
        local,
        "Tidegate sets `on` where a promise rests on it",
    );
    let shared = "a pooler in transaction mode is in between".to_owned();
    let (level, cure) = match (pooler, pooled) {
        (_, true) => (Level::Note, ""),
        (Pooler::Forgets, false) => (
            Level::Bad,
            "it forgets prepared statements: set `postgres.pooler` to \"transaction\"",
        ),
        (_, false) => (
            Level::Note,
            "it seems to keep prepared statements; if it does not, set `postgres.pooler` to \"transaction\"",
        ),
    };
    add(pooler != Pooler::NotSeen, level, shared, cure);
    add(
        pooler == Pooler::NotSeen && pooled,
        Level::Note,
        "`postgres.pooler` is set, and no pooler was seen".to_owned(),
        "leave it out where there is none: each statement is prepared anew",
    );
    let skew = (facts.clock - ours).abs().to_std().unwrap_or_default();
    let clocks = format!(
        "the clocks of Postgres and of this machine differ by {:.1} s",
        skew.as_secs_f64()
    );
    add(
        skew > SKEW_MAX,
        Level::Note,
        clocks,
        "no promise rests on a clock, but ages and lags in seconds are wrong by as much",
    );
    let free = i64::from(facts.connections_max) - facts.connections;
    let few = format!(
        "{free} connections are free, and a process of this configuration may need {needed}"
    );
    add(
        free < i64::try_from(needed).unwrap_or(i64::MAX),
        Level::Bad,
        few,
        "raise max_connections, or lower `apply.writers`",
    );
    add(
        !facts.tls,
        Level::Note,
        "the connection is not encrypted".to_owned(),
        "add sslmode=verify-full to `postgres.url` where the network is not yours",
    );
    let size = match facts.size >> 20 {
        mib if mib < 1024 => format!("{mib} MiB"),
        mib => format!("{} GiB", mib >> 10),
    };
    add(
        true,
        Level::Note,
        format!(
            "the database has {size}; how much room its disk has cannot be asked from here, and a rebuild needs the tables twice"
        ),
        "",
    );
    found
}

pub(super) fn of_schema(state: State) -> Finding {
    match state {
        State::Current => Finding::good(Of::Postgres, "the tidegate schema is up to date"),
        State::Behind { applied, known } => Finding::bad(
            Of::Postgres,
            format!("the tidegate schema is at version {applied}, this binary needs {known}"),
            "run `tidegate migrate`",
        ),
        State::Ahead { applied, known } => Finding::bad(
            Of::Postgres,
            format!("the tidegate schema is at version {applied}, this binary knows only {known}"),
            "use a newer binary",
        ),
    }
}

pub(super) fn of_privileges(facts: &Facts, missing: &[String]) -> Vec<Finding> {
    const CURE: &str = "deploy/sql/roles.sql makes roles that have what they need and no more";
    let mut found = Vec::new();
    if facts.superuser {
        let text = format!(
            "{} is a superuser: a mistake in a statement can reach everything",
            facts.role
        );
        found.push(Finding::new(Of::Postgres, Level::Note, text, CURE));
    }
    if !missing.is_empty() {
        let text = format!("{} lacks {}", facts.role, missing.join(", "));
        found.push(Finding::bad(Of::Postgres, text, CURE));
    }
    if !facts.may_create {
        let text = format!(
            "{} may not create schemas: projections that are started for the first time need one",
            facts.role
        );
        found.push(Finding::new(
            Of::Postgres,
            Level::Note,
            text,
            "GRANT CREATE ON DATABASE, or start them as another role",
        ));
    }
    found
}

/// A topic that a projection reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming<'a> {
    pub(super) projection: &'a str,
    pub(super) topic: &'a str,
    /// The highest offset that one of its logs begins at.
    pub(super) begins: i64,
    /// Gate `next` from the first event on.
    pub(super) needs_every_event: bool,
}

pub(super) fn of_incoming(incoming: &Incoming<'_>, facts: Option<&TopicFacts>) -> Vec<Finding> {
    let Incoming {
        projection,
        topic,
        begins,
        needs_every_event,
    } = incoming;
    let Some(facts) = facts else {
        let text = format!("{topic} (read by {projection}) does not exist");
        return vec![Finding::bad(
            Of::Kafka,
            text,
            "create it: a projection waits for its topics at the first start",
        )];
    };
    let mut found = vec![Finding::good(
        Of::Kafka,
        format!(
            "{topic} (read by {projection}): {}, kept {}",
            shape(facts),
            kept(facts)
        ),
    )];
    let mut add = |when: bool, level: Level, text: String, cure: &'static str| {
        if when {
            found.push(Finding::new(Of::Kafka, level, text, cure));
        }
    };
    let cut = *begins > 0;
    let text = format!(
        "{topic}: a log begins at offset {begins}; a reset or a rebuild of {projection} cannot see what was before"
    );
    add(
        cut && *needs_every_event,
        Level::Weak,
        text.clone(),
        "its gate needs every event from the first: keep the topic for ever, or set first = \"any\"",
    );
    add(cut && !needs_every_event, Level::Note, text, "");
    let text = format!(
        "{topic} is compacted: events that gate `next` of {projection} waits for may be gone"
    );
    add(
        facts.compacted && *needs_every_event,
        Level::Weak,
        text,
        "set cleanup.policy=delete, or use gate `newest`",
    );
    let runs_out = facts.retention_ms.is_some() && !facts.compacted && !cut;
    let text = format!(
        "{topic} is kept {}: later on a reset or a rebuild of {projection} cannot see every event, which its gate needs",
        kept(facts)
    );
    add(
        runs_out && *needs_every_event,
        Level::Note,
        text,
        "keep the topic for ever if you mean to rebuild",
    );
    let short = facts.retention_ms.is_some_and(|ms| ms < DAY_MS);
    let text = format!(
        "{topic} is kept {}: {projection} must not be away for longer, or its partitions halt for what is gone",
        kept(facts)
    );
    add(short, Level::Weak, text, "raise retention.ms");
    let text = format!(
        "{topic} has one copy: what a broker loses is gone, and its partitions halt because the log is another one"
    );
    add(
        facts.copies < 2,
        Level::Weak,
        text,
        "use replication factor 3 and min.insync.replicas 2",
    );
    let text =
        format!("{topic} may choose a leader that lacks records (unclean.leader.election.enable)");
    add(facts.unclean_leaders, Level::Weak, text, "set it to false");
    found
}

pub(super) fn of_outgoing(topic: &str, facts: Option<&TopicFacts>) -> Vec<Finding> {
    let Some(facts) = facts else {
        let text =
            format!("{topic} (messages go to it) does not exist: they would go into quarantine");
        return vec![Finding::bad(Of::Kafka, text, "create it")];
    };
    let mut found = vec![Finding::good(
        Of::Kafka,
        format!("{topic} (messages go to it): {}", shape(facts)),
    )];
    if facts.message_max_bytes.is_some_and(|max| max < MESSAGE_MAX) {
        let text = format!(
            "{topic} takes messages of up to {} bytes only",
            facts.message_max_bytes.unwrap_or_default()
        );
        found.push(Finding::new(
            Of::Kafka,
            Level::Note,
            text,
            "larger ones go into quarantine: raise max.message.bytes",
        ));
    }
    if facts.copies < 2 {
        let text =
            format!("{topic} has one copy: messages that were sent are lost with its broker");
        found.push(Finding::new(
            Of::Kafka,
            Level::Weak,
            text,
            "use replication factor 3 and min.insync.replicas 2",
        ));
    }
    found
}

/// `4 partitions, 3 copies`.
fn shape(facts: &TopicFacts) -> String {
    let copies = match facts.copies {
        1 => "1 copy".to_owned(),
        copies => format!("{copies} copies"),
    };
    format!("{}, {copies}", counted(facts.partitions, "partition"))
}

fn kept(facts: &TopicFacts) -> String {
    match (facts.compacted, facts.retention_ms) {
        (true, _) => "compacted".to_owned(),
        (false, None) => "for ever".to_owned(),
        (false, Some(ms)) if ms >= DAY_MS => format!("{} d", ms / DAY_MS),
        (false, Some(ms)) => format!("{} min", ms / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            version: 150_004,
            version_name: "15.4".to_owned(),
            in_recovery: false,
            reads_only: false,
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".to_owned(),
            synchronous_standbys: "a".to_owned(),
            connections_max: 100,
            connections: 10,
            superuser: false,
            role: "r".to_owned(),
            may_create: true,
            tls: true,
            clock: Utc::now(),
            size: 1 << 30,
            pid: 1,
        }
    }

    fn topic() -> TopicFacts {
        TopicFacts {
            partitions: 3,
            copies: 3,
            compacted: false,
            retention_ms: None,
            unclean_leaders: false,
            message_max_bytes: Some(2_000_000),
        }
    }

    /// What is neither good nor just worth knowing.
    fn shown(found: &[Finding]) -> Vec<(Level, &str)> {
        let found = found
            .iter()
            .filter(|finding| matches!(finding.level, Level::Weak | Level::Bad));
        found
            .map(|finding| (finding.level, &*finding.text))
            .collect()
    }

    #[track_caller]
    fn check_server(change: impl Fn(&mut Facts), level: Level, word: &str) {
        let mut facts = facts();
        change(&mut facts);
        let found = of_server(&facts, Utc::now(), (Pooler::NotSeen, false), 10);
        let shown = shown(&found);
        assert!(
            matches!(&*shown, [(l, text)] if *l == level && text.contains(word)),
            "{word}: {shown:?}"
        );
    }

    #[test]
    fn a_good_server_has_nothing_that_weakens() {
        assert_eq!(
            shown(&of_server(
                &facts(),
                Utc::now(),
                (Pooler::NotSeen, false),
                10
            )),
            []
        );
        assert_eq!(of_privileges(&facts(), &[]), []);
    }

    #[test]
    fn each_weakness_of_a_server_is_named() {
        check_server(|facts| facts.version = 120_003, Level::Bad, "too old");
        check_server(|facts| facts.in_recovery = true, Level::Bad, "only reads");
        check_server(|facts| facts.reads_only = true, Level::Bad, "only reads");
        check_server(|facts| facts.fsync = false, Level::Weak, "fsync");
        check_server(
            |facts| facts.full_page_writes = false,
            Level::Weak,
            "full_page_writes",
        );
        check_server(
            |facts| facts.synchronous_standbys.clear(),
            Level::Weak,
            "standby",
        );
        check_server(
            |facts| facts.connections = 95,
            Level::Bad,
            "5 connections are free",
        );
        let missing = of_privileges(&facts(), &["SELECT on tidegate.position".to_owned()]);
        assert_eq!(
            shown(&missing),
            [(Level::Bad, "r lacks SELECT on tidegate.position")]
        );
    }

    #[track_caller]
    fn check_topic(
        change: impl Fn(&mut TopicFacts),
        begins: i64,
        needs_every_event: bool,
        word: Option<&str>,
    ) {
        let mut facts = topic();
        change(&mut facts);
        let incoming = Incoming {
            projection: "p",
            topic: "t",
            begins,
            needs_every_event,
        };
        let found = of_incoming(&incoming, Some(&facts));
        let shown = shown(&found);
        match word {
            None => assert_eq!(shown, []),
            Some(word) => assert!(
                matches!(&*shown, [(Level::Weak, text)] if text.contains(word)),
                "{word}: {shown:?}"
            ),
        }
    }

    #[test]
    fn each_weakness_of_a_topic_is_named_where_it_matters() {
        check_topic(|_| {}, 0, true, None);
        check_topic(|_| {}, 7, false, None);
        check_topic(|_| {}, 7, true, Some("begins at offset 7"));
        check_topic(|facts| facts.compacted = true, 0, false, None);
        check_topic(|facts| facts.compacted = true, 0, true, Some("compacted"));
        check_topic(|facts| facts.retention_ms = Some(7 * DAY_MS), 0, true, None);
        check_topic(
            |facts| facts.retention_ms = Some(3_600_000),
            0,
            false,
            Some("kept 60 min"),
        );
        check_topic(|facts| facts.copies = 1, 0, false, Some("one copy"));
        check_topic(
            |facts| facts.unclean_leaders = true,
            0,
            false,
            Some("leader"),
        );
    }
}
