//! Runs projections: claims positions, fetches, applies batches in the one transaction.

mod admission;
mod apply;
mod claim;
pub(crate) mod failpoint;
mod reset;
mod service;
mod start;
mod writer;

pub(crate) use reset::{ResetError, reset};
pub(crate) use service::run;
