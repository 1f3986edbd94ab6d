//! `tidegate completions`.

use super::{Done, described};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The shell
    shell: clap_complete::Shell,
}

pub(super) fn execute(arguments: &Arguments) -> Done {
    let mut command = described();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    println!("{}", String::from_utf8_lossy(&script).trim_end());
    Ok(())
}
