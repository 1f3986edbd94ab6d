//! A message as Kafka gets it.

use crate::store::relay::Outgoing;
use crate::types::{Header, HeaderNames};

/// The headers of a message: those of the relay, then the emitter's own.
pub(super) fn headers(row: &Outgoing, names: &HeaderNames) -> Vec<Header> {
    let time = row.occurred_at.unwrap_or(row.created_at);
    let time = time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    let relays = [
        (&names.specversion, "1.0".to_owned()),
        (&names.id, row.id.to_string()),
        (&names.source, row.source.clone()),
        (&names.kind, row.kind.clone()),
        (&names.time, time),
        (&names.sequence, row.number.to_string()),
    ];
    let relays = relays.into_iter().filter_map(|(name, value)| {
        Some(Header {
            name: name.clone()?,
            value: Some(value.into_bytes()),
        })
    });
    let own = row.header_names.iter().zip(&row.header_values);
    let own = own.map(|(name, value)| Header {
        name: name.clone(),
        value: value.clone(),
    });
    relays.chain(own).collect()
}
