//! Errors that prevent the test bed from starting. Each is one line that names the fix.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum BedError {
    #[error("{program} is missing: apt-get install {package} (or run tests/bed/setup.sh)")]
    Missing { program: &'static str, package: &'static str },
    #[error("the user postgres is missing: apt-get install postgresql (or do not run as root)")]
    NoPostgresUser,
    #[error("the cache {} cannot be reached by the user postgres: set WALPOST_CACHE to another directory", .0.display())]
    UnreachableCache(PathBuf),
    #[error("there is no directory for the cache: set WALPOST_CACHE")]
    NoCache,
    #[error("{what} failed: {output}")]
    Command { what: String, output: String },
    #[error("{server} did not start: {reason}\n{log}")]
    Start { server: String, reason: String, log: String },
    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: std::io::Error,
    },
    #[error("only root may {what}: run this as root")]
    NotRoot { what: &'static str },
    #[error("no free port was found on 127.0.0.1")]
    NoPort,
}

/// Says what was being done when the system refused.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, BedError>;
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, BedError> {
        self.map_err(|source| BedError::Io { what: what(), source })
    }
}
