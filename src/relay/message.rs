//! A message as Kafka gets it.

use crate::kafka::HeaderRef;
use crate::store::relay::Outgoing;
use crate::types::HeaderNames;

/// Those values of a message's headers that are not in its row as they are sent.
pub(super) struct Values {
    id: String,
    time: String,
    sequence: String,
}

impl Values {
    pub(super) fn of(row: &Outgoing) -> Self {
        let time = row.occurred_at.unwrap_or(row.created_at);
        Self {
            id: row.id.to_string(),
            time: time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
            sequence: row.number.to_string(),
        }
    }
}

/// The headers of a message: those of the relay, then the emitter's own.
pub(super) fn headers<'r>(
    row: &'r Outgoing,
    values: &'r Values,
    names: &'r HeaderNames,
) -> Vec<HeaderRef<'r>> {
    let relays = [
        (&names.specversion, "1.0"),
        (&names.id, &*values.id),
        (&names.source, &*row.source),
        (&names.kind, &*row.kind),
        (&names.time, &*values.time),
        (&names.sequence, &*values.sequence),
    ];
    let relays = relays
        .into_iter()
        .filter_map(|(name, value)| Some((name.as_deref()?, Some(value.as_bytes()))));
    let own = row.header_names.iter().zip(&row.header_values);
    let own = own.map(|(name, value)| (&**name, value.as_deref()));
    relays.chain(own).collect()
}
