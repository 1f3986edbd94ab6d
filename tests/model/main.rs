//! Tidegate's protocol as a model, checked in every state that it can reach.
//!
//! Three state machines: [`apply`], from Kafka's assignment to the commit, with claims and resets; [`emission`], the
//! right to emit over resets, rebuilds and rollbacks; and [`relay`], from the outbox to the topic. Each is run in small worlds, with a bound on what goes wrong, in every order
//! in which the steps of all can come. A world that breaks a promise is told step by step.
//!
//! A model proves little until it has been seen to fail: each of the mistakes that one could make is planted,
//! and the checker must find how the promise breaks ([`every_planted_mistake_is_found`]). Some make no
//! difference, since another rule makes up for them; those are told too.
//!
//! `cargo test --test model -- --nocapture` prints the number of states of each world, and the shortest way
//! from each mistake to the broken promise. Of a partition, `*` marks the worker that Kafka has it assigned
//! to; tables list partition and offset.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed"
)]

mod apply;
mod check;
mod emission;
mod mistake;
mod relay;

use std::collections::BTreeSet;

use apply::{
    ACCOUNTED, APPLIED_ONCE, EMITTED_ONCE, Event, Faults, Gate, IN_ORDER, MIRROR_SETTLES,
    MIRRORS_DURABLE, NEWEST_OWNER, NO_FAULTS, NO_MESSAGE_LOST, NOTHING_SKIPPED, ONLY_GROWS,
    Protocol,
};
use check::{Checkable, breaks, holds, recovers, stands_still};
use emission::{NO_RIGHT_LOST, ONCE_OVER_ALL, Operators, Rights};
use mistake::Mistake;
use relay::{NEVER_TAKEN_BACK, NONE_PASSED_OVER, Relays, SENT_IN_ORDER};
use stateright::Model;

const fn event(entity: usize, sequence: u8) -> Event {
    Event { entity, sequence }
}

/// With a copy of an event.
const FOUR: [&[Event]; 2] = [&[event(0, 1), event(1, 1), event(0, 1), event(0, 2)], &[]];
const THREE: [&[Event]; 2] = [&[event(0, 1), event(1, 1), event(0, 2)], &[]];
const TWO: [&[Event]; 2] = [&[event(0, 1), event(0, 2)], &[]];
/// An entity that has moved to another partition, with an event in both.
const MOVED: [&[Event]; 2] = [&[event(0, 1), event(0, 2)], &[event(0, 2), event(0, 3)]];
const APART: [&[Event]; 2] = [&[event(0, 1), event(0, 2)], &[event(1, 1)]];

/// Two records, two workers, and Kafka that once takes the partition from one that does not notice; one
/// crash, one lost connection.
const SMALL: Protocol = Protocol {
    log: TWO,
    gate: Gate::None,
    batch_records_max: 2,
    asynchronous: false,
    mirrors: false,
    faults: Faults {
        moves: 1,
        crashes: 1,
        lost_connections: 1,
        ..NO_FAULTS
    },
    mistakes: &[],
    only: None,
};

const WITH_GATE: Protocol = Protocol {
    gate: Gate::Newest,
    ..SMALL
};

const RESET: Protocol = Protocol {
    faults: Faults {
        moves: 1,
        resets: 1,
        ..NO_FAULTS
    },
    ..SMALL
};

const TWO_RESETS: Protocol = Protocol {
    faults: Faults {
        moves: 1,
        resets: 2,
        ..NO_FAULTS
    },
    ..SMALL
};

/// Batches commit asynchronously, and the database crashes once.
const ASYNCHRONOUS: Protocol = Protocol {
    log: THREE,
    asynchronous: true,
    faults: Faults {
        moves: 1,
        lost_connections: 1,
        database_crashes: 1,
        ..NO_FAULTS
    },
    ..SMALL
};

/// An operator leaves a record out, and resets.
const SKIP: Protocol = Protocol {
    faults: Faults {
        moves: 1,
        resets: 1,
        skips: 1,
        ..NO_FAULTS
    },
    ..SMALL
};

const RELAYS: Relays = Relays {
    messages: 2,
    faults: relay::Faults {
        lost_sessions: 1,
        database_crashes: 1,
        refusals: 1,
    },
    mistakes: &[],
    only: None,
};

