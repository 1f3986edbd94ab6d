//! CloudEvents in Kafka: attributes in headers (binary mode), or all of the event in the value (structured mode).

use crate::types::Record;

/// How the value of a CloudEvent is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// It is the event.
    Structured,
    /// It is data, in JSON.
    Json,
    /// It is data of another content type.
    Other(String),
}

/// Whether attributes are in the headers: then a record without a value is an event without data.
pub(super) fn is_event(record: &Record) -> bool {
    record.header("ce_specversion").is_some()
}

/// How a record's value is to be read.
pub(super) fn mode(record: &Record) -> Result<Mode, String> {
    let content_type = record.header("content-type").unwrap_or_default();
    let content_type = String::from_utf8_lossy(content_type);
    let kind = content_type.split(';').next().unwrap_or_default();
    let kind = kind.trim().to_ascii_lowercase();
    match &*kind {
        "application/cloudevents" | "application/cloudevents+json" => Ok(Mode::Structured),
        kind if kind.starts_with("application/cloudevents") => Err(format!(
            "a CloudEvent as {kind}; only application/cloudevents+json is read"
        )),
        _ if !is_event(record) => Err(
            "no CloudEvent: it has neither the header `ce_specversion` nor the content type application/cloudevents+json"
                .to_owned(),
        ),
        "" | "application/json" | "text/json" => Ok(Mode::Json),
        kind if kind.ends_with("+json") => Ok(Mode::Json),
        kind => Ok(Mode::Other(kind.to_owned())),
    }
}
