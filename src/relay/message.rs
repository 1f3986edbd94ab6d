//! A message as Kafka gets it.

use crate::store::relay::Outgoing;
use crate::types::Header;

/// The headers of a message: CloudEvents' Kafka binding, then the emitter's own.
pub(super) fn headers(row: &Outgoing) -> Vec<Header> {
    let header = |name: &str, value: String| Header {
        name: name.to_owned(),
        value: Some(value.into_bytes()),
    };
    let time = row.occurred_at.unwrap_or(row.created_at);
    let mut headers = vec![
        header("ce_specversion", "1.0".to_owned()),
        header("ce_id", row.id.to_string()),
        header("ce_source", row.source.clone()),
        header("ce_type", row.kind.clone()),
        header(
            "ce_time",
            time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
        ),
        header("ce_sequence", row.number.to_string()),
    ];
    let own = row.header_names.iter().zip(&row.header_values);
    headers.extend(own.map(|(name, value)| Header {
        name: name.clone(),
        value: value.clone(),
    }));
    headers
}
