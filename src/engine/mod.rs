//! Pure decisions: values in, values out. No async, no I/O, no clock.

pub(crate) mod backoff;
pub(crate) mod explain;
pub(crate) mod gate;
pub(crate) mod isolation;
pub(crate) mod parking;
pub(crate) mod quarantine;
pub(crate) mod rebuild;
pub(crate) mod redact;
pub(crate) mod steps;

/// What an error means for the work that met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// May pass later: the whole transaction again.
    Transient,
    /// This record never passes.
    Terminal,
    /// No record can pass until someone acts.
    Halt,
}
