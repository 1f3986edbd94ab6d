//! Waiting between attempts: exponential, with full jitter.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);

/// How long to wait after the given number of failed attempts in a row; `random` is in `0.0..1.0`.
///
/// Full jitter: anywhere between nothing and the exponential bound, so that workers that failed
/// together do not come back together.
pub(crate) fn delay(failures: u32, random: f64) -> Duration {
    let bound = FIRST.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1).min(16)));
    bound.min(LONGEST).mul_f64(random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_doubles_and_ends() {
        assert_eq!(delay(1, 1.0), Duration::from_millis(100));
        assert_eq!(delay(2, 1.0), Duration::from_millis(200));
        assert_eq!(delay(5, 1.0), Duration::from_millis(1600));
        assert_eq!(delay(60, 1.0), LONGEST);
        assert_eq!(delay(u32::MAX, 1.0), LONGEST);
    }

    #[test]
    fn jitter_is_full() {
        assert_eq!(delay(3, 0.0), Duration::ZERO);
        assert_eq!(delay(3, 0.5), Duration::from_millis(200));
    }
}
