//! When a record is parked, and when a projection stops instead of parking the world.

use std::collections::VecDeque;

/// Why a record is parked. A fixed set: it is stored, counted and chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Its bytes do not become an event.
    Undecodable,
    /// The handler says that it can never be applied.
    Rejected,
    /// A statement of the handler failed for what the record holds.
    Database,
    /// The handler panicked.
    Panicked,
    /// Gate `next`: what comes before it is missing.
    Gap,
    /// It waits behind another record of its entity.
    Behind,
}

impl Reason {
    pub(crate) const ALL: [Self; 6] = [
        Self::Undecodable,
        Self::Rejected,
        Self::Database,
        Self::Panicked,
        Self::Gap,
        Self::Behind,
    ];

    /// As it is stored.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Undecodable => "undecodable",
            Self::Rejected => "rejected",
            Self::Database => "database",
            Self::Panicked => "panicked",
            Self::Gap => "gap",
            Self::Behind => "behind",
        }
    }

    /// Whether the record itself is at fault. One that only waits is not.
    pub(crate) fn is_failure(self) -> bool {
        !matches!(self, Self::Gap | Self::Behind)
    }
}

/// Why one record cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) reason: Reason,
    pub(crate) sqlstate: Option<String>,
    pub(crate) detail: String,
}

impl Rejection {
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            sqlstate: None,
            detail: detail.into(),
        }
    }
}

/// Records over which the share of failed ones is counted.
pub(crate) const WINDOW: usize = 1_000;

/// Counts failed records, so that a bad deployment halts and does not park the world.
#[derive(Clone, Debug)]
pub(crate) struct Brake {
    /// Failed records in a row that are allowed.
    consecutive_max: u32,
    /// Failed records among the last [`WINDOW`] that are allowed, in percent.
    share_max: u32,
    consecutive: u32,
    failed: usize,
    last: VecDeque<bool>,
}

impl Brake {
    pub(crate) fn new(consecutive_max: u32, share_max: u32) -> Self {
        Self {
            consecutive_max,
            share_max,
            consecutive: 0,
            failed: 0,
            last: VecDeque::with_capacity(WINDOW),
        }
    }

    /// Takes in what became of the next records, true for a failed one, up to the first that is one too
    /// many. Its index and what is too many, if there is one.
    pub(crate) fn take(
        &mut self,
        outcomes: impl IntoIterator<Item = bool>,
    ) -> Option<(usize, String)> {
        for (index, failed) in outcomes.into_iter().enumerate() {
            if self.last.len() == WINDOW && self.last.pop_front() == Some(true) {
                self.failed -= 1;
            }
            self.last.push_back(failed);
            if !failed {
                self.consecutive = 0;
                continue;
            }
            self.failed += 1;
            self.consecutive += 1;
            if self.consecutive > self.consecutive_max {
                let why = format!(
                    "more than {} records in a row cannot be applied",
                    self.consecutive_max
                );
                return Some((index, why));
            }
            // A share says something only of many.
            if self.last.len() == WINDOW && self.failed * 100 > WINDOW * self.share_max as usize {
                let why = format!(
                    "more than {} % of the last {WINDOW} records cannot be applied",
                    self.share_max
                );
                return Some((index, why));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_stop_and_one_success_forgives_them() {
        let mut brake = Brake::new(3, 10);
        assert_eq!(
            brake.take([true, true, true, false, true, true, true]),
            None
        );
        let (index, why) = brake.take([true]).unwrap();
        assert_eq!(index, 0);
        assert!(why.contains("3 records in a row"), "{why}");
    }

    #[test]
    fn a_share_of_failures_stops_once_there_are_enough_to_tell() {
        let mut brake = Brake::new(3, 10);
        let every = |n: usize| (0..).map(move |i: usize| i.is_multiple_of(n));
        assert_eq!(brake.take(every(5).take(WINDOW - 1)), None);
        assert!(brake.take(every(5).take(2)).is_some());

        let mut brake = Brake::new(3, 10);
        assert_eq!(brake.take(every(11).take(WINDOW * 10)), None);
    }

    #[test]
    fn what_is_long_ago_is_forgotten() {
        let mut brake = Brake::new(3, 10);
        let bad = (0..90).map(|i| i % 3 == 0);
        assert_eq!(brake.take(bad), None);
        assert_eq!(brake.take(std::iter::repeat_n(false, WINDOW)), None);
        assert_eq!(brake.failed, 0);
    }
}
