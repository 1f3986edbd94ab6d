//! Decides which events of a batch pass the per-entity gate.
//!
//! The gate's row is the truth, and is read under its lock by the statement that moves it (see
//! `store/sql/gate_*.sql`). This module prepares the question, one per entity, and turns the answer
//! into a decision per event. It knows neither entities nor SQL: only the sequences of one entity's
//! events in arrival order.
//!
//! There is deliberately no cache and no clock here: what another transaction did to the entity is
//! known when the row lock is held, and not before (I4).

use std::collections::BTreeSet;

/// What becomes of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted,
    /// Not newer than what was applied.
    Stale,
    /// It is parked: it cannot be applied, or not yet.
    Waits,
}

/// Where an entity's gate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) sequence: i64,
    /// Records of the entity wait.
    pub(crate) parked: bool,
}

/// Gate `newest`: admits what is greater than `previous` and than all admitted before it. Behind a parked
/// record, or one that is `rejected` (by its index), what is newer waits.
pub(crate) fn newest(
    previous: Option<i64>,
    parked: bool,
    sequences: &[i64],
    rejected: impl Fn(usize) -> bool,
) -> (Vec<Admission>, Standing) {
    let mut last = previous;
    let mut parked = parked;
    let admit = |(index, sequence): (usize, &i64)| match last {
        Some(last) if *sequence <= last => Admission::Stale,
        _ if parked || rejected(index) => {
            parked = true;
            Admission::Waits
        }
        _ => {
            last = Some(*sequence);
            Admission::Admitted
        }
    };
    let admissions = sequences.iter().enumerate().map(admit).collect();
    let after = Standing {
        sequence: last.unwrap_or(i64::MIN),
        parked,
    };
    (admissions, after)
}

/// One event at a gate that stands at `last`, none before the first, and behind which nothing waits.
pub(crate) fn one(last: Option<i64>, sequence: i64, is_next: bool) -> Admission {
    match last {
        Some(last) if sequence <= last => Admission::Stale,
        Some(last) if is_next && sequence - 1 != last => Admission::Waits,
        _ => Admission::Admitted,
    }
}

/// No gate: admits everything but what is `rejected`, and what comes behind.
pub(crate) fn none(
    standing: Standing,
    events: usize,
    rejected: impl Fn(usize) -> bool,
) -> (Vec<Admission>, Standing) {
    let mut after = standing;
    let admit = |index: usize| {
        after.parked |= rejected(index);
        match after.parked {
            true => Admission::Waits,
            false => Admission::Admitted,
        }
    };
    let admissions = (0..events).map(admit).collect();
    (admissions, after)
}

/// The dense run `lo..=hi` that an entity's events form, if copies are left aside.
///
/// None when they do not: something is missing between them, or an old event comes before the run.
/// Such an entity is decided event by event, with its row locked first.
pub(crate) fn run(sequences: &[i64]) -> Option<(i64, i64)> {
    let lo = *sequences.first()?;
    let mut hi = lo.checked_sub(1)?;
    for &sequence in sequences {
        if sequence > hi {
            if sequence - 1 != hi {
                return None;
            }
            hi = sequence;
        }
    }
    Some((lo, hi))
}

/// Where an entity's gate stands before its first event, if it may begin with any (`sequences` without those that
/// cannot be read): just before it, and before all if none can be read.
pub(crate) fn before_any(sequences: impl IntoIterator<Item = i64>) -> i64 {
    let first = sequences.into_iter().next();
    first.map_or(i64::MIN, |first| first.saturating_sub(1))
}

/// Gate `next` moved over the sequences that were given up, as far as they follow on each other.
pub(crate) fn over(standing: Standing, given_up: &BTreeSet<i64>) -> Standing {
    let mut over = standing;
    while let Some(next) = over.sequence.checked_add(1)
        && given_up.contains(&next)
    {
        over.sequence = next;
    }
    over
}

