//! `tidegate man`.

use std::path::PathBuf;

use super::{CODE_NEEDS_A_PERSON, Done, Failed, described};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// An existing folder, such as /usr/local/share/man/man1
    folder: PathBuf,
}

pub(super) fn execute(arguments: &Arguments) -> Done {
    let folder = &arguments.folder;
    clap_mangen::generate_to(described(), folder).map_err(|error| {
        let error = anyhow::anyhow!(
            "manual pages cannot be written to {}: {error}",
            folder.display()
        );
        Failed::new(CODE_NEEDS_A_PERSON, error)
    })
}
