//! Each state, and what it means.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::Utc;

use super::board::{Out, View};
use super::{Board, Detached, Doing, Figures, Lock, Log, Share, Snapshot, Verdict};
use crate::types::TopicPartition;

const PATIENCE: Duration = Duration::from_secs(75);

fn verdict() -> Verdict {
    Verdict::new(Duration::from_secs(65))
}

fn view(doing: Doing, since: Duration, lag: i64) -> View {
    let at = Instant::now().checked_sub(since).unwrap();
    View {
        doing,
        cause: "why".to_owned(),
        since: at,
        next: Some(10),
        moved: at,
        applied_time: None,
        log: Some(Log {
            low: 0,
            end: 10 + lag,
            held_back: 0,
        }),
        caught_up: None,
    }
}

fn snapshot(view: Option<View>) -> Snapshot {
    let mut seen = Board::new(true).snapshot();
    seen.starting.clear();
    let key = ("p".to_owned(), TopicPartition::new("t", 7));
    seen.partitions = view
        .map(|view| (key, view))
        .into_iter()
        .collect::<BTreeMap<_, _>>();
    seen
}

#[track_caller]
fn check(doing: Doing, since: Duration, lag: i64, expected: Option<&str>) {
    let seen = snapshot(Some(view(doing, since, lag)));
    let codes: Vec<&str> = verdict()
        .stalled(&seen)
        .iter()
        .map(|reason| reason.code)
        .collect();
    assert_eq!(
        codes,
        expected.into_iter().collect::<Vec<_>>(),
        "{doing:?} {since:?} {lag}"
    );
    assert!(
        verdict().unable(&seen).is_empty(),
        "a partition's state says nothing about the process"
    );
}

#[test]
fn what_may_take_its_time_is_no_stall_until_patience_ends() {
    let (soon, late) = (
        PATIENCE - Duration::from_secs(2),
        PATIENCE + Duration::from_secs(2),
    );
    for (doing, lag, soon_is, late_is) in [
        (Doing::Claiming, 5, None, Some("claiming")),
        (Doing::Waiting, 5, None, Some("waiting")),
        (Doing::Retrying, 5, None, Some("retrying")),
        (Doing::Running, 5, None, Some("standing_still")),
        (Doing::Running, 0, None, None),
        (Doing::Paused, 5, None, None),
        (Doing::Halted, 0, Some("halted"), Some("halted")),
    ] {
        check(doing, soon, lag, soon_is);
        check(doing, late, lag, late_is);
    }
}

#[test]
fn whoever_fails_again_and_again_is_late_however_short_each_try_is() {
    let mut view = view(Doing::Claiming, Duration::ZERO, 5);
    assert!(verdict().stalled(&snapshot(Some(view.clone()))).is_empty());
    view.moved = Instant::now().checked_sub(PATIENCE * 2).unwrap();
    for doing in [Doing::Claiming, Doing::Retrying, Doing::Waiting] {
        view.doing = doing;
        assert_eq!(
            verdict().stalled(&snapshot(Some(view.clone()))).len(),
            1,
            "{doing:?}"
        );
    }
}

#[test]
fn whoever_goes_on_after_a_pause_has_time_again() {
    let board = Board::new(true);
    let partition = TopicPartition::new("t", 0);
    let show = |doing| {
        let share = Share {
            partition: &partition,
            doing,
            cause: "",
            next: Some(3),
            applied_time: None,
        };
        board.show("p", [share].into_iter());
        let view = board.snapshot().partitions.into_values().next().unwrap();
        (view.since, view.moved)
    };
    let (_, before) = show(Doing::Paused);
    let (_, still) = show(Doing::Paused);
    assert_eq!(before, still);
    let (since, after) = show(Doing::Claiming);
    assert!(after > before && since == after);
}

#[test]
fn a_process_without_partitions_is_well() {
    let seen = snapshot(None);
    assert!(verdict().stalled(&seen).is_empty());
    assert!(verdict().unable(&seen).is_empty());
    assert!(verdict().dead(&seen).is_empty());
}

#[test]
fn a_start_that_waits_is_not_able_and_later_a_stall() {
    let mut seen = snapshot(None);
    let began = |ago| Instant::now().checked_sub(ago).unwrap();
    for (ago, stalls) in [(Duration::ZERO, false), (PATIENCE * 2, true)] {
        let starting = (began(ago), "no topic".to_owned());
        seen.starting = BTreeMap::from([("p".to_owned(), starting)]);
        assert_eq!(verdict().unable(&seen)[0].code, "starting");
        assert_eq!(!verdict().stalled(&seen).is_empty(), stalls);
    }
}

#[test]
fn a_dependency_that_is_away_makes_unable_until_it_is_back() {
    let board = Board::new(true);
    board.started("service");
    let codes = || {
        let reasons = verdict().unable(&board.snapshot());
        reasons.iter().map(|reason| reason.code).collect::<Vec<_>>()
    };
    board.database(Err("refused".to_owned()));
    board.kafka(Err("no route".to_owned()));
    assert_eq!(codes(), ["database_unreachable", "kafka_unreachable"]);
    board.database(Ok(Vec::new()));
    board.kafka(Ok(()));
    assert_eq!(codes(), [""; 0]);
    board.stopping();
    assert_eq!(codes(), ["stopping"]);
}