/// Gate `next`: admits exactly the next sequence, again and again. What is further on waits for it, what is
/// `rejected` (by its index) waits for a person; neither keeps the one that is due from passing.
pub(crate) fn next(
    standing: Standing,
    sequences: &[i64],
    given_up: &BTreeSet<i64>,
    rejected: impl Fn(usize) -> bool,
) -> (Vec<Admission>, Standing) {
    let mut after = over(standing, given_up);
    let admit = |(index, &sequence): (usize, &i64)| {
        if sequence <= after.sequence {
            Admission::Stale
        } else if sequence - 1 == after.sequence && !rejected(index) {
            after.sequence = sequence;
            after = over(after, given_up);
            Admission::Admitted
        } else {
            after.parked = true;
            Admission::Waits
        }
    };
    let admissions = sequences.iter().enumerate().map(admit).collect();
    (admissions, after)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Admission::{Admitted as A, Stale as S, Waits as W};
    use super::*;

    fn at(sequence: i64) -> Standing {
        Standing {
            sequence,
            parked: false,
        }
    }

    fn parked_at(sequence: i64) -> Standing {
        Standing {
            sequence,
            parked: true,
        }
    }

    #[track_caller]
    fn check_newest(previous: Option<i64>, sequences: &[i64], expected: &[Admission]) {
        assert_eq!(newest(previous, false, sequences, |_| false).0, expected);
    }

    #[test]
    fn newest_admits_gaps_and_drops_what_is_not_newer() {
        check_newest(None, &[5, 9, 7, 9, 10], &[A, A, S, S, A]);
        check_newest(Some(9), &[5, 9, 10, 10], &[S, S, A, S]);
        check_newest(Some(3), &[], &[]);
    }

    #[test]
    fn newest_knows_the_ends_of_the_range() {
        check_newest(Some(i64::MAX), &[i64::MAX], &[S]);
        check_newest(None, &[i64::MIN, i64::MIN], &[A, S]);
    }

    #[test]
    fn newest_lets_nothing_newer_past_a_parked_record() {
        let found = newest(Some(3), false, &[4, 5, 6, 4], |index| index == 1);
        assert_eq!(found, (vec![A, W, W, S], parked_at(4)));
        let found = newest(Some(3), true, &[4, 3], |_| false);
        assert_eq!(found, (vec![W, S], parked_at(3)));
        // A copy that cannot be read is still a copy.
        assert_eq!(newest(Some(3), false, &[3], |_| true), (vec![S], at(3)));
    }

    #[test]
    fn without_a_gate_all_waits_behind_a_parked_record() {
        assert_eq!(none(at(0), 3, |i| i == 1), (vec![A, W, W], parked_at(0)));
        assert_eq!(none(parked_at(0), 2, |_| false), (vec![W, W], parked_at(0)));
        assert_eq!(none(at(0), 2, |_| false), (vec![A, A], at(0)));
    }

    #[test]
    fn next_admits_a_run_and_drops_copies() {
        let found = next(at(0), &[1, 2, 2, 1, 3], &BTreeSet::new(), |_| false);
        assert_eq!(found, (vec![A, A, S, S, A], at(3)));
        assert_eq!(
            next(at(7), &[3, 8], &BTreeSet::new(), |_| false),
            (vec![S, A], at(8))
        );
    }

    #[test]
    fn next_parks_what_is_early_and_lets_the_one_that_is_due_pass() {
        let found = next(at(1), &[2, 4, 3, 4], &BTreeSet::new(), |_| false);
        assert_eq!(found, (vec![A, W, A, A], parked_at(4)));
        assert_eq!(
            next(parked_at(1), &[2], &BTreeSet::new(), |_| false),
            (vec![A], parked_at(2))
        );
    }

    #[test]
    fn next_passes_over_what_was_given_up_when_its_turn_comes() {
        let given_up = BTreeSet::from([3, 5, 6]);
        let found = next(at(1), &[4, 2, 4, 7], &given_up, |_| false);
        assert_eq!(found, (vec![W, A, A, A], parked_at(7)));
        assert_eq!(over(at(2), &given_up), at(3));
        assert_eq!(over(at(i64::MAX), &given_up), at(i64::MAX));
    }

    #[test]
    fn next_stands_still_at_a_record_that_cannot_be_applied() {
        let found = next(at(1), &[2, 3, 4], &BTreeSet::new(), |index| index == 1);
        assert_eq!(found, (vec![A, W, W], parked_at(2)));
    }

    #[test]
    fn a_run_leaves_copies_aside() {
        assert_eq!(run(&[4, 5, 5, 4, 6]), Some((4, 6)));
        assert_eq!(run(&[4]), Some((4, 4)));
        assert_eq!(run(&[4, 6]), None);
        assert_eq!(run(&[3, 7, 8]), None);
        assert_eq!(run(&[i64::MIN]), None);
        assert_eq!(run(&[]), None);
    }

    proptest! {
        /// However a stream is cut, the same events pass: the gate is a fold.
        #[test]
        fn cuts_do_not_change_what_passes(
            sequences in prop::collection::vec(0_i64..12, 0..40),
            bad in prop::collection::btree_set(0_usize..40, 0..4),
            cut in 0_usize..40,
        ) {
            let cut = cut.min(sequences.len());
            let (head, tail) = sequences.split_at(cut);
            let rejected = |index: usize| bad.contains(&index);
            let rejected_later = |index: usize| bad.contains(&(index + cut));

            let whole = newest(None, false, &sequences, rejected);
            let (mut parts, middle) = newest(None, false, head, rejected);
            let previous = (middle.sequence > i64::MIN).then_some(middle.sequence);
            let (rest, end) = newest(previous, middle.parked, tail, rejected_later);
            parts.extend(rest);
            prop_assert_eq!(whole, (parts, end));

            let whole = next(at(0), &sequences, &BTreeSet::new(), rejected);
            let (mut parts, middle) = next(at(0), head, &BTreeSet::new(), rejected);
            let (rest, end) = next(middle, tail, &BTreeSet::new(), rejected_later);
            parts.extend(rest);
            prop_assert_eq!(whole, (parts, end));

            let whole = none(at(0), sequences.len(), rejected);
            let (mut parts, middle) = none(at(0), head.len(), rejected);
            let (rest, end) = none(middle, tail.len(), rejected_later);
            parts.extend(rest);
            prop_assert_eq!(whole, (parts, end));
        }

        /// One by one, up to the first that waits, is the same as all at once.
        #[test]
        fn one_by_one_is_decided_like_all(sequences in prop::collection::vec(0_i64..12, 0..40)) {
            for is_next in [false, true] {
                let mut last = is_next.then_some(0);
                let mut found = Vec::new();
                for sequence in &sequences {
                    let admission = one(last, *sequence, is_next);
                    if admission == A {
                        last = Some(*sequence);
                    }
                    found.push(admission);
                }
                let (all, end) = match is_next {
                    true => next(at(0), &sequences, &BTreeSet::new(), |_| false),
                    false => newest(None, false, &sequences, |_| false),
                };
                prop_assert_eq!(found, all);
                prop_assert_eq!(last.unwrap_or(i64::MIN), end.sequence);
            }
        }

        /// A run is admitted exactly as event by event.
        #[test]
        fn a_run_is_decided_like_its_events(sequences in prop::collection::vec(1_i64..9, 1..12)) {
            if let Some((lo, hi)) = run(&sequences) {
                let (admissions, after) = next(at(lo - 1), &sequences, &BTreeSet::new(), |_| false);
                prop_assert_eq!(after, at(hi));
                prop_assert!(!admissions.contains(&W));
            }
        }
    }
}
