//! What becomes of a message that was not sent: wait, try again, or out of the way.
//!
//! An outage is nobody's fault and never an attempt (I10). Messages travel together, and a broker refuses all that
//! travel with one it does not take, so only one that was sent alone has failed itself.

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The topic takes no message of this size.
    TooLarge,
    /// There is no such topic, or its name cannot be one.
    UnknownTopic,
    /// The topic may not be written to.
    NoPermission,
    /// The broker does not take this message for another reason.
    Refused,
    /// Nothing that the message could help: a broker that is away, a producer that has stopped.
    Elsewhere,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its stream waits, for as long as it takes.
    Wait,
    /// It is under suspicion: once more, with nothing beside it.
    Alone,
    /// Once more, later.
    Again,
    /// Into quarantine.
    Quarantine,
}

/// Attempts at a message that fails for what it is. More would not help, unless somebody is just changing the topic.
const MESSAGE_ATTEMPTS_MAX: u32 = 3;

impl Failure {
    /// As the `quarantine` table and the counters call it.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::UnknownTopic => "unknown_topic",
            Self::NoPermission => "no_permission",
            Self::Refused => "refused",
            Self::Elsewhere => "elsewhere",
        }
    }

    /// Whether it is the topic's fault, so that every message to it waits; else those of the same key do.
    pub(crate) fn is_of_topic(self) -> bool {
        matches!(self, Self::UnknownTopic | Self::NoPermission)
    }
}

/// Decides about a message that has failed for the `attempts`th time, this one included.
pub(crate) fn decide(failure: Failure, alone: bool, attempts: u32, attempts_max: u32) -> Verdict {
    let enough = match failure.is_of_topic() {
        true => attempts_max,
        false => attempts_max.min(MESSAGE_ATTEMPTS_MAX),
    };
    match failure {
        Failure::Elsewhere => Verdict::Wait,
        _ if !alone => Verdict::Alone,
        _ if attempts < enough => Verdict::Again,
        _ => Verdict::Quarantine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(failure: Failure, alone: bool, attempts: u32, expected: Verdict) {
        assert_eq!(decide(failure, alone, attempts, 8), expected);
    }

    #[test]
    fn an_outage_is_waited_for_however_long_it_lasts() {
        check(Failure::Elsewhere, true, u32::MAX, Verdict::Wait);
        check(Failure::Elsewhere, false, u32::MAX, Verdict::Wait);
    }

    #[test]
    fn only_what_was_sent_alone_is_to_blame() {
        check(Failure::TooLarge, false, u32::MAX, Verdict::Alone);
        check(Failure::NoPermission, false, u32::MAX, Verdict::Alone);
    }

    #[test]
    fn a_topic_gets_more_time_than_a_message() {
        check(Failure::TooLarge, true, 2, Verdict::Again);
        check(Failure::TooLarge, true, 3, Verdict::Quarantine);
        check(Failure::Refused, true, 3, Verdict::Quarantine);
        check(Failure::UnknownTopic, true, 7, Verdict::Again);
        check(Failure::UnknownTopic, true, 8, Verdict::Quarantine);
        check(Failure::NoPermission, true, 8, Verdict::Quarantine);
        assert_eq!(decide(Failure::TooLarge, true, 1, 1), Verdict::Quarantine);
    }
}
