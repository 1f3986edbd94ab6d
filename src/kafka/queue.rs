//! The records of one partition, and how far they were handed over.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use bytes::BytesMut;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::group::Callbacks;
use super::native;
use super::settings::PREFETCH_MIN;
use crate::types::{NextOffset, Record};

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
    messages: native::Queue,
    /// Rings where there are records, and keeps the client alive.
    _bell: PartitionQueue<Callbacks>,
    progress: Arc<Progress>,
    /// Bytes of the largest record that was taken last, which the next ones are expected to have.
    largest: AtomicUsize,
}

/// So much is taken at once, and a batch may be larger by that. Where records become larger all of a sudden it may be
/// more, but never more than was fetched ahead.
const TAKEN_BYTES: usize = PREFETCH_MIN;

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
    /// librdkafka could not fetch. It tries again by itself, but counts what it could not fetch as passed: fetch anew.
    Failed(KafkaError),
}

impl Queue {
    pub(super) fn new(messages: native::Queue, bell: PartitionQueue<Callbacks>) -> Self {
        Self {
            messages,
            _bell: bell,
            progress: Arc::new(Progress {
                next: AtomicI64::new(0),
                stands_still_before: AtomicI64::new(MOVES),
            }),
            largest: AtomicUsize::new(0),
        }
    }

    pub(super) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Takes what comes next, without waiting: at most so many records, and about [`TAKEN_BYTES`] of them. Without headers
    /// if nobody reads them, since librdkafka parses them only when asked.
    pub(crate) fn take(&self, max: usize, with_headers: bool) -> Vec<Polled> {
        loop {
            let fit = TAKEN_BYTES.checked_div(self.largest.load(Ordering::Relaxed));
            let messages = self.messages.take(max.min(fit.unwrap_or(1)).max(1));
            if messages.len() == 0 {
                return vec![self.nothing()];
            }
            let mut polled = Vec::with_capacity(messages.len());
            let mut bytes = BytesMut::with_capacity(messages.bytes());
            let mut largest = 0;
            for message in messages.iter(with_headers) {
                match message {
                    // Fetched once more, from where a whole list began while the record was being taken.
                    Ok(record) if record.offset < self.progress.next().get() => {}
                    Ok(record) => {
                        self.progress.begin(NextOffset::after(record.offset));
                        let record = record.build_in(&mut bytes);
                        largest = largest.max(record.size());
                        polled.push(Polled::Record(record));
                    }
                    Err(code) => polled.push(trouble(code)),
                }
            }
            self.largest.store(largest, Ordering::Relaxed);
            if !polled.is_empty() {
                return polled;
            }
        }
    }

    fn nothing(&self) -> Polled {
        match self.progress.stands_still_before.load(Ordering::Acquire) {
            MOVES => Polled::Nothing,
            end => Polled::StandsStill { end },
        }
    }
}

fn trouble(code: RDKafkaErrorCode) -> Polled {
    let error = KafkaError::MessageConsumption(code);
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
