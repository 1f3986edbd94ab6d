//! Where a value stands in a record.

use std::fmt;

/// Where a value stands in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The record's key, as UTF-8 text.
    Key,
    /// The last header of that name, as UTF-8 text.
    Header(String),
    /// A JSON pointer into the value, such as `/order/id`; the same path into a value in Avro. Into the data of
    /// a CloudEvent, and into the row of a change event: as it is now, or as it was where it is gone.
    Pointer(String),
    /// A path into the record's key, which is JSON, or Avro as values are, such as `/id`.
    KeyPath(String),
    /// An attribute of a CloudEvent, such as `id`.
    Attribute(String),
    /// A path into a change event itself, such as `/source/lsn`.
    Envelope(String),
}

impl Source {
    /// Reads `key`, `key:<JSON pointer>`, `header:<name>`, `ce:<attribute>`, `envelope:<JSON pointer>` or a JSON pointer.
    ///
    /// # Errors
    /// Says which forms there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "key" => Ok(Self::Key),
            _ if text.starts_with("header:") && text.len() > "header:".len() => {
                Ok(Self::Header(text["header:".len()..].to_owned()))
            }
            _ if text.starts_with("key:/") && text.len() > "key:/".len() => {
                Ok(Self::KeyPath(text["key:".len()..].to_owned()))
            }
            _ if text.starts_with('/') && text.len() > 1 => Ok(Self::Pointer(text.to_owned())),
            _ if text.starts_with("ce:") && text.len() > "ce:".len() => {
                Ok(Self::Attribute(text["ce:".len()..].to_owned()))
            }
            _ if text.starts_with("envelope:/") && text.len() > "envelope:/".len() => {
                Ok(Self::Envelope(text["envelope:".len()..].to_owned()))
            }
            _ => Err(format!(
                "`{text}` is not a source; write \"key\", \"header:<name>\" or a JSON pointer such as \"/account\""
            )),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => f.write_str("key"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Pointer(pointer) => f.write_str(pointer),
            Self::KeyPath(pointer) => write!(f, "key:{pointer}"),
            Self::Attribute(name) => write!(f, "ce:{name}"),
            Self::Envelope(pointer) => write!(f, "envelope:{pointer}"),
        }
    }
}
