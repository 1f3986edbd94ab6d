//! What librdkafka knows and rdkafka does not wrap: the id of a topic, which a topic that was deleted and made
//! again does not share with the old one, tokens of a client whose own queue nobody polls, and the messages of a
//! partition many at a time.
//!
//! Everything that is made here is destroyed here, and nothing is kept but a hold on a partition's queue.

#![allow(unsafe_code, reason = "rdkafka does not wrap these")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::slice;
use std::time::Duration;

use rdkafka::bindings as c;
use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use uuid::Uuid;

use crate::types::{Header, Record, RecordBuilder, TopicPartition};

/// Messages that are taken from a queue at once, at most.
const TAKEN_MAX: usize = 64;

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

/// A hold on a partition's queue besides rdkafka's. To be dropped before the client.
pub(super) struct Queue(NonNull<c::rd_kafka_queue_t>);

// SAFETY: a queue has its own lock, and belongs to no thread.
unsafe impl Send for Queue {}
// SAFETY: the same.
unsafe impl Sync for Queue {}

impl Queue {
    pub(super) fn of<C: ClientContext>(
        client: &Client<C>,
        partition: &TopicPartition,
    ) -> Option<Self> {
        let topic = CString::new(partition.topic()).ok()?;
        let number = partition.partition();
        // SAFETY: the client lives as long as the reference, the name as long as the call, which copies it.
        let queue =
            unsafe { c::rd_kafka_queue_get_partition(client.native_ptr(), topic.as_ptr(), number) };
        NonNull::new(queue).map(Self)
    }

    /// Takes at most so many messages, without waiting.
    pub(super) fn take(&self, max: usize) -> Messages<'_> {
        let mut messages = [null_mut(); TAKEN_MAX];
        let max = max.min(TAKEN_MAX);
        // SAFETY: the queue lives as long as `self`, and the array has room for so many.
        let count = unsafe {
            c::rd_kafka_consume_batch_queue(self.0.as_ptr(), 0, messages.as_mut_ptr(), max)
        };
        Messages {
            messages,
            count: usize::try_from(count).unwrap_or(0), // negative where there are none
            _queue: self,
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: it was made in `of`, and nobody uses it any more.
        unsafe { c::rd_kafka_queue_destroy(self.0.as_ptr()) }
    }
}

/// What was taken from a queue, in librdkafka's memory.
pub(super) struct Messages<'q> {
    messages: [*mut c::rd_kafka_message_t; TAKEN_MAX],
    count: usize,
    _queue: &'q Queue,
}

impl Messages<'_> {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    fn raw(&self) -> impl Iterator<Item = &c::rd_kafka_message_t> {
        // SAFETY: so many were filled in, and live until they are destroyed with `self`.
        let taken = self.messages[..self.count].iter();
        taken.map(|message| unsafe { &**message })
    }

    /// Bytes of all keys and values.
    pub(super) fn bytes(&self) -> usize {
        self.raw()
            .map(|message| message.key_len + message.len)
            .sum()
    }

    /// Each of them: a record, or what has kept librdkafka from having one.
    pub(super) fn iter(
        &self,
        with_headers: bool,
    ) -> impl Iterator<Item = Result<RecordBuilder<'_>, RDKafkaErrorCode>> {
        self.raw().map(move |message| {
            ok(message.err)?;
            // SAFETY: it lives as long as `self`.
            Ok(unsafe { record(message, with_headers) })
        })
    }
}

impl Drop for Messages<'_> {
    fn drop(&mut self) {
        for message in &self.messages[..self.count] {
            // SAFETY: it came from the queue, and nothing that borrows it outlives `self`.
            unsafe { c::rd_kafka_message_destroy(*message) }
        }
    }
}

/// Copies a message that rdkafka has. Its own headers do not take a name that is no UTF-8.
pub(crate) fn copy(message: &BorrowedMessage<'_>) -> Record {
    // SAFETY: it lives as long as the reference.
    unsafe { record(&*message.ptr(), true) }.build()
}

/// # Safety
/// `message` is a live message, without an error.
unsafe fn record(message: &c::rd_kafka_message_t, with_headers: bool) -> RecordBuilder<'_> {
    let mut kind = c::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
    // SAFETY: the message lives, and so do its bytes, which are as many as it says.
    unsafe {
        let time = c::rd_kafka_message_timestamp(message, &raw mut kind);
        let has_time = kind != c::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        RecordBuilder {
            offset: message.offset,
            timestamp_ms: (has_time && time != -1).then_some(time),
            key: bytes(message.key, message.key_len),
            value: bytes(message.payload, message.len),
            headers: match with_headers {
                true => headers(message),
                false => Vec::new(),
            },
        }
    }
}

/// # Safety
/// `message` is a live message.
unsafe fn headers(message: &c::rd_kafka_message_t) -> Vec<Header> {
    let mut all = Vec::new();
    let mut headers = null_mut();
    // SAFETY: names end with a NUL, values are as long as is said, and both live as long as the message.
    unsafe {
        if ok(c::rd_kafka_message_headers(message, &raw mut headers)).is_err() {
            return all; // it has none
        }
        let (mut name, mut value, mut length) = (null(), null(), 0);
        while ok(c::rd_kafka_header_get_all(
            headers,
            all.len(),
            &raw mut name,
            &raw mut value,
            &raw mut length,
        ))
        .is_ok()
        {
            all.push(Header {
                name: CStr::from_ptr(name).to_string_lossy().into_owned(),
                value: bytes(value, length).map(<[u8]>::to_vec),
            });
        }
    }
    all
}

/// # Safety
/// Where `start` is not null, so many bytes live there as long as `'a`.
unsafe fn bytes<'a>(start: *const c_void, length: usize) -> Option<&'a [u8]> {
    // SAFETY: as above.
    (!start.is_null()).then(|| unsafe { slice::from_raw_parts(start.cast(), length) })
}
