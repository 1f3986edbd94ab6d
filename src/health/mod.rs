//! What is known of this process, and whether it is well.
//!
//! Whoever works writes on the [`Board`] what it does; whoever asks reads it, and [`Verdict`] says what it means.
//! Nothing that decides about records ever reads it: a board that is wrong misleads a person, not the data.

mod board;
mod verdict;

pub(crate) use board::{
    Board, Build, Detached, Doing, Figures, Letters, Lock, Log, Share, Snapshot,
};
pub(crate) use verdict::{Reason, Verdict};

#[cfg(test)]
mod tests;
