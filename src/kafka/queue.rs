//! The records of one partition, and how far they were handed over.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};

use super::member::Callbacks;
use crate::types::{Header, NextOffset, Record, RecordBuilder};

/// How far a partition's records were handed over. Shared without the queue, which keeps the client alive.
#[derive(Debug)]
pub(super) struct Progress {
    next: AtomicI64,
    /// The log's end, if nothing was handed over for long although it is further.
    stands_still_before: AtomicI64,
}

const MOVES: i64 = -1;

impl Progress {
    /// Where to go on so that nothing is left out. A record that is being taken at this moment may come twice.
    pub(super) fn next(&self) -> NextOffset {
        NextOffset::from_raw(self.next.load(Ordering::Acquire))
    }

    pub(super) fn begin(&self, from: NextOffset) {
        self.next.store(from.get(), Ordering::Release);
        self.stands_still_before(MOVES);
    }

    pub(super) fn stands_still_before(&self, end: i64) {
        self.stands_still_before.store(end, Ordering::Release);
    }
}

/// The records of one partition. One handle for the client's life: dropping it would silence the partition.
pub(crate) struct Queue {
    records: PartitionQueue<Callbacks>,
    progress: Arc<Progress>,
}

/// What a queue has at the moment.
pub(crate) enum Polled {
    Record(Record),
    Nothing,
    /// Nothing, and that for long, although the log ends only here.
    StandsStill {
        end: i64,
    },
    /// The offset asked for is not in the log.
    OutOfRange,
    /// The log cannot be read here. What the queue has behind this does not follow on what it had before.
    Unreadable(KafkaError),
    /// librdkafka could not fetch, and tries again by itself.
    Failed(KafkaError),
}

impl Queue {
    pub(super) fn new(records: PartitionQueue<Callbacks>) -> Self {
        Self {
            records,
            progress: Arc::new(Progress {
                next: AtomicI64::new(0),
                stands_still_before: AtomicI64::new(MOVES),
            }),
        }
    }

    pub(super) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Takes the next record, without waiting; without its headers if nobody reads them, since
    /// librdkafka parses them only when asked.
    pub(crate) fn poll(&self, with_headers: bool) -> Polled {
        loop {
            let polled = self.records.poll(Duration::ZERO);
            let message = match polled {
                None => return self.nothing(),
                Some(Ok(message)) => message,
                Some(Err(error)) => return trouble(error),
            };
            // Fetched once more, from where a whole list began while the record was being taken.
            if message.offset() < self.progress.next().get() {
                continue;
            }
            let after = NextOffset::after(message.offset());
            self.progress.begin(after);
            return Polled::Record(copy(&message, with_headers));
        }
    }

    fn nothing(&self) -> Polled {
        match self.progress.stands_still_before.load(Ordering::Acquire) {
            MOVES => Polled::Nothing,
            end => Polled::StandsStill { end },
        }
    }
}

fn trouble(error: KafkaError) -> Polled {
    let KafkaError::MessageConsumption(code) = &error else {
        return Polled::Failed(error);
    };
    match code {
        RDKafkaErrorCode::AutoOffsetReset => Polled::OutOfRange,
        // After a bad checksum librdkafka goes on somewhere behind it, and says so only here.
        RDKafkaErrorCode::BadMessage
        | RDKafkaErrorCode::InvalidMessage
        | RDKafkaErrorCode::BadCompression
        | RDKafkaErrorCode::NotImplemented
        | RDKafkaErrorCode::InvalidRecord
        | RDKafkaErrorCode::Underflow => Polled::Unreadable(error),
        _ => Polled::Failed(error),
    }
}

/// Copies a record out of librdkafka, whose memory must not be held.
pub(super) fn copy(message: &BorrowedMessage<'_>, with_headers: bool) -> Record {
    let headers = with_headers.then(|| message.headers()).flatten();
    let headers = headers.map(|headers| {
        let header = |h: rdkafka::message::Header<'_, &[u8]>| Header {
            name: h.key.to_owned(),
            value: h.value.map(<[u8]>::to_vec),
        };
        headers.iter().map(header).collect()
    });
    RecordBuilder {
        offset: message.offset(),
        timestamp_ms: message.timestamp().to_millis(),
        key: message.key(),
        value: message.payload(),
        headers: headers.unwrap_or_default(),
    }
    .build()
}
