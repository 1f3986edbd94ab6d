//! The service: projections from the configuration file.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::main(tidegate::projection::Registry::new())
}
