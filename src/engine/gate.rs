//! Decides which events of a batch pass the per-entity gate.
//!
//! The gate's row is the truth, and is read under its lock by the statement that moves it (see
//! `store/sql/gate_*.sql`). This module prepares the question, one per entity, and turns the answer
//! into a decision per event. It knows neither entities nor SQL: only the sequences of one entity's
//! events in arrival order.
//!
//! There is deliberately no cache and no clock here: what another transaction did to the entity is
//! known when the row lock is held, and not before (I4).

/// What becomes of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted,
    /// Not newer than what was applied.
    Stale,
}

/// An event came before the ones it builds on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Which of the entity's events in this batch.
    pub(crate) index: usize,
    /// The sequence that is missing.
    pub(crate) expected: i64,
}

/// Gate `newest`: admits what is greater than `previous` and than all admitted before it.
pub(crate) fn newest(previous: Option<i64>, sequences: &[i64]) -> Vec<Admission> {
    let mut last = previous;
    let admit = |sequence: &i64| match last {
        Some(last) if *sequence <= last => Admission::Stale,
        _ => {
            last = Some(*sequence);
            Admission::Admitted
        }
    };
    sequences.iter().map(admit).collect()
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

/// Gate `next`: admits exactly the next sequence, again and again. Stops at the first gap.
///
/// Returns the admissions before the gap too, so that the caller knows how far the entity came.
pub(crate) fn next(current: i64, sequences: &[i64]) -> (Vec<Admission>, i64, Option<Gap>) {
    let mut last = current;
    let mut admissions = Vec::with_capacity(sequences.len());
    for (index, &sequence) in sequences.iter().enumerate() {
        if sequence <= last {
            admissions.push(Admission::Stale);
        } else if sequence - 1 == last {
            last = sequence;
            admissions.push(Admission::Admitted);
        } else {
            let gap = Gap {
                index,
                expected: last.saturating_add(1),
            };
            return (admissions, last, Some(gap));
        }
    }
    (admissions, last, None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Admission::{Admitted as A, Stale as S};
    use super::*;

    #[track_caller]
    fn check_newest(previous: Option<i64>, sequences: &[i64], expected: &[Admission]) {
        assert_eq!(newest(previous, sequences), expected);
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
    fn next_admits_a_run_and_drops_copies() {
        assert_eq!(next(0, &[1, 2, 2, 1, 3]), (vec![A, A, S, S, A], 3, None));
        assert_eq!(next(7, &[3, 8]), (vec![S, A], 8, None));
    }

    #[test]
    fn next_stops_at_a_gap_and_says_what_is_missing() {
        let gap = Gap {
            index: 1,
            expected: 3,
        };
        assert_eq!(next(1, &[2, 4, 3]), (vec![A], 2, Some(gap)));
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
            cut in 0_usize..40,
        ) {
            let cut = cut.min(sequences.len());
            let (head, tail) = sequences.split_at(cut);

            let whole = newest(None, &sequences);
            let mut parts = newest(None, head);
            let highest = head.iter().max().copied();
            parts.extend(newest(highest, tail));
            prop_assert_eq!(whole, parts);

            let (whole, last, gap) = next(0, &sequences);
            let (mut parts, middle, head_gap) = next(0, head);
            if head_gap.is_none() {
                let (rest, end, tail_gap) = next(middle, tail);
                parts.extend(rest);
                prop_assert_eq!(end, last);
                prop_assert_eq!(tail_gap.is_some(), gap.is_some());
                prop_assert_eq!(whole, parts);
            }
        }

        /// A run is admitted exactly as event by event.
        #[test]
        fn a_run_is_decided_like_its_events(sequences in prop::collection::vec(1_i64..9, 1..12)) {
            if let Some((lo, hi)) = run(&sequences) {
                let (_, last, gap) = next(lo - 1, &sequences);
                prop_assert_eq!(last, hi);
                prop_assert!(gap.is_none());
            }
        }
    }
}
