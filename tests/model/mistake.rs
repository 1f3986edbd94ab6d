//! The mistakes that can be planted in the models: each is one line that is left out or put elsewhere.

/// What somebody might get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The position statement compares neither epoch nor token.
    NoOwnerCheck,
    /// The position statement does not compare the offset that the batch begins at.
    NoOffsetCheck,
    /// A claim reads the position first and waits for the row's lock afterwards.
    ClaimReadsBeforeItsLock,
    /// The position moves in a transaction of its own, before the effects.
    PositionFirst,
    /// After a COMMIT without an answer the same batch is run again, without a claim.
    BlindRetry,
    /// Records that are held survive a lost connection.
    KeepsRecords,
    /// A claim takes the generation from memory.
    ClaimsFromMemory,
    /// COMMIT is sent along with the position statement.
    CommitsUnseen,
    /// The gate moves in a transaction of its own, before the effects.
    GateAlone,
    /// A reset does not raise the right to emit.
    EmissionNotRaised,
    /// A reset sets the right to emit to where this generation stood.
    EmissionOverwritten,
    /// A reset sets the right to emit to the end of the log.
    EmissionRaisedTooFar,
    /// A reset does not raise the epochs.
    ResetDoesNotFence,
    /// Nor does a skip by hand.
    SkipDoesNotFence,
    /// A batch committed asynchronously is mirrored at once.
    MirrorsWhatIsNotDurable,
    /// A worker mirrors partitions that are not its own any more.
    MirrorsWhatIsRevoked,
    /// Positions are confirmed by a statement that writes nothing.
    ConfirmsWithoutWriting,
    /// A worker that finds itself fenced stops, and waits for Kafka to say something.
    FencedStops,

    /// A reset forgets the rights of what it leaves out.
    LeftOutForgotten,
    /// A build reads on where the live generation has not been.
    BuildPassesLive,
    /// A build spends the right of what it keeps back.
    BuildSpends,
    /// A cut-over does not wait for the build to stand where the live generation stands.
    CutsOverBehind,
    /// A cut-over puts everything in the outbox that was kept back.
    HeldUnchecked,
    /// A cut-over puts nothing of it there.
    NothingHeld,
    /// A cut-over spends no right of what the build has passed.
    NothingSettled,
    /// A cut-over spends the rights of what waits in the build too.
    WaitingSettled,
    /// A rollback takes the former generation as it stands.
    RollbackDoesNotCatchUp,

    /// The relay sends what it has read, without a barrier.
    NoBarrier,
    /// The relay's barrier runs on another connection than its read.
    BarrierElsewhere,
    /// The relay reads after its barrier.
    ReadsAfterBarrier,
    /// The relay takes a barrier that has touched no row for done.
    BarrierTouchesNothing,
    /// The producer goes on behind a message that the broker has refused.
    GoesOnBehindAFailure,
    /// The cursor moves over what was handed to the producer, not over what the broker has acknowledged.
    CursorBeforeAnswer,
    /// The cursor's update does not look at the lease.
    CursorWithoutLease,
}
