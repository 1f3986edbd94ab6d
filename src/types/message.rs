//! A downstream message, before it is in the outbox.

use super::Header;

/// A downstream message. It leaves only if the batch commits, and then at least once, always with
/// the same id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The topic it goes to.
    pub topic: String,
    /// Its key: decides the partition, and the order among messages of the same key.
    pub key: Option<Vec<u8>>,
    /// Its value; none is a tombstone.
    pub payload: Option<Vec<u8>>,
    /// CloudEvents type (`ce_type`); if empty, the name of the emit, or the topic where there is none.
    pub kind: String,
    /// Further headers. Names that begin with `ce_` are Tidegate's.
    pub headers: Vec<Header>,
    /// The partition of the topic it goes to; without one its key decides.
    pub partition: Option<i32>,
}
