//! W3C trace context: by which trace a record was written.

use super::{Header, Record};

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";
/// `00-<trace id>-<span id>-<flags>`.
const PARENT_LEN: usize = 55;
/// Longer ones are no use to anybody; a vendor's list is to be passed on up to this length.
const STATE_LEN_MAX: usize = 512;

/// What a record's headers say of its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext<'r> {
    pub(crate) parent: &'r str,
    state: Option<&'r str>,
}

impl<'r> TraceContext<'r> {
    /// As producers write it: in a header of its own, or as CloudEvents' extension. None if there is none, or none
    /// that can be followed.
    pub(crate) fn of(record: &'r Record) -> Option<Self> {
        if record.headers().is_empty() {
            return None;
        }
        let text = |name: &str| std::str::from_utf8(record.header(name)?).ok();
        let (parent, state) = match text(PARENT) {
            Some(parent) => (parent, text(STATE)),
            None => (text("ce_traceparent")?, text("ce_tracestate")),
        };
        let state = state.filter(|state| {
            let printable = |b: u8| (0x20..0x7f).contains(&b);
            !state.is_empty() && state.len() <= STATE_LEN_MAX && state.bytes().all(printable)
        });
        is_parent(parent).then_some(Self { parent, state })
    }

    /// Passes it on, unless who wrote the message has said otherwise.
    pub(crate) fn carry(self, headers: &mut Vec<Header>) {
        if headers.iter().any(|header| header.name == PARENT) {
            return;
        }
        headers.retain(|header| header.name != STATE);
        let of = [(PARENT, Some(self.parent)), (STATE, self.state)];
        headers.extend(of.into_iter().filter_map(|(name, value)| {
            Some(Header {
                name: name.to_owned(),
                value: Some(value?.as_bytes().to_vec()),
            })
        }));
    }
}

/// Version 00, or what a later one begins with. All zeros is no trace and no span.
fn is_parent(text: &str) -> bool {
    let hex = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let id = |text: &str, len: usize| hex(text, len) && text.bytes().any(|b| b != b'0');
    let mut fields = text.splitn(5, '-');
    let mut next = || fields.next().unwrap_or_default();
    let (version, trace, span, flags) = (next(), next(), next(), next());
    let ends = text.len() == PARENT_LEN || version != "00";
    hex(version, 2)
        && version != "ff"
        && id(trace, 32)
        && id(span, 16)
        && hex(flags, 2)
        && ends
        && text.len() <= STATE_LEN_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::RecordBuilder;

    const ONE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn record(headers: &[(&str, &str)]) -> Record {
        let header = |(name, value): &(&str, &str)| Header {
            name: (*name).to_owned(),
            value: Some(value.as_bytes().to_vec()),
        };
        RecordBuilder {
            headers: headers.iter().map(header).collect(),
            ..RecordBuilder::default()
        }
        .build()
    }

    #[test]
    fn a_records_trace_is_passed_on() {
        let record = record(&[("a", "1"), ("traceparent", ONE), ("tracestate", "v=1,w=2")]);
        let mut headers = Vec::new();
        TraceContext::of(&record).unwrap().carry(&mut headers);
        assert_eq!(headers, record.headers()[1..]);
    }

    #[test]
    fn what_cloudevents_call_it_is_passed_on_under_its_own_name() {
        let record = record(&[("ce_traceparent", ONE)]);
        let mut headers = Vec::new();
        TraceContext::of(&record).unwrap().carry(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers[0].name, "traceparent");
    }

    #[test]
    fn a_message_that_names_its_own_trace_keeps_it() {
        let own = record(&[("traceparent", "mine")]).headers().to_vec();
        let mut headers = own.clone();
        let record = record(&[("traceparent", ONE)]);
        TraceContext::of(&record).unwrap().carry(&mut headers);
        assert_eq!(headers, own);
    }

    #[test]
    fn what_cannot_be_followed_is_left_out() {
        let later = format!("cc{}-what-the-future-brings", &ONE[2..]);
        assert!(TraceContext::of(&record(&[("traceparent", &later)])).is_some());
        let (upper, longer) = (ONE.to_uppercase(), format!("{ONE}-x"));
        let nobody = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let future = format!("ff{}", &ONE[2..]);
        for wrong in [
            "",
            "00",
            &ONE[..54],
            &upper,
            &longer,
            &nobody,
            &future,
            "\u{e9}",
        ] {
            assert_eq!(
                TraceContext::of(&record(&[("traceparent", wrong)])),
                None,
                "{wrong}"
            );
        }
        let long = "v=".repeat(300);
        let long = record(&[("traceparent", ONE), ("tracestate", &long)]);
        assert_eq!(TraceContext::of(&long).unwrap().state, None);
    }
}
