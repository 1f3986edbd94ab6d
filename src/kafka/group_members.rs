//! Who is in a consumer group, of either kind.
//!
//! rdkafka asks only in the old way, which does not know groups whose members the brokers assign (KIP-848).
//! Everything that is made here is destroyed here, and nothing is kept.

#![allow(unsafe_code, reason = "rdkafka does not wrap DescribeConsumerGroups")]

use std::ffi::{CStr, CString, c_int};
use std::ptr::null_mut;
use std::time::Duration;

use rdkafka::bindings as c;
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};

/// A group as the brokers describe it.
#[derive(Debug)]
pub(super) struct Description {
    /// Whether members agree among themselves, so that none is in it who leaves that to the brokers.
    pub(super) is_classic: bool,
    pub(super) client_ids: Vec<String>,
}

/// Asks who is in a group; nobody, if there is none. Blocks, at most about `limit`.
pub(super) fn ask<C: ConsumerContext + ClientContext>(
    consumer: &BaseConsumer<C>,
    group: &str,
    limit: Duration,
) -> KafkaResult<Description> {
    let name = CString::new(group)
        .map_err(|_| KafkaError::AdminOpCreation("a group's name has a NUL in it".to_owned()))?;
    let limit = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
    let client = consumer.client().native_ptr();
    // SAFETY: `client` lives as long as `consumer`. Each object is checked for null where librdkafka may
    // answer null, used only before it is destroyed, and destroyed once. The names are copied by the call.
    unsafe {
        let queue = c::rd_kafka_queue_new(client);
        let mut names = [name.as_ptr()];
        let options = c::rd_kafka_AdminOptions_new(
            client,
            c::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS,
        );
        c::rd_kafka_AdminOptions_set_request_timeout(options, limit, null_mut(), 0);
        c::rd_kafka_DescribeConsumerGroups(client, names.as_mut_ptr(), names.len(), options, queue);
        c::rd_kafka_AdminOptions_destroy(options);
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
unsafe fn read(event: *mut c::rd_kafka_event_t) -> Result<Description, RDKafkaErrorCode> {
    // SAFETY: the pointers asked for belong to the event, which outlives this function. Indices are below the
    // count, and texts are copied.
    unsafe {
        ok(c::rd_kafka_event_error(event))?;
        let result = c::rd_kafka_event_DescribeConsumerGroups_result(event);
        if result.is_null() {
            return Err(RDKafkaErrorCode::BadMessage);
        }
        let mut count = 0;
        let groups = c::rd_kafka_DescribeConsumerGroups_result_groups(result, &raw mut count);
        if groups.is_null() || count != 1 {
            return Err(RDKafkaErrorCode::BadMessage);
        }
        let group = *groups;
        let error = c::rd_kafka_ConsumerGroupDescription_error(group);
        if !error.is_null() {
            match ok(c::rd_kafka_error_code(error)) {
                Err(RDKafkaErrorCode::GroupIdNotFound) => {}
                result => result?,
            }
        }
        let kind = c::rd_kafka_ConsumerGroupDescription_type(group);
        let members = 0..c::rd_kafka_ConsumerGroupDescription_member_count(group);
        let client_id = |index| {
            let member = c::rd_kafka_ConsumerGroupDescription_member(group, index);
            let id = (!member.is_null()).then(|| c::rd_kafka_MemberDescription_client_id(member));
            let id = id.filter(|id| !id.is_null());
            id.map(|id| CStr::from_ptr(id).to_string_lossy().into_owned())
        };
        Ok(Description {
            is_classic: kind
                == c::rd_kafka_consumer_group_type_t::RD_KAFKA_CONSUMER_GROUP_TYPE_CLASSIC,
            client_ids: members.filter_map(client_id).collect(),
        })
    }
}

fn ok(code: c::rd_kafka_resp_err_t) -> Result<(), RDKafkaErrorCode> {
    match code {
        c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(code.into()),
    }
}
