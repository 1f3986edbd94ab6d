//! Dead letters as messages: a projection may send what it parks to a topic.
//!
//! A message is the record's own bytes, opaque: nothing is decoded again, so what was wrong with the record cannot be
//! wrong with its message. It goes through the outbox in the transaction that parks the record, when a live generation
//! meets the record for the first time; neither a redrive nor a replay sends it again, and its headers never grow (I5).
//! The messages are a stream of their own: what is wrong with their topic holds up no other message.

use std::collections::BTreeMap;

use super::apply::{Applier, MessageStream, Part};
use super::parking;
use crate::engine::parking::Rejection;
use crate::projection::{Emitted, Events, HEADER_FRAMING, MESSAGE_SIZE_MAX, Message, Ref};
use crate::store::outbox;
use crate::types::{Header, Record, TopicPartition};

/// Type of the messages (`ce_type`), and what stands for the emit's name in their ids.
const KIND: &str = "tidegate.dead_letter";
/// Emits count from 0: no emit of any name makes the same id.
const INDEX: i32 = -1;
/// Characters of the error's text that are sent.
const DETAIL_MAX: usize = 500;
/// Everything that may be left out.
const ALL_TRUNCATED: &str = "key, value, headers";

/// The messages of records that are parked for the first time, if the projection has a topic for them.
pub(super) fn messages(
    applier: &Applier<'_>,
    events: &Events<'_>,
    parts: &[Part<'_>],
    parked: &BTreeMap<Ref, Rejection>,
) -> Vec<outbox::Row> {
    let Some(topic) = &applier.projection.dead_letter_topic else {
        return Vec::new();
    };
    let row = |(event, rejection): (&Ref, &Rejection)| {
        let part = parking::part(events, parts, *event);
        let record = events.records[*event as usize];
        if record.offset() < part.claim.emitted_through {
            return None; // a live generation has been here
        }
        let rejection = Rejection {
            detail: applier.secrets.cleaned(&rejection.detail),
            ..rejection.clone()
        };
        let message = message(topic, part.partition, record, &rejection);
        let emitted = Emitted {
            reference: *event,
            name: KIND.into(),
            index: INDEX,
            message,
        };
        let stream = MessageStream::new(&applier.projection.name, part.partition);
        let row = stream.row(part.claim.incarnation, record, emitted);
        Some(outbox::Row {
            stream: format!("{}/dead-letters", row.stream).into(),
            ..row
        })
    };
    parked.iter().filter_map(row).collect()
}

/// As much of a record as fits into a message, and why it was parked.
fn message(
    topic: &str,
    partition: &TopicPartition,
    record: &Record,
    rejection: &Rejection,
) -> Message {
    let header = |name: &str, value: String| Header {
        name: name.to_owned(),
        value: Some(value.into_bytes()),
    };
    let place = format!(
        "{}/{}@{}",
        partition.topic(),
        partition.partition(),
        record.offset()
    );
    let detail = rejection.detail.chars().take(DETAIL_MAX).collect();
    let mut headers = vec![
        header("tidegate_reason", rejection.reason.name().to_owned()),
        header("tidegate_detail", detail),
        header("tidegate_record", place),
    ];
    let longest = header("tidegate_truncated", ALL_TRUNCATED.to_owned());
    let ours: usize = headers.iter().chain([&longest]).map(size).sum();
    let mut room = MESSAGE_SIZE_MAX - KIND.len() - ours;
    let mut truncated: Vec<&str> = Vec::new();
    let mut take = |what, bytes: Option<&[u8]>| match bytes {
        Some(bytes) if bytes.len() > room => {
            truncated.push(what);
            None
        }
        Some(bytes) => {
            room -= bytes.len();
            Some(bytes.to_vec())
        }
        None => None,
    };
    let key = take("key", record.key());
    let payload = take("value", record.value());
    for own in record.headers().iter().filter(|own| !is_ours(&own.name)) {
        match room.checked_sub(size(own)) {
            Some(left) => {
                room = left;
                headers.push(own.clone());
            }
            None if truncated.contains(&"headers") => {}
            None => truncated.push("headers"),
        }
    }
    if !truncated.is_empty() {
        headers.push(header("tidegate_truncated", truncated.join(", ")));
    }
    Message {
        topic: topic.to_owned(),
        key,
        payload,
        kind: KIND.to_owned(),
        headers,
        partition: None,
    }
}

fn size(header: &Header) -> usize {
    header.name.len() + header.value.as_ref().map_or(0, Vec::len) + HEADER_FRAMING
}

/// Headers that the relay sets, or that we have set: of a record that comes from such a topic itself they would pile up.
/// And a name that the outbox cannot hold.
fn is_ours(name: &str) -> bool {
    name.starts_with("ce_") || name.starts_with("tidegate_") || name.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::parking::Reason;
    use crate::types::RecordBuilder;

    fn own(name: &str, value: &[u8]) -> Header {
        Header {
            name: name.to_owned(),
            value: Some(value.to_vec()),
        }
    }

    fn made(key: Option<&[u8]>, value: Option<&[u8]>, headers: Vec<Header>) -> Message {
        let record = RecordBuilder {
            offset: 17,
            key,
            value,
            headers,
            ..RecordBuilder::default()
        }
        .build();
        let rejection = Rejection::new(Reason::Undecodable, "é".repeat(2_000));
        message("dead", &TopicPartition::new("t", 3), &record, &rejection)
    }

    fn header<'m>(message: &'m Message, name: &str) -> Option<&'m str> {
        let found = message.headers.iter().find(|header| header.name == name);
        found.map(|header| std::str::from_utf8(header.value.as_deref().unwrap()).unwrap())
    }

    fn bytes(message: &Message) -> usize {
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers: usize = message.headers.iter().map(size).sum();
        length(&message.key) + length(&message.payload) + message.kind.len() + headers
    }

    #[test]
    fn a_record_is_sent_as_it_is_with_its_reason() {
        let headers = vec![own("k", b"1"), own("k", b"2"), own("bin", b"\xff\0")];
        let sent = made(Some(b"\0\xff"), Some(b"{"), headers.clone());
        assert_eq!(sent.key.as_deref(), Some(&b"\0\xff"[..]));
        assert_eq!(sent.payload.as_deref(), Some(&b"{"[..]));
        assert_eq!(header(&sent, "tidegate_reason"), Some("undecodable"));
        assert_eq!(header(&sent, "tidegate_record"), Some("t/3@17"));
        let detail = header(&sent, "tidegate_detail").unwrap();
        assert_eq!(detail.chars().count(), DETAIL_MAX);
        assert_eq!(header(&sent, "tidegate_truncated"), None);
        assert_eq!(sent.headers[3..], headers, "in their order");
        assert_eq!(made(None, None, Vec::new()).payload, None);
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_named() {
        let large = vec![b'v'; MESSAGE_SIZE_MAX - 1_500];
        let sent = made(Some(b"k"), Some(&large), vec![own("a", b"1")]);
        assert_eq!(header(&sent, "tidegate_truncated"), None);
        assert!(bytes(&sent) <= MESSAGE_SIZE_MAX);

        let large = vec![b'v'; MESSAGE_SIZE_MAX - 500];
        let sent = made(Some(b"k"), Some(&large), vec![own("a", b"1")]);
        assert_eq!(
            (sent.key.as_deref(), &sent.payload),
            (Some(&b"k"[..]), &None)
        );
        assert_eq!(header(&sent, "tidegate_truncated"), Some("value"));
        assert_eq!(header(&sent, "a"), Some("1"));

        let many = (0..20).map(|_| own("h", &vec![b'h'; 100_000])).collect();
        let sent = made(Some(&large), Some(&large), many);
        let names = header(&sent, "tidegate_truncated");
        assert_eq!(names, Some(ALL_TRUNCATED));
        assert_eq!(sent.headers.len(), 3 + 9 + 1);
        assert!(bytes(&sent) <= MESSAGE_SIZE_MAX);
    }

    #[test]
    fn our_own_headers_are_replaced_and_never_pile_up() {
        let first = made(Some(b"k"), Some(b"v"), vec![own("a", b"1")]);
        let mut headers = first.headers.clone();
        headers.push(own("ce_id", b"of the relay"));
        headers.push(own("n\0", b"no name"));
        let second = made(Some(b"k"), Some(b"v"), headers);
        assert_eq!(second, first);
    }
}
