//! Schemas of messages: each has its id before anything is emitted.

use std::sync::Arc;

use crate::projection::{Frame, Projection};
use crate::registry::Registry;

/// Settles how a projection's messages are written.
///
/// # Errors
/// Which schema has no id, and why.
pub(crate) async fn settle(
    projection: &Projection,
    registry: Option<&Arc<Registry>>,
) -> Result<(), String> {
    for outgoing in &projection.outgoing {
        if outgoing.is_settled() {
            continue;
        }
        let id = match (&outgoing.frame, registry) {
            (Frame::Confluent { subject, register }, Some(registry)) => {
                let asked = registry.id_of(subject, &outgoing.text, *register);
                Some(Box::pin(asked).await?)
            }
            (Frame::Confluent { .. }, None) => {
                return Err("there is no [schema_registry] to ask".to_owned());
            }
            (Frame::SingleObject | Frame::Raw, _) => None,
        };
        outgoing.settle(id);
    }
    Ok(())
}
