//! Runs projections: claims positions, fetches, applies batches in the one transaction.

mod admission;
mod apply;
mod claim;
mod reposition;
mod reset;
mod service;
mod start;
mod stragglers;
mod topic_watch;
mod writer;

pub(crate) use reposition::{Operator, RepositionError, accept_topic, skip};
pub(crate) use reset::{ResetError, reset};
pub(crate) use service::run;
