//! Commits offsets to the group without waiting, and has the answer sent to the context's `commit_callback`.
//!
//! rdkafka's own asynchronous commit is never answered. One foreign call; nothing is kept.

#![allow(
    unsafe_code,
    reason = "rdkafka does not wrap commits to a queue of answers"
)]

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::bindings as c;
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};

pub(super) const MIRROR_EVERY: Duration = Duration::from_secs(1);

/// librdkafka begins no fetch while a commit is under way, and keeps one as long as a session if the group's
/// coordinator is away. So there is one at a time, and after it a pause as long as its answer took; only what is
/// revoked does not wait for its turn. Answers come in the order of the commits.
#[derive(Default)]
pub(super) struct Mirroring {
    sent: VecDeque<Instant>,
    not_before: Option<Instant>,
}

impl Mirroring {
    pub(super) fn may_begin(&self) -> bool {
        self.all_answered() && self.not_before.is_none_or(|time| Instant::now() >= time)
    }

    pub(super) fn all_answered(&self) -> bool {
        self.sent.is_empty()
    }

    pub(super) fn begin(&mut self) {
        self.sent.push_back(Instant::now());
    }

    pub(super) fn answered(&mut self) {
        self.pause_after(self.sent.front().copied());
        self.sent.pop_front();
    }

    /// Takes back what was not sent.
    pub(super) fn not_sent(&mut self) {
        self.pause_after(None);
        self.sent.pop_back();
    }

    fn pause_after(&mut self, sent: Option<Instant>) {
        let took = sent.map_or(Duration::ZERO, |sent| sent.elapsed());
        self.not_before = Some(Instant::now() + took.max(MIRROR_EVERY));
    }
}

pub(super) fn commit<C: ConsumerContext + ClientContext>(
    consumer: &BaseConsumer<C>,
    offsets: &TopicPartitionList,
) -> KafkaResult<()> {
    let client = consumer.client().native_ptr();
    // SAFETY: `client` lives as long as `consumer`, and the list is copied by the call. The consumer's queue,
    // which is the one that `poll` serves, is given back; librdkafka keeps a reference of its own.
    let result = unsafe {
        let answers = c::rd_kafka_queue_get_consumer(client);
        if answers.is_null() {
            return Err(KafkaError::Canceled);
        }
        let result = c::rd_kafka_commit_queue(client, offsets.ptr(), answers, None, null_mut());
        c::rd_kafka_queue_destroy(answers);
        result
    };
    match result {
        c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(KafkaError::ConsumerCommit(code.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_waits_for_each_commit_that_is_under_way() {
        let mut mirroring = Mirroring::default();
        assert!(mirroring.may_begin() && mirroring.all_answered());
        mirroring.begin();
        // A revoke comes meanwhile, and the first is answered.
        mirroring.begin();
        mirroring.answered();
        assert!(!mirroring.all_answered() && !mirroring.may_begin());
        // One that could not even be sent takes nothing from the other.
        mirroring.begin();
        mirroring.not_sent();
        assert!(!mirroring.all_answered());
        mirroring.answered();
        assert!(mirroring.all_answered());
        assert!(!mirroring.may_begin(), "there is a pause first");
    }
}
