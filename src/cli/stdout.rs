//! Writes to standard output without a panic if the reader has closed it, and errors to standard error.

use std::io::{self, Write};
use std::sync::OnceLock;

use super::Exit;
use crate::excerpt::escaped;

/// Writes all of `text`. A reader that has closed the pipe (`walpost config | head -1`) has read
/// what it needed.
pub(super) fn print(text: &str) -> Exit {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Exit::Ok,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Ok,
        Err(error) => {
            complain(&format!("cannot write to standard output: {error}"));
            Exit::Failure
        }
    }
}

/// Writes a line to standard output: names and texts of others forge no other line.
pub(super) fn say(line: &str) -> Exit {
    print(&(escaped(line) + "\n"))
}

/// Writes an error to standard error, on one line, in the format of all commands.
pub(super) fn complain(text: &str) {
    // A failure here cannot be reported anywhere.
    let _ = writeln!(io::stderr().lock(), "walpost: {}", escaped(&with_flags(text)));
}

/// The flags of the command line and their values, as words for a shell.
static FLAGS: OnceLock<Vec<Flag>> = OnceLock::new();

type Flag = (&'static str, String);

/// Sets the flags that the commands in messages get, so that they can be pasted.
pub(super) fn set_flags(words: Vec<Flag>) {
    // A process runs one command.
    let _ = FLAGS.set(words);
}

/// The text, in which each command of walpost in backticks that takes the options of the configuration
/// has the flags of this one.
pub(super) fn with_flags(text: &str) -> String {
    let Some(flags) = FLAGS.get().filter(|flags| !flags.is_empty()) else { return text.to_owned() };
    let parts = text.split('`').enumerate();
    let parts =
        parts.map(|(at, part)| if at % 2 == 1 { flagged(part, flags) } else { part.into() });
    parts.collect::<Vec<_>>().join("`")
}

/// A command of walpost with the flags of this one.
pub(super) fn with_flags_of_this(command: &str) -> String {
    FLAGS.get().map_or_else(|| command.to_owned(), |flags| flagged(command, flags))
}

fn flagged(command: &str, flags: &[Flag]) -> String {
    const TAKE_THEM: [&str; 9] = [
        "adopt",
        "check",
        "init",
        "prune",
        "recover",
        "replay",
        "replay-dead-letters",
        "skip",
        "status",
    ];
    let (command, comment) = command.find("  #").map_or((command, ""), |at| command.split_at(at));
    let takes_them = command
        .strip_prefix("walpost ")
        .and_then(|rest| rest.split(' ').next())
        .is_some_and(|name| TAKE_THEM.contains(&name));
    // Without an option it is the name of a command: "another `walpost prune` works on it".
    if !takes_them || command.contains('|') || !command.contains(" --") {
        return format!("{command}{comment}");
    }
    let mut words: Vec<&str> = command.split(' ').collect();
    for (flag, value) in flags {
        // `adopt` works with the topic.
        let contradicts = command.starts_with("walpost adopt")
            && (*flag, value.as_str()) == ("--state-topic", "off");
        if !contradicts && !command.split(' ').any(|word| word == *flag) {
            words.extend([*flag, value]);
        }
    }
    words.join(" ") + comment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_in_messages_get_the_flags() {
        let flags = [("--slot", "a".to_owned())];
        let flagged = |command| flagged(command, &flags);
        assert_eq!(flagged("walpost init --apply --slot b"), "walpost init --apply --slot b");
        assert_eq!(flagged("walpost adopt --apply"), "walpost adopt --apply --slot a");
        assert_eq!(
            flagged("walpost init --apply  # then"),
            "walpost init --apply --slot a  # then"
        );
        for other in
            ["walpost run", "walpost init | psql", "walpost import-debezium a", "adopt", ""]
        {
            assert_eq!(flagged(other), other);
        }
    }
}
