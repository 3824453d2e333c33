//! `walpost completions SHELL`: the completion script for walpost's commands and options.

use clap::CommandFactory;
use clap_complete::Shell;

use super::args::Arguments;

/// The script for `shell`.
pub(super) fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "walpost", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_has_a_script_with_all_commands() {
        for shell in Shell::value_variants() {
            let script = script(*shell);
            assert!(script.contains("completions"), "{shell}");
            assert!(script.contains("in-flight-bytes"), "{shell}");
        }
    }
}
