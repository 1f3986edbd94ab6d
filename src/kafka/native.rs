//! What librdkafka knows and rdkafka does not wrap: the id of a topic, which a topic that was deleted and made
//! again does not share with the old one, and tokens of a client whose own queue nobody polls.
//!
//! Everything that is made here is destroyed here, and nothing is kept.

#![allow(unsafe_code, reason = "rdkafka does not wrap these")]

use std::ffi::{CString, c_char, c_int};
use std::ptr::null_mut;
use std::time::Duration;

use rdkafka::bindings as c;
use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use uuid::Uuid;

/// Gives a client its first token. One that is polled asks for it by itself.
pub(super) fn set_token<C: ClientContext>(
    client: &Client<C>,
    token: &OAuthToken,
) -> KafkaResult<()> {
    let refused = |why: String| KafkaError::ClientCreation(why);
    let nul = |_| refused("a token has a NUL in it".to_owned());
    let value = CString::new(&*token.token).map_err(nul)?;
    let principal = CString::new(&*token.principal_name).map_err(nul)?;
    let mut why: [c_char; 256] = [0; 256];
    // SAFETY: the client lives as long as the reference, both texts as long as the call, which copies them, and the
    // buffer is as long as is said.
    let code = unsafe {
        c::rd_kafka_oauthbearer_set_token(
            client.native_ptr(),
            value.as_ptr(),
            token.lifetime_ms,
            principal.as_ptr(),
            null_mut(),
            0,
            why.as_mut_ptr(),
            why.len(),
        )
    };
    ok(code).map_err(|code| refused(format!("the token was not taken: {code}")))
}

/// Asks for a topic's id. None when the brokers give topics no ids. Blocks, at most about `limit`.
pub(super) fn topic_id<C: ConsumerContext + ClientContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    limit: Duration,
) -> KafkaResult<Option<Uuid>> {
    // Any broker knows; without being told, librdkafka would wait for the controller.
    let broker = consumer
        .fetch_metadata(Some(topic), limit)?
        .orig_broker_id();
    let name = CString::new(topic)
        .map_err(|_| KafkaError::AdminOpCreation("a topic's name has a NUL in it".to_owned()))?;
    let limit = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
    let client = consumer.client().native_ptr();
    // SAFETY: `client` lives as long as `consumer`. Each object is checked for null where librdkafka may
    // answer null, used only before it is destroyed, and destroyed once. The names are copied by the call.
    unsafe {
        let queue = c::rd_kafka_queue_new(client);
        let mut names = [name.as_ptr()];
        let topics = c::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
        let options = c::rd_kafka_AdminOptions_new(
            client,
            c::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
        );
        c::rd_kafka_AdminOptions_set_request_timeout(options, limit, null_mut(), 0);
        c::rd_kafka_AdminOptions_set_broker(options, broker, null_mut(), 0);
        c::rd_kafka_DescribeTopics(client, topics, options, queue);
        c::rd_kafka_AdminOptions_destroy(options);
        c::rd_kafka_TopicCollection_destroy(topics);
        // The answer comes within the request's own limit, as an error if there is none.
        let event = c::rd_kafka_queue_poll(queue, limit.saturating_add(1_000));
        let answer = if event.is_null() {
            Err(RDKafkaErrorCode::OperationTimedOut)
        } else {
            let answer = read(event);
            c::rd_kafka_event_destroy(event);
            answer
        };
        c::rd_kafka_queue_destroy(queue);
        answer.map_err(KafkaError::AdminOp)
    }
}

/// # Safety
/// `event` is a live event.
unsafe fn read(event: *mut c::rd_kafka_event_t) -> Result<Option<Uuid>, RDKafkaErrorCode> {
    // SAFETY: the pointers asked for belong to the event, which outlives this function.
    unsafe {
        ok(c::rd_kafka_event_error(event))?;
        let result = c::rd_kafka_event_DescribeTopics_result(event);
        if result.is_null() {
            return Err(RDKafkaErrorCode::BadMessage);
        }
        let mut count = 0;
        let topics = c::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        if topics.is_null() || count != 1 {
            return Err(RDKafkaErrorCode::UnknownTopicOrPartition);
        }
        let topic = *topics;
        let error = c::rd_kafka_TopicDescription_error(topic);
        if !error.is_null() {
            ok(c::rd_kafka_error_code(error))?;
        }
        let id = c::rd_kafka_TopicDescription_topic_id(topic);
        if id.is_null() {
            return Ok(None);
        }
        // The bits of two numbers, whatever their signs.
        let id = Uuid::from_u64_pair(
            c::rd_kafka_Uuid_most_significant_bits(id).cast_unsigned(),
            c::rd_kafka_Uuid_least_significant_bits(id).cast_unsigned(),
        );
        Ok((!id.is_nil()).then_some(id))
    }
}

fn ok(code: c::rd_kafka_resp_err_t) -> Result<(), RDKafkaErrorCode> {
    match code {
        c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(code.into()),
    }
}
