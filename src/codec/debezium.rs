//! Change events as Debezium writes them: a row as it was and as it is, around it what was done, when, and where in
//! the source's log; all of that perhaps in a `payload` beside its schema.

use super::place::{Found, Place, Shape};
use crate::types::Record;

/// How a change event is made: where its parts are, and which row counts.
pub(super) fn shape(op: &Place, record: &Record, found: &Found<'_>) -> Result<Shape, String> {
    for in_payload in [false, true] {
        let shape = Shape::Change {
            in_payload,
            gone: false,
        };
        if let Some(op) = op.read(record, found, shape)? {
            let gone = op.plain_text() == Some("d");
            return Ok(Shape::Change { in_payload, gone });
        }
    }
    Err("no change event: it has neither `op` nor a `payload` that has one".to_owned())
}
