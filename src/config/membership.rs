//! Settings that would cost a process its membership, though each of them is good by itself.

use std::time::Duration;

use super::problems::{Place, Problems};
use crate::kafka::{ABORT_TIMEOUT, GroupProtocol};

/// librdkafka's defaults.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(300);
const SESSION_TIMEOUT: Duration = Duration::from_secs(45);

/// A setting of librdkafka's, and where it stands.
pub(super) type Passed = (String, String, Place);

/// Reports a drain that outlasts the membership, and lengths of sessions that no group takes.
pub(super) fn check(
    options: &[Passed],
    protocol: GroupProtocol,
    (drain_max, drain_max_place): (Duration, Option<Place>),
    problems: &mut Problems,
) {
    let given = |name: &str| options.iter().find(|(key, ..)| key == name);
    let millis = |name: &str, default: Duration| {
        let value = given(name).and_then(|(_, value, _)| value.parse().ok());
        value.map_or(default, Duration::from_millis)
    };
    let place_of = |name: &str| given(name).map(|(_, _, place)| place.clone());
    let max_poll = millis("max.poll.interval.ms", MAX_POLL_INTERVAL);
    // The poll thread answers the group only after a revoke.
    let revoke_max = drain_max + ABORT_TIMEOUT;
    let either = drain_max_place.or_else(|| place_of("max.poll.interval.ms"));
    if let Some(place) = either
        && revoke_max >= max_poll
    {
        let what = format!(
            "`apply.drain_max` is {drain_max:?}: a revoke could last {revoke_max:?}, and the group waits no longer than `max.poll.interval.ms`, {max_poll:?}"
        );
        let cure = match max_poll.checked_sub(ABORT_TIMEOUT) {
            Some(limit) if !limit.is_zero() => format!(
                "write less than {limit:?}, or raise `max.poll.interval.ms` in `kafka.options`"
            ),
            _ => "raise `max.poll.interval.ms` in `kafka.options`".to_owned(),
        };
        problems.add(place, what, cure);
    }
    if protocol == GroupProtocol::Consumer {
        for name in ["session.timeout.ms", "heartbeat.interval.ms"] {
            if let Some(place) = place_of(name) {
                let what = format!("`{name}` cannot be set with `group_protocol` `consumer`");
                let cure = "remove it; the brokers set it for all members";
                problems.add(place, what, cure);
            }
        }
        return;
    }
    let session = millis("session.timeout.ms", SESSION_TIMEOUT);
    let either = place_of("max.poll.interval.ms").or_else(|| place_of("session.timeout.ms"));
    if let Some(place) = either
        && max_poll < session
    {
        let what = format!(
            "`max.poll.interval.ms`, {max_poll:?}, is less than `session.timeout.ms`, {session:?}"
        );
        problems.add(place, what, "raise it, or lower the other one");
    }
}
