//! Finds the record that makes a batch fail, by cutting smaller batches.
//!
//! A partition whose batch failed for a reason that may lie in one record is under suspicion: its
//! records are applied in batches of their own, half as many after each failure, until one record
//! fails alone; twice as many after each success, until the batch has its usual size again. The
//! records before the bad one commit, other partitions go on, and the cost is logarithmic.

/// What a failed batch means for one of its partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Apply at most this many records of the partition, alone.
    Try(usize),
    /// The first record is the one.
    Found,
}

/// After a failure of `tried` records of this partition, `alone` in their batch or not, when the
/// failing record is known to have `before` others before it, or is not known.
pub(crate) fn after_failure(tried: usize, alone: bool, before: Option<usize>) -> Next {
    match before {
        Some(0) => Next::Found,
        Some(before) => Next::Try(before),
        None if !alone => Next::Try(tried.max(1)),
        None if tried <= 1 => Next::Found,
        None => Next::Try(tried / 2),
    }
}

/// After a success of `limit` records alone: the next limit, or none when the usual size is reached.
pub(crate) fn after_success(limit: usize, usual: usize) -> Option<usize> {
    let next = limit.saturating_mul(2);
    (next < usual).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies `total` records of which `bad` fails, and returns where isolation ends and after how many tries.
    fn isolate(total: usize, bad: usize) -> (usize, usize) {
        let (mut position, mut limit, mut tries, mut alone) = (0, total, 0, false);
        loop {
            tries += 1;
            let size = limit.min(total - position);
            if bad >= position && bad < position + size {
                match after_failure(size, alone, None) {
                    Next::Try(next) => limit = next,
                    Next::Found => return (position, tries),
                }
                alone = true;
            } else {
                position += size;
                limit = after_success(limit, total).unwrap_or(total);
            }
        }
    }

    #[test]
    fn the_bad_record_is_found_and_all_before_it_are_applied() {
        for total in [1, 2, 7, 1000] {
            for bad in 0..total {
                assert_eq!(isolate(total, bad).0, bad, "total {total}");
            }
        }
    }

    #[test]
    fn the_cost_is_logarithmic() {
        let worst = (0..10_000)
            .step_by(37)
            .map(|bad| isolate(10_000, bad).1)
            .max();
        assert!(worst.is_some_and(|tries| tries < 120), "{worst:?}");
    }

    #[test]
    fn a_known_place_is_believed() {
        assert_eq!(after_failure(500, false, Some(499)), Next::Try(499));
        assert_eq!(after_failure(500, false, Some(0)), Next::Found);
    }
}
