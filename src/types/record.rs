//! A Kafka record, copied out of the client once.

use bytes::{Bytes, BytesMut};
use chrono::{DateTime, Datelike as _, Utc};
use uuid::Uuid;

/// Namespace of digests.
const DIGESTS: Uuid = Uuid::from_u128(0x2b1e_6f0c_58a7_4d0e_9d1b_0a64_51c7_3f92);

/// A record's key, value and headers as the bytes Kafka delivered, and where it stood.
///
/// Key and value share one allocation, with those of the records that were fetched along. A missing value is a tombstone and differs from an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    offset: i64,
    timestamp_ms: Option<i64>,
    bytes: Bytes,
    key_len: Option<usize>,
    has_value: bool,
    headers: Box<[Header]>,
}

/// A record header. Names may repeat, values may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The header's name.
    pub name: String,
    /// The header's bytes.
    pub value: Option<Vec<u8>>,
}

/// What a [`Record`] is made from.
#[derive(Clone, Debug, Default)]
pub struct RecordBuilder<'a> {
    /// The record's offset in its partition.
    pub offset: i64,
    /// Milliseconds since 1970, if the record has a time.
    pub timestamp_ms: Option<i64>,
    /// The record's key.
    pub key: Option<&'a [u8]>,
    /// The record's value; none is a tombstone.
    pub value: Option<&'a [u8]>,
    /// The record's headers, in order.
    pub headers: Vec<Header>,
}

impl RecordBuilder<'_> {
    /// Copies the parts.
    pub fn build(self) -> Record {
        self.build_in(&mut BytesMut::new())
    }

    /// Copies the parts behind what was copied to `buffer` before.
    pub(crate) fn build_in(self, buffer: &mut BytesMut) -> Record {
        buffer.extend_from_slice(self.key.unwrap_or_default());
        buffer.extend_from_slice(self.value.unwrap_or_default());
        Record {
            offset: self.offset,
            timestamp_ms: self.timestamp_ms,
            bytes: buffer.split().freeze(),
            key_len: self.key.map(<[u8]>::len),
            has_value: self.value.is_some(),
            headers: self.headers.into_boxed_slice(),
        }
    }
}

impl Record {
    /// The record's offset in its partition.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Milliseconds since 1970, if the record has a time.
    pub fn timestamp_ms(&self) -> Option<i64> {
        self.timestamp_ms
    }

    /// The record's time, if it is in the years 1 to 9999: producers set what they like, and beyond
    /// those years neither Postgres nor a CloudEvents time can say it.
    pub fn time(&self) -> Option<DateTime<Utc>> {
        let time = DateTime::from_timestamp_millis(self.timestamp_ms?)?;
        (1..=9999).contains(&time.year()).then_some(time)
    }

    /// The record's key.
    pub fn key(&self) -> Option<&[u8]> {
        self.key_len.map(|len| &self.bytes[..len])
    }

    /// The record's value; none is a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        self.has_value
            .then(|| &self.bytes[self.key_len.unwrap_or(0)..])
    }

    /// The record's headers, in order.
    pub fn headers(&self) -> &[Header] {
        &self.headers
    }

    /// The last header of that name, as consumers usually read it.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers
            .iter()
            .rev()
            .find(|header| header.name == name)
            .and_then(|header| header.value.as_deref())
    }

    /// The record as the last one applied: by it the log is known again.
    pub(crate) fn anchor(&self) -> Anchor {
        let mut bytes = Vec::with_capacity(self.bytes.len() + 32);
        let key_len = self.key_len.map_or(u64::MAX, |len| len as u64);
        bytes.extend_from_slice(&self.timestamp_ms.unwrap_or(i64::MIN).to_be_bytes());
        bytes.extend_from_slice(&key_len.to_be_bytes());
        bytes.push(u8::from(self.has_value));
        bytes.extend_from_slice(&self.bytes);
        Anchor {
            offset: self.offset,
            digest: Uuid::new_v5(&DIGESTS, &bytes),
        }
    }

    /// Bytes held, for bounding a batch.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.headers_size()
    }

    /// Bytes of the names and values of all headers.
    pub(crate) fn headers_size(&self) -> usize {
        let headers = self.headers.iter();
        headers
            .map(|h| h.name.len() + h.value.as_ref().map_or(0, Vec::len))
            .sum()
    }
}

/// Where a record stands and what it is: offset, and a digest of time, key and value. A log with another
/// record at that offset is another log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub(crate) offset: i64,
    pub(crate) digest: Uuid,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_differ_anywhere_have_different_anchors() {
        let record = |timestamp_ms, key: Option<&'static [u8]>, value: Option<&'static [u8]>| {
            let builder = RecordBuilder {
                offset: 7,
                timestamp_ms,
                key,
                value,
                headers: Vec::new(),
            };
            builder.build().anchor()
        };
        let all = [
            record(Some(1), Some(b"ab"), Some(b"c")),
            record(Some(2), Some(b"ab"), Some(b"c")),
            record(None, Some(b"ab"), Some(b"c")),
            record(Some(1), Some(b"a"), Some(b"bc")),
            record(Some(1), None, Some(b"abc")),
            record(Some(1), Some(b"abc"), Some(b"")),
            record(Some(1), Some(b"abc"), None),
        ];
        for (i, one) in all.iter().enumerate() {
            for other in &all[i + 1..] {
                assert_ne!(one, other);
            }
        }
        assert_eq!(all[0], record(Some(1), Some(b"ab"), Some(b"c")));
    }

    #[test]
    fn a_tombstone_differs_from_an_empty_value() {
        let record = |value| {
            RecordBuilder {
                key: Some(b"k"),
                value,
                ..RecordBuilder::default()
            }
            .build()
        };
        assert_eq!(record(None).value(), None);
        assert_eq!(record(Some(b"".as_slice())).value(), Some(b"".as_slice()));
        assert_eq!(record(Some(b"v".as_slice())).key(), Some(b"k".as_slice()));
    }

    #[track_caller]
    fn check_time(timestamp_ms: i64, expected: Option<&str>) {
        let record = RecordBuilder {
            timestamp_ms: Some(timestamp_ms),
            ..RecordBuilder::default()
        }
        .build();
        let time = record.time().map(|time| time.to_rfc3339());
        assert_eq!(time.as_deref(), expected);
    }

    #[test]
    fn a_time_that_cannot_be_written_as_a_date_is_none() {
        check_time(0, Some("1970-01-01T00:00:00+00:00"));
        check_time(-62_135_596_800_000, Some("0001-01-01T00:00:00+00:00"));
        check_time(-62_135_596_800_001, None);
        check_time(253_402_300_799_999, Some("9999-12-31T23:59:59.999+00:00"));
        check_time(253_402_300_800_000, None);
        check_time(i64::MAX, None);
        check_time(i64::MIN, None);
        assert_eq!(RecordBuilder::default().build().time(), None);
    }

    #[test]
    fn a_missing_key_differs_from_an_empty_key() {
        let record = |key| {
            RecordBuilder {
                key,
                value: Some(b"v"),
                ..RecordBuilder::default()
            }
            .build()
        };
        assert_eq!(record(None).key(), None);
        assert_eq!(record(Some(b"".as_slice())).key(), Some(b"".as_slice()));
        assert_eq!(record(None).value(), Some(b"v".as_slice()));
    }
}
