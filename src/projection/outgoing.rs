//! Messages in Avro: what becomes of a payload before it is in the outbox.

use std::sync::{Arc, OnceLock};

use crate::avro::{Schema, encode};

/// How the payloads of an emit are written.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) schema: Arc<Schema>,
    /// The schema as it is registered.
    pub(crate) text: String,
    pub(crate) frame: Frame,
    /// Settled once, before anything is emitted: a schema's id must be asked for.
    written: OnceLock<Written>,
}

/// What stands before a datum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The id of a registry's schema.
    Confluent {
        subject: String,
        /// Whether it is registered if it is not there.
        register: bool,
    },
    SingleObject,
    Raw,
}

#[derive(Debug)]
enum Written {
    /// Behind these bytes, which say this id of a registry.
    Behind { bytes: Vec<u8>, id: Option<u32> },
    /// Not at all: in tests of projections payloads stay JSON, so that they can be read.
    AsJson,
}

impl Outgoing {
    pub(crate) fn new(schema: Arc<Schema>, text: String, frame: Frame) -> Self {
        Self {
            schema,
            text,
            frame,
            written: OnceLock::new(),
        }
    }

    /// Writes from now on behind the frame; `id` is that of the registry.
    pub(crate) fn settle(&self, id: Option<u32>) {
        let bytes = match (&self.frame, id) {
            (Frame::Confluent { .. }, Some(id)) => [&[0][..], &id.to_be_bytes()].concat(),
            (Frame::Confluent { .. }, None) => return,
            (Frame::SingleObject, _) => [&[0xc3, 0x01][..], &self.schema.fingerprint()].concat(),
            (Frame::Raw, _) => Vec::new(),
        };
        let _ = self.written.set(Written::Behind { bytes, id });
    }

    /// What a registry knows its schema by, if messages say that.
    pub(crate) fn id(&self) -> Option<u32> {
        match self.written.get()? {
            Written::Behind { id, .. } => *id,
            Written::AsJson => None,
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.written.get().is_some()
    }

    /// Compares payloads with the schema, and leaves them as they are.
    pub(crate) fn leave_as_json(&self) {
        let _ = self.written.set(Written::AsJson);
    }

    /// A payload as it is sent; none if that is not settled yet.
    ///
    /// # Errors
    /// What of it the schema does not take.
    pub(crate) fn write(&self, json: &[u8]) -> Option<Result<Vec<u8>, String>> {
        let written = self.written.get()?;
        let value = serde_json::from_slice(json).map_err(|error| format!("no JSON: {error}"));
        let datum = value.and_then(|value| encode(&self.schema, &value));
        Some(datum.map(|datum| match written {
            Written::Behind { bytes, .. } => [&bytes[..], &datum].concat(),
            Written::AsJson => json.to_vec(),
        }))
    }
}
