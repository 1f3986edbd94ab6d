//! Commits offsets to the group without waiting, and has the answer sent to the context's `commit_callback`.
//!
//! rdkafka's own asynchronous commit is never answered. One foreign call; nothing is kept.

#![allow(
    unsafe_code,
    reason = "rdkafka does not wrap commits to a queue of answers"
)]

use std::ptr::null_mut;

use rdkafka::TopicPartitionList;
use rdkafka::bindings as c;
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};

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
