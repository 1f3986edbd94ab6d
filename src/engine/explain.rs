//! What became of one record, from what is stored about it.
//!
//! The tables keep a row for what was parked or skipped, for ever, and for what was dropped, as long as the projection's
//! history goes back. Of everything else below the position only the totals tell; so the answer is a set then, which may
//! have one member.

/// What is known about a record, of the live generation and the present topic.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) offset: i64,
    /// Where the partition began; none if nobody knows.
    pub(crate) first_offset: Option<i64>,
    pub(crate) next_offset: i64,
    /// It is a dead letter; whether it waits.
    pub(crate) letter: Option<bool>,
    pub(crate) skipped: bool,
    /// The history says that it was dropped.
    pub(crate) dropped: bool,
    /// The batch that took it, as the history has it: its offsets in this partition, and how many were records.
    pub(crate) batch: Option<(i64, i64)>,
    /// What Kafka says of the log.
    pub(crate) log: Option<Log>,
    /// Whether Kafka has a committed record at that offset.
    pub(crate) in_log: Option<bool>,
    /// Records of the partition, by what became of them.
    pub(crate) totals: Totals,
}

/// What a partition's log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) low: i64,
    /// Where the records end that anybody may read.
    pub(crate) committed: i64,
    pub(crate) end: i64,
}

/// Records that left no row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) applied: i64,
    pub(crate) stale: i64,
    pub(crate) duplicate: i64,
    pub(crate) filtered: i64,
}

/// What became of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It waits as a dead letter.
    Parked,
    /// It was parked; the dead letter says what became of it.
    Resolved,
    /// An operator left it out.
    Skipped,
    /// The log does not reach as far.
    BeyondEnd,
    /// It is part of a producer's open transaction, or behind one.
    HeldBack,
    /// Retention has removed it before it was reached.
    Removed,
    NotReached,
    /// The projection began behind it.
    BeforeBeginning,
    /// The history says why.
    Dropped,
    Applied,
    /// There is no record at that offset.
    NoRecord,
    /// It is one of these.
    Consumed(Vec<&'static str>),
}

/// Decides from the surest row to the least sure one.
pub(crate) fn explain(facts: &Facts) -> Verdict {
    let offset = facts.offset;
    match facts.letter {
        Some(true) => return Verdict::Parked,
        Some(false) => return Verdict::Resolved,
        None if facts.skipped => return Verdict::Skipped,
        None => {}
    }
    if offset >= facts.next_offset {
        return match facts.log {
            Some(log) if offset >= log.end => Verdict::BeyondEnd,
            Some(log) if offset >= log.committed => Verdict::HeldBack,
            Some(log) if offset < log.low => Verdict::Removed,
            _ if facts.in_log == Some(false) => Verdict::NoRecord,
            _ => Verdict::NotReached,
        };
    }
    if facts.first_offset.is_some_and(|first| offset < first) {
        return Verdict::BeforeBeginning;
    }
    if facts.dropped {
        return Verdict::Dropped;
    }
    match facts.batch {
        Some((offsets, records)) if offsets == records => return Verdict::Applied,
        _ if facts.in_log == Some(false) => return Verdict::NoRecord,
        Some(_) => return Verdict::Applied,
        None => {}
    }
    let Totals {
        applied,
        stale,
        duplicate,
        filtered,
    } = facts.totals;
    let outcomes = [
        ("applied", applied),
        ("stale", stale),
        ("duplicate", duplicate),
        ("filtered", filtered),
    ];
    let occurred = outcomes.iter().filter(|(_, count)| *count > 0);
    Verdict::Consumed(occurred.map(|(name, _)| *name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record at offset 10 of a partition that began at 5 and stands at 20.
    fn below() -> Facts {
        Facts {
            offset: 10,
            first_offset: Some(5),
            next_offset: 20,
            totals: Totals {
                applied: 14,
                stale: 1,
                ..Totals::default()
            },
            ..Facts::default()
        }
    }

    fn above() -> Facts {
        Facts {
            next_offset: 10,
            ..below()
        }
    }

    fn log(low: i64, committed: i64, end: i64) -> Option<Log> {
        Some(Log {
            low,
            committed,
            end,
        })
    }

    #[track_caller]
    fn check(facts: Facts, expected: Verdict) {
        assert_eq!(explain(&facts), expected, "{facts:?}");
    }

    #[test]
    fn a_dead_letter_is_surer_than_everything_else() {
        let parked = Facts {
            letter: Some(true),
            skipped: true,
            batch: Some((1, 1)),
            ..below()
        };
        check(parked.clone(), Verdict::Parked);
        let resolved = Facts {
            letter: Some(false),
            ..parked
        };
        check(resolved, Verdict::Resolved);
    }

    #[test]
    fn above_the_position_the_log_tells_why() {
        check(above(), Verdict::NotReached);
        let of = |log| Facts { log, ..above() };
        check(of(log(0, 11, 11)), Verdict::NotReached);
        check(of(log(0, 10, 11)), Verdict::HeldBack);
        check(of(log(0, 10, 10)), Verdict::BeyondEnd);
        check(of(log(11, 30, 30)), Verdict::Removed);
        let hole = Facts {
            in_log: Some(false),
            ..of(log(0, 30, 30))
        };
        check(hole, Verdict::NoRecord);
        let skipped = Facts {
            skipped: true,
            ..below()
        };
        check(skipped, Verdict::Skipped);
    }

    #[test]
    fn a_projection_may_have_begun_behind_it() {
        let of = |first_offset| Facts {
            first_offset,
            ..below()
        };
        check(of(Some(11)), Verdict::BeforeBeginning);
        check(of(Some(10)), Verdict::Consumed(vec!["applied", "stale"]));
        check(of(None), Verdict::Consumed(vec!["applied", "stale"]));
    }

    #[test]
    fn a_history_tells_applied_from_dropped() {
        let of = |batch, dropped, in_log| Facts {
            batch,
            dropped,
            in_log,
            ..below()
        };
        check(of(Some((4, 4)), false, None), Verdict::Applied);
        check(of(Some((4, 4)), true, None), Verdict::Dropped);
        // Compaction has removed it since: all of the batch's offsets were records.
        check(of(Some((4, 4)), false, Some(false)), Verdict::Applied);
        check(of(Some((4, 3)), false, Some(false)), Verdict::NoRecord);
        check(of(Some((4, 3)), false, Some(true)), Verdict::Applied);
        check(of(None, true, None), Verdict::Dropped);
        check(of(None, false, Some(false)), Verdict::NoRecord);
    }

    #[test]
    fn without_a_history_what_never_occurred_is_left_out() {
        let of = |applied, stale, duplicate, filtered| Facts {
            totals: Totals {
                applied,
                stale,
                duplicate,
                filtered,
            },
            ..below()
        };
        check(of(15, 0, 0, 0), Verdict::Consumed(vec!["applied"]));
        let all = vec!["applied", "stale", "duplicate", "filtered"];
        check(of(1, 1, 1, 1), Verdict::Consumed(all));
    }
}
