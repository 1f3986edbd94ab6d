//! What a rebuild reads of a partition, and whether that is all that the live generation has read.

/// A partition's log and the live generation's way through it: all are next offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// The oldest offset that the log still has.
    pub(crate) low: i64,
    /// Where the live generation began.
    pub(crate) first: i64,
    /// Where it stands.
    pub(crate) next: i64,
    /// Whether what is older than the projection itself is a part of it.
    pub(crate) from_the_oldest: bool,
}

/// What a rebuild reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reads {
    pub(crate) from: i64,
    /// Offsets that the live generation has passed are gone: its tables may hold what cannot be made anew.
    pub(crate) is_truncated: bool,
}

impl Partition {
    pub(crate) fn reads(self) -> Reads {
        let Self {
            low,
            first,
            next,
            from_the_oldest,
        } = self;
        Reads {
            from: if from_the_oldest { low } else { low.max(first) },
            is_truncated: low > first && next > first,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(
        low: i64,
        first: i64,
        next: i64,
        from_the_oldest: bool,
        from: i64,
        is_truncated: bool,
    ) {
        let partition = Partition {
            low,
            first,
            next,
            from_the_oldest,
        };
        let expected = Reads { from, is_truncated };
        assert_eq!(partition.reads(), expected, "{partition:?}");
    }

    #[test]
    fn a_whole_log_is_read_from_its_beginning() {
        check(0, 0, 100, true, 0, false);
    }

    #[test]
    fn a_beginning_that_is_gone_is_told() {
        check(10, 0, 100, true, 10, true);
        check(10, 0, 100, false, 10, true);
    }

    #[test]
    fn what_the_live_generation_never_read_is_not_missed() {
        check(10, 10, 100, true, 10, false);
        check(500, 0, 0, true, 500, false);
    }

    #[test]
    fn a_projection_that_began_at_the_end_begins_there_again() {
        check(0, 40, 100, false, 40, false);
        check(0, 40, 100, true, 0, false);
    }

    proptest! {
        #[test]
        fn nothing_that_the_log_has_and_the_live_generation_has_passed_is_left_out(
            low in 0_i64..50, first in 0_i64..50, read in 0_i64..50, from_the_oldest: bool,
        ) {
            let next = first + read;
            let Reads { from, is_truncated } = Partition { low, first, next, from_the_oldest }.reads();
            // Kafka has no such offset otherwise.
            prop_assert!(from >= low);
            let passed = first..next;
            for offset in passed.clone() {
                prop_assert_eq!(offset < from, offset < low, "offset {} is left out for no reason", offset);
            }
            prop_assert_eq!(is_truncated, passed.clone().any(|offset| offset < low));
        }
    }
}
