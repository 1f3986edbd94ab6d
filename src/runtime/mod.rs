//! Runs projections: claims positions, fetches, applies batches in the one transaction.

mod admission;
mod adoption;
mod apply;
mod attendance;
mod bulk;
mod claim;
mod dead_letter_topic;
mod history;
mod housekeeping;
mod letters;
mod observer;
mod outgoing;
mod parking;
mod quarantine;
mod rebuild;
mod redrive;
mod refusal;
mod rehearsal;
mod reposition;
mod reset;
mod service;
mod start;
mod stragglers;
mod topic_watch;
mod writer;

pub(crate) use claim::Role;
pub(crate) use letters::{LetterError, accept_gap, begin_redrive, discard};
pub(crate) use outgoing::settle as settle_outgoing;
pub(crate) use quarantine::{QuarantineError, discard as discard_messages, release};
pub(crate) use rebuild::{
    Accept, Aside, Builder, Plan, Progress, RebuildError, Rebuilder, Share, Standing, Verified,
};
pub(crate) use redrive::{LETTERS_MAX, Queue, RedriveError, Redriven, Redriver, fewer};
pub(crate) use rehearsal::{Rehearsal, RehearsalError, make as rehearse};
pub(crate) use reposition::{Of, Operator, RepositionError, accept_topic, set_running, skip};
pub(crate) use reset::{
    Before as BeforeReset, Move, ResetError, ResetPlan, Target, plan as plan_reset, reset,
};
pub(crate) use service::{Error as RunError, host, run, run_relay};