#[test]
fn whoever_is_out_of_the_group_is_not_ready_and_stalls_unless_its_tables_are_built() {
    let board = Board::new(true);
    board.started("service");
    board.out_of_group("p");
    let mut seen = board.snapshot();
    let long_ago = Instant::now().checked_sub(PATIENCE * 2).unwrap();
    assert!(verdict().stalled(&seen).is_empty());
    let out = |unbuilt| Out {
        since: long_ago,
        unbuilt,
    };
    seen.out_of_group.insert("p".to_owned(), out(None));
    assert_eq!(verdict().unable(&seen)[0].code, "not_live");
    assert!(verdict().stalled(&seen).is_empty());
    seen.out_of_group
        .insert("p".to_owned(), out(Some(long_ago)));
    let reasons = verdict().stalled(&seen);
    assert_eq!((reasons[0].code, reasons.len()), ("not_live", 1));
    board.is_built("p", true);
    assert_eq!(board.snapshot().out_of_group["p"].unbuilt, None);
    board.is_built("p", false);
    assert!(board.snapshot().out_of_group["p"].unbuilt.is_some());
    board.in_group("p");
    assert!(verdict().unable(&board.snapshot()).is_empty());
}

#[test]
fn a_build_that_needs_a_person_is_told_since_it_does() {
    let board = Board::new(true);
    board.started("service");
    let see = |trouble: &str, since| {
        board.figures(Figures {
            detached: vec![Detached {
                projection: "p".to_owned(),
                generation: 2,
                trouble: trouble.to_owned(),
                since,
            }],
            ..Figures::default()
        });
        verdict().stalled(&board.snapshot())
    };
    let began = Instant::now().checked_sub(PATIENCE).unwrap();
    assert!(see("", began).is_empty());
    assert_eq!(see("one", began)[0].code, "build_halted");
    let reasons = see("two", Instant::now());
    assert_eq!((reasons[0].seconds, reasons.len()), (PATIENCE.as_secs(), 1));
    assert!(see("", Instant::now()).is_empty());
}

#[test]
fn whoever_waits_for_a_lock_says_for_whose() {
    let mut seen = snapshot(Some(view(Doing::Retrying, PATIENCE * 2, 1)));
    seen.locks = vec![Lock {
        projection: "p".to_owned(),
        pid: 1,
        blocked_by: vec![4711],
        since: Utc::now(),
    }];
    let text = &verdict().stalled(&seen)[0].text;
    assert!(
        text.contains("waiting for a lock held by pid 4711, last since"),
        "{text}"
    );
}

#[test]
fn only_a_writer_that_never_comes_back_needs_a_restart() {
    let mut seen = snapshot(None);
    let limit = verdict().silence_max;
    seen.silent = vec![("p".to_owned(), limit)];
    assert!(verdict().dead(&seen).is_empty());
    seen.silent = vec![("p".to_owned(), limit + Duration::from_secs(1))];
    assert_eq!(verdict().dead(&seen)[0].code, "writer_stuck");
}

#[test]
fn a_partition_that_has_left_leaves_nothing_behind() {
    let board = Board::new(true);
    let (stays, leaves) = (TopicPartition::new("t", 0), TopicPartition::new("t", 1));
    let share = |partition| Share {
        partition,
        doing: Doing::Running,
        cause: "",
        next: Some(3),
        applied_time: None,
    };
    board.show("p", [share(&stays), share(&leaves)].into_iter());
    board.left("p", [&leaves].into_iter());
    // An answer that comes late does not bring it back.
    let log = Log {
        low: 0,
        end: 9,
        held_back: 0,
    };
    board.log("p", &leaves, log, Instant::now());
    let kept: Vec<_> = board.snapshot().partitions.into_keys().collect();
    assert_eq!(kept, [("p".to_owned(), stays)]);
}

#[test]
fn the_lag_in_time_is_the_smaller_of_its_bounds() {
    let now = Instant::now();
    let clock = Utc::now();
    let mut view = view(Doing::Running, Duration::ZERO, 0);
    assert_eq!(view.lag_time(now, clock), Some(Duration::ZERO));
    view.log = Some(Log {
        low: 0,
        end: 12,
        held_back: 0,
    });
    assert_eq!(view.lag_time(now, clock), None, "nothing is known yet");
    // After a quiet day a record has come: it is not a day old.
    view.applied_time = Some(clock - chrono::TimeDelta::days(1));
    view.caught_up = now.checked_sub(Duration::from_secs(3));
    assert_eq!(view.lag_time(now, clock), Some(Duration::from_secs(3)));
    // While a backlog is worked off.
    view.caught_up = None;
    assert_eq!(view.lag_time(now, clock), Some(Duration::from_secs(86_400)));
}

#[test]
fn nothing_is_written_where_nobody_asks() {
    let board = Board::new(false);
    let never = std::iter::once_with(|| -> Share<'static> { unreachable!("it was looked at") });
    board.show("p", never);
    assert!(board.snapshot().partitions.is_empty());
}

#[test]
fn the_runway_is_what_is_left_of_the_time_that_a_record_is_kept() {
    let hour = Duration::from_secs(3_600);
    let clock = Utc::now();
    let view = |applied_minutes_ago: Option<i64>, next| View {
        doing: Doing::Running,
        cause: String::new(),
        since: Instant::now(),
        next: Some(next),
        moved: Instant::now(),
        applied_time: applied_minutes_ago.map(|ago| clock - chrono::Duration::minutes(ago)),
        log: Some(Log {
            low: 0,
            end: 10,
            held_back: 0,
        }),
        caught_up: None,
    };
    assert_eq!(
        view(Some(600), 10).runway(hour, clock),
        Some(hour),
        "nothing waits"
    );
    assert_eq!(view(Some(45), 5).runway(hour, clock), Some(hour / 4));
    assert_eq!(view(Some(90), 5).runway(hour, clock), Some(Duration::ZERO));
    assert_eq!(view(None, 5).runway(hour, clock), None);
}
