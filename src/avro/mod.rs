//! Avro: schemas, and from the bytes of a datum to the values that are wanted of it.
//!
//! A schema is parsed by the library and kept in a form of our own ([`Schema`]). From the writer's schema, the
//! reader's and the paths that are wanted a [`Plan`] is made, once, by the rules of the specification; it goes through
//! a datum in one pass, takes what is wanted and steps over the rest. Nothing is allocated before its length has
//! been compared with what is there, and nesting, items and texts have limits ([`Limits`]).
//!
//! The library's own reader is not used: it has no limit to recursion, so that a record of some kilobytes ends the
//! process; it does not know aliases when it resolves; and it builds a tree with the name of every field for
//! every record. Tests compare the two, and with an implementation in Python.

mod datum;
mod encode;
mod plan;
mod read;
mod schema;

pub(crate) use datum::Datum;
pub(crate) use encode::encode;
pub(crate) use plan::{Plan, Wanted, index, tokens};
pub(crate) use schema::{Kind, Schema};

/// What one datum may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Records, arrays, maps and unions inside each other.
    pub(crate) nesting_max: usize,
    /// Items of all its arrays and maps together.
    pub(crate) items_max: usize,
    /// Bytes of what is made of it as JSON.
    pub(crate) text_bytes_max: usize,
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
