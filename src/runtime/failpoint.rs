//! Places where a test may end the process, as `kill -9` would. Nothing without the feature `failpoints`.
//!
//! `FAILPOINTS='apply-before-commit=2*off->return'` ends it at the third batch.

/// After the handler's effects, before the position moves: an end here leaves neither.
pub(crate) const BEFORE_ADVANCE: &str = "apply-before-advance";
/// After the position has moved, before COMMIT: an end here leaves neither.
pub(crate) const BEFORE_COMMIT: &str = "apply-before-commit";
/// After COMMIT was answered, before anything else knows: an end here leaves both.
pub(crate) const AFTER_COMMIT: &str = "apply-after-commit";
/// After messages were handed to the producer, before any answer is looked at.
pub(crate) const HANDED_OVER: &str = "relay-handed-over";
/// After the broker has acknowledged messages, before the cursor moves: they are sent again.
pub(crate) const BEFORE_CURSOR: &str = "relay-before-cursor";

/// Ends the process if the environment says so.
pub(crate) fn reach(name: &str) {
    fail::fail_point!(name, |_| {
        tracing::warn!(name, "ending at a failpoint");
        std::process::abort()
    });
    let _ = name;
}