const RIGHTS: Rights = Rights {
    operators: Operators {
        resets: 1,
        rebuilds: 1,
        rollbacks: 1,
        discards: 1,
        repairs: 1,
    },
    mistakes: &[],
    only: None,
};

#[test]
fn batches_are_exact_through_rebalances_crashes_and_lost_answers() {
    let faults = Faults {
        moves: 2,
        crashes: 1,
        lost_connections: 2,
        ..NO_FAULTS
    };
    let gate = Protocol {
        log: FOUR,
        faults,
        ..WITH_GATE
    };
    holds("a copy of an event, gate newest", gate, 60_000);
    let no_gate = Protocol {
        log: THREE,
        batch_records_max: 3,
        faults,
        ..SMALL
    };
    holds("no gate", no_gate, 50_000);
}

#[test]
fn an_entity_that_moves_between_partitions_keeps_its_order() {
    let moved = Protocol {
        log: MOVED,
        faults: Faults {
            moves: 1,
            lost_connections: 1,
            ..NO_FAULTS
        },
        ..WITH_GATE
    };
    holds("an entity in two partitions", moved, 30_000);
}

#[test]
fn resets_under_load_lose_and_repeat_nothing() {
    let faults = Faults {
        resets: 2,
        ..SMALL.faults
    };
    holds("two resets", Protocol { faults, ..SMALL }, 50_000);
}

#[test]
fn what_an_operator_leaves_out_is_all_that_is_left_out() {
    holds("skip and reset", SKIP, 5_000);
}

#[test]
fn a_writer_with_claims_of_two_generations_mixes_nothing() {
    let apart = Protocol {
        log: APART,
        faults: Faults {
            lost_connections: 1,
            ..RESET.faults
        },
        ..RESET
    };
    holds("two partitions and a reset", apart, 180_000);
}

#[test]
fn what_a_database_crash_takes_back_falls_together() {
    holds("asynchronous batches", ASYNCHRONOUS, 4_000);
    let faults = Faults {
        crashes: 1,
        resets: 1,
        ..ASYNCHRONOUS.faults
    };
    let reset = Protocol {
        log: TWO,
        faults,
        ..ASYNCHRONOUS
    };
    holds("asynchronous batches and a reset", reset, 40_000);
}

// I7. Between a reset and the owner's next claim the mirror shows what was; no order of two systems can help
// that.
#[test]
fn the_mirror_shows_no_more_than_the_position() {
    let mirrors = Protocol {
        mirrors: true,
        ..RESET
    };
    holds("mirror", mirrors, 10_000);
    let faults = Faults {
        moves: 1,
        database_crashes: 1,
        resets: 1,
        ..NO_FAULTS
    };
    let asynchronous = Protocol {
        log: TWO,
        mirrors: true,
        faults,
        ..ASYNCHRONOUS
    };
    holds("mirror of asynchronous batches", asynchronous, 10_000);
}

#[test]
fn relays_pass_over_nothing_and_send_nothing_that_may_be_taken_back() {
    let faults = relay::Faults {
        lost_sessions: 2,
        ..RELAYS.faults
    };
    holds("two relays", Relays { faults, ..RELAYS }, 100_000);
    let faults = relay::Faults {
        refusals: 0,
        ..RELAYS.faults
    };
    let messages = 3;
    holds(
        "three messages",
        Relays {
            messages,
            faults,
            ..RELAYS
        },
        100_000,
    );
}

#[test]
fn a_right_to_emit_is_used_once_over_resets_rebuilds_and_rollbacks() {
    let operators = Operators {
        resets: 2,
        ..RIGHTS.operators
    };
    holds(
        "two resets and a rebuild",
        Rights {
            operators,
            ..RIGHTS
        },
        70_000,
    );
    let operators = Operators {
        rebuilds: 2,
        rollbacks: 2,
        repairs: 0,
        ..RIGHTS.operators
    };
    holds(
        "two rebuilds and two rollbacks",
        Rights {
            operators,
            ..RIGHTS
        },
        100_000,
    );
}

