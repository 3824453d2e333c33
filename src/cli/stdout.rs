//! Writes to standard output without a panic if the reader has closed it.

use std::io::{self, Write};

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
    let _ = writeln!(io::stderr().lock(), "walpost: {}", escaped(text));
}
