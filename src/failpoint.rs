//! Places where a test may end the process, as `kill -9` would. Nothing without the feature `failpoints`.
//!
//! `FAILPOINTS='apply-before-commit=2*off->return'` ends it at the third batch. What each end leaves behind
//! is in the failure matrix of ARCHITECTURE.md; `tests/it/crash.rs` ends the service at every one.

/// Names each point once, as a constant and in the list of all.
macro_rules! points {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub(crate) const $name: &str = $text;)*

        /// All of them.
        pub(crate) const ALL: &[&str] = &[$($text),*];
    };
}

points! {
    /// A batch's transaction is open, nothing is written.
    APPLY_AFTER_BEGIN = "apply-after-begin";
    /// Gate and inbox have moved.
    APPLY_AFTER_GATE = "apply-after-gate";
    /// The handler's effects are written.
    APPLY_AFTER_EFFECTS = "apply-after-effects";
    /// The batch's messages are in the outbox.
    APPLY_AFTER_OUTBOX = "apply-after-outbox";
    /// All but the position is written: an end here leaves neither.
    APPLY_BEFORE_ADVANCE = "apply-before-advance";
    /// After the position has moved, before COMMIT: an end here leaves neither.
    APPLY_BEFORE_COMMIT = "apply-before-commit";
    /// After COMMIT was answered, before anything else knows: an end here leaves both.
    APPLY_AFTER_COMMIT = "apply-after-commit";

    /// Dead letters are stored and the position has not moved.
    PARK_AFTER_LETTERS = "park-after-letters";

    /// The effects and messages of parked records are written, the records are not resolved.
    REDRIVE_BEFORE_RESOLVE = "redrive-before-resolve";
    /// They are resolved, and it is not committed.
    REDRIVE_BEFORE_COMMIT = "redrive-before-commit";
    /// It is committed, the operator does not know.
    REDRIVE_AFTER_COMMIT = "redrive-after-commit";

    /// Dead letters are discarded, or a gap is accepted, and it is not committed.
    LETTERS_BEFORE_COMMIT = "letters-before-commit";
    /// It is committed, the operator does not know.
    LETTERS_AFTER_COMMIT = "letters-after-commit";

    /// The answer to COMMIT has not come; nothing is decided.
    UNKNOWN_BEFORE_CLAIM = "unknown-before-claim";
    /// A claim has read what became of it.
    UNKNOWN_AFTER_CLAIM = "unknown-after-claim";

    /// A claim's transaction is open, the row is not taken.
    CLAIM_BEFORE_ROW = "claim-before-row";
    /// The row is taken, the claim is not committed.
    CLAIM_BEFORE_COMMIT = "claim-before-commit";
    /// The claim is committed, nothing is fetched.
    CLAIM_AFTER_COMMIT = "claim-after-commit";

    /// Partitions are taken away, their rows still name this owner.
    REVOKE_BEFORE_RELEASE = "revoke-before-release";
    /// Their rows name nobody, the poll thread still waits for the writer.
    REVOKE_AFTER_RELEASE = "revoke-after-release";
    /// The writers are done, the group has no answer yet.
    REVOKE_BEFORE_ANSWER = "revoke-before-answer";

    /// Positions may not be durable yet, and are about to be made so.
    MIRROR_BEFORE_CONFIRM = "mirror-before-confirm";
    /// They are durable, the poll thread does not know.
    MIRROR_AFTER_CONFIRM = "mirror-after-confirm";
    /// Durable positions are about to be copied to the group.
    MIRROR_BEFORE_COMMIT = "mirror-before-commit";
    /// They are on their way; the broker may have them or not.
    MIRROR_AFTER_COMMIT = "mirror-after-commit";

    /// Told to stop; the member does not know yet.
    STOP_BEFORE_LEAVING = "stop-before-leaving";
    /// All members have left their groups, the relay still sends.
    STOP_AFTER_LEAVING = "stop-after-leaving";
    /// The relay has stopped, its leases are not given up.
    STOP_BEFORE_LEASES = "stop-before-leases";

    /// Schema, tables and positions of a first start are made and not committed.
    START_BEFORE_COMMIT = "start-before-commit";
    /// They are committed, the group is not joined.
    START_AFTER_COMMIT = "start-after-commit";

    /// A new partition is known and has no position.
    PARTITION_BEFORE_INSERT = "partition-before-insert";
    /// It has one, and no owner.
    PARTITION_AFTER_INSERT = "partition-after-insert";

    /// A reset has emptied and moved everything, and is not committed.
    RESET_BEFORE_COMMIT = "reset-before-commit";
    /// It is committed, the operator does not know.
    RESET_AFTER_COMMIT = "reset-after-commit";

    /// The tables and positions of a build are made, or a former generation is taken for one, and it is not committed.
    REBUILD_BEFORE_BEGIN = "rebuild-before-begin";
    /// It is committed, nothing is built.
    REBUILD_AFTER_BEGIN = "rebuild-after-begin";
    /// The live generation is held up for a build to catch up.
    REBUILD_HOLDING = "rebuild-holding";
    /// The build stands where the live generation stands; what it held back is in the outbox.
    REBUILD_AFTER_MESSAGES = "rebuild-after-messages";
    /// The schemas have changed places, and it is not committed.
    REBUILD_BEFORE_CUT_OVER = "rebuild-before-cut-over";
    /// It is committed, the operator does not know.
    REBUILD_AFTER_CUT_OVER = "rebuild-after-cut-over";
    /// What was built is dropped, and it is not committed.
    REBUILD_BEFORE_ABANDON = "rebuild-before-abandon";
    /// It is committed, the operator does not know.
    REBUILD_AFTER_ABANDON = "rebuild-after-abandon";

    /// What a build has taken in: its gates are written, in an open transaction.
    BULK_AFTER_GATES = "bulk-after-gates";
    /// All of it is written, and it is not committed.
    BULK_BEFORE_COMMIT = "bulk-before-commit";
    /// It is committed, nothing else knows.
    BULK_AFTER_COMMIT = "bulk-after-commit";

    /// Positions are moved by hand, and it is not committed.
    REPOSITION_BEFORE_COMMIT = "reposition-before-commit";
    /// It is committed, the operator does not know.
    REPOSITION_AFTER_COMMIT = "reposition-after-commit";

    /// The relay has read messages and made them durable; none is sent.
    RELAY_AFTER_BARRIER = "relay-after-barrier";
    /// They are handed to the producer, no answer is looked at.
    RELAY_HANDED_OVER = "relay-handed-over";
    /// The broker has acknowledged them, the cursor has not moved: they are sent again.
    RELAY_BEFORE_CURSOR = "relay-before-cursor";
    /// The cursor is stored.
    RELAY_AFTER_CURSOR = "relay-after-cursor";

    /// Messages are put in quarantine, the cursor passes them, and it is not committed.
    QUARANTINE_BEFORE_COMMIT = "quarantine-before-commit";
    /// It is committed, the relay does not know.
    QUARANTINE_AFTER_COMMIT = "quarantine-after-commit";
}

/// Ends the process if the environment says so.
pub(crate) fn reach(name: &'static str) {
    debug_assert!(ALL.contains(&name));
    fail::fail_point!(name, |_| {
        tracing::warn!(name, "ending at a failpoint");
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        std::process::abort()
    });
}
