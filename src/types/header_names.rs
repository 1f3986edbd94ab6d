//! How the headers are called that every message gets.

/// The names of the headers that the relay gives to a message. Where there is none, the header is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderNames {
    pub(crate) specversion: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) time: Option<String>,
    pub(crate) sequence: Option<String>,
}

impl Default for HeaderNames {
    /// CloudEvents' Kafka binding, in binary mode.
    fn default() -> Self {
        let name = |name: &str| Some(name.to_owned());
        Self {
            specversion: name("ce_specversion"),
            id: name("ce_id"),
            source: name("ce_source"),
            kind: name("ce_type"),
            time: name("ce_time"),
            sequence: name("ce_sequence"),
        }
    }
}