// The liveness of claims and of the relay: nobody stands still, however workers fence each other.
#[test]
fn from_every_state_there_is_a_way_to_the_end() {
    recovers("claims and batches", &SMALL, 4_000);
    recovers("an entity's gate", &WITH_GATE, 3_000);
    recovers("resets", &TWO_RESETS, 5_000);
    recovers("asynchronous batches", &ASYNCHRONOUS, 4_000);
    let mirror = Protocol {
        mirrors: true,
        ..RESET
    };
    recovers("mirror", &mirror, 5_000);
    let asynchronous_mirror = Protocol {
        mirrors: true,
        ..ASYNCHRONOUS
    };
    recovers(
        "mirror of asynchronous batches",
        &asynchronous_mirror,
        5_000,
    );
    recovers("relays", &RELAYS, 50_000);
    recovers("rebuilds", &RIGHTS, 10_000);
}

/// Mistakes of claims, batches and resets, the world to make them in, and a promise that breaks.
const MISTAKES: [(&[Mistake], Protocol, &str); 24] = {
    use Mistake::*;
    const MIRROR: Protocol = Protocol {
        mirrors: true,
        ..RESET
    };
    const ASYNCHRONOUS_MIRROR: Protocol = Protocol {
        mirrors: true,
        ..ASYNCHRONOUS
    };
    [
        (&[NoOwnerCheck], SMALL, NEWEST_OWNER),
        (&[NoOwnerCheck], RESET, APPLIED_ONCE),
        (&[NoOwnerCheck, NoOffsetCheck], SMALL, APPLIED_ONCE),
        (&[NoOwnerCheck, NoOffsetCheck], SMALL, ONLY_GROWS),
        (&[NoOwnerCheck, NoOffsetCheck], SMALL, IN_ORDER),
        (
            &[NoOffsetCheck, ClaimReadsBeforeItsLock],
            SMALL,
            APPLIED_ONCE,
        ),
        (&[NoOffsetCheck, BlindRetry], SMALL, APPLIED_ONCE),
        (&[PositionFirst], SMALL, NOTHING_SKIPPED),
        (&[KeepsRecords], SMALL, APPLIED_ONCE),
        (&[KeepsRecords], ASYNCHRONOUS, NOTHING_SKIPPED),
        (&[KeepsRecords], ASYNCHRONOUS, ACCOUNTED),
        (&[ClaimsFromMemory], RESET, APPLIED_ONCE),
        (&[CommitsUnseen], SMALL, APPLIED_ONCE),
        (&[GateAlone], WITH_GATE, NOTHING_SKIPPED),
        (&[EmissionNotRaised], RESET, EMITTED_ONCE),
        (&[EmissionOverwritten], TWO_RESETS, EMITTED_ONCE),
        (&[EmissionRaisedTooFar], RESET, NO_MESSAGE_LOST),
        (&[ResetDoesNotFence], RESET, NEWEST_OWNER),
        (&[ResetDoesNotFence], RESET, APPLIED_ONCE),
        (
            &[MirrorsWhatIsNotDurable],
            ASYNCHRONOUS_MIRROR,
            MIRRORS_DURABLE,
        ),
        (
            &[MirrorsWhatIsNotDurable],
            ASYNCHRONOUS_MIRROR,
            MIRROR_SETTLES,
        ),
        (
            &[ConfirmsWithoutWriting],
            ASYNCHRONOUS_MIRROR,
            MIRRORS_DURABLE,
        ),
        (&[MirrorsWhatIsRevoked], MIRROR, MIRROR_SETTLES),
        (&[SkipDoesNotFence, NoOffsetCheck], SKIP, ACCOUNTED),
    ]
};

/// The relay's mistakes, and a promise that breaks.
const RELAY_MISTAKES: [(&[Mistake], &str); 7] = {
    use Mistake::*;
    [
        (&[NoBarrier], NEVER_TAKEN_BACK),
        (&[BarrierElsewhere], NEVER_TAKEN_BACK),
        (&[BarrierElsewhere], NONE_PASSED_OVER),
        (&[ReadsAfterBarrier], NEVER_TAKEN_BACK),
        (&[BarrierTouchesNothing], NEVER_TAKEN_BACK),
        (&[CursorBeforeAnswer], NONE_PASSED_OVER),
        (&[GoesOnBehindAFailure], SENT_IN_ORDER),
    ]
};

