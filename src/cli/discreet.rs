//! The log's way out. Whoever writes a line need not think of secrets: none of the configuration's gets past here.

use std::io::{self, Write};
use std::sync::OnceLock;

use tracing_subscriber::fmt::MakeWriter;

use crate::engine::redact::Secrets;

static SECRETS: OnceLock<Secrets> = OnceLock::new();

/// From here on no line shows one of these. The first configuration of a process counts.
pub(super) fn hide(secrets: Secrets) {
    let _ = SECRETS.set(secrets);
}

/// The standard error, without secrets. A line comes as one piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Discreet;

impl Write for Discreet {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match SECRETS.get() {
            Some(secrets) => io::stderr().write_all(&secrets.hidden(line))?,
            None => io::stderr().write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

impl MakeWriter<'_> for Discreet {
    type Writer = Self;

    fn make_writer(&self) -> Self::Writer {
        *self
    }
}
