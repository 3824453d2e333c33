//! Writing to standard output without a panic where the reader has gone.

use std::io::{self, Write};

use super::Exit;

/// Writes all of `text`. A reader that has gone (`walpost config | head -1`) has
/// what it wanted.
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

/// Writes an error to standard error, as every command does.
pub(super) fn complain(text: &str) {
    // Nobody is left to be told where this fails.
    let _ = writeln!(io::stderr().lock(), "walpost: {text}");
}