/// Mistakes of rebuilds, and a promise that breaks.
const RIGHTS_MISTAKES: [(&[Mistake], &str); 7] = {
    use Mistake::*;
    [
        (&[LeftOutForgotten], NO_RIGHT_LOST),
        (&[BuildPassesLive], NO_RIGHT_LOST),
        (&[BuildSpends], NO_RIGHT_LOST),
        (&[HeldUnchecked], ONCE_OVER_ALL),
        (&[NothingHeld], NO_RIGHT_LOST),
        (&[NothingSettled], ONCE_OVER_ALL),
        (&[WaitingSettled], NO_RIGHT_LOST),
    ]
};

#[test]
fn every_planted_mistake_is_found() {
    for (mistakes, promise) in RIGHTS_MISTAKES {
        breaks(&format!("{mistakes:?}"), &RIGHTS.with(mistakes), promise);
    }
    for (mistakes, world, promise) in MISTAKES {
        breaks(&format!("{mistakes:?}"), &world.with(mistakes), promise);
    }
    for (mistakes, promise) in RELAY_MISTAKES {
        breaks(&format!("{mistakes:?}"), &RELAYS.with(mistakes), promise);
    }
}

#[test]
fn every_promise_is_broken_by_some_mistake() {
    let promises = SMALL.properties().into_iter().map(|p| p.name);
    let promises: BTreeSet<&str> = promises
        .chain(RELAYS.properties().into_iter().map(|p| p.name))
        .chain(RIGHTS.properties().into_iter().map(|p| p.name))
        .collect();
    let broken = MISTAKES.map(|(_, _, promise)| promise).into_iter();
    let broken: BTreeSet<&str> = broken
        .chain(RELAY_MISTAKES.map(|(_, promise)| promise))
        .chain(RIGHTS_MISTAKES.map(|(_, promise)| promise))
        .collect();
    assert_eq!(promises, broken);
}

#[test]
fn a_worker_that_stops_when_it_is_fenced_leaves_its_partition_alone() {
    stands_still("FencedStops", &SMALL.with(&[Mistake::FencedStops]));
}

// What is lost is lost: no later step brings it back.
#[test]
fn records_that_a_mistake_has_lost_are_never_applied() {
    stands_still("PositionFirst", &SMALL.with(&[Mistake::PositionFirst]));
    stands_still("GateAlone", &WITH_GATE.with(&[Mistake::GateAlone]));
    let kept = ASYNCHRONOUS.with(&[Mistake::KeepsRecords]);
    stands_still("KeepsRecords", &kept);
}

// These checks are second lines: where one of them is left out, another one catches what comes through.
// They stay, since each would be the only one if somebody weakened the other.
#[test]
fn a_mistake_that_another_rule_makes_up_for_breaks_nothing() {
    use Mistake::{
        BlindRetry, ClaimReadsBeforeItsLock, CursorWithoutLease, CutsOverBehind, NoOffsetCheck,
        NoOwnerCheck, RollbackDoesNotCatchUp, SkipDoesNotFence,
    };
    // The owner check refuses old batches, and a claim waits for a COMMIT that is under way.
    holds("NoOffsetCheck", SMALL.with(&[NoOffsetCheck]), 4_000);
    holds(
        "NoOffsetCheck, resets",
        TWO_RESETS.with(&[NoOffsetCheck]),
        4_000,
    );
    // The offset refuses what a claim has read too early, and what was committed already.
    holds(
        "ClaimReadsBeforeItsLock",
        SMALL.with(&[ClaimReadsBeforeItsLock]),
        4_000,
    );
    holds("BlindRetry", SMALL.with(&[BlindRetry]), 4_000);
    holds("SkipDoesNotFence", SKIP.with(&[SkipDoesNotFence]), 4_000);
    // Within a generation the offset keeps effects exact, whoever writes them.
    for promise in [
        APPLIED_ONCE,
        NOTHING_SKIPPED,
        IN_ORDER,
        ONLY_GROWS,
        ACCOUNTED,
    ] {
        let effects = SMALL.with(&[NoOwnerCheck]).only(promise);
        holds("NoOwnerCheck", effects, 4_000);
    }
    // Readers would see the past (I2), but the right to emit has been raised to where the former one stood.
    for mistake in [&[CutsOverBehind], &[RollbackDoesNotCatchUp]] {
        holds(&format!("{mistake:?}"), RIGHTS.with(mistake), 10_000);
    }
    // The cursor never goes back, and whoever moves it has sent what is below.
    holds(
        "CursorWithoutLease",
        RELAYS.with(&[CursorWithoutLease]),
        20_000,
    );
}
