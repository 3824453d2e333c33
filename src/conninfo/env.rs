//! Where a connection string is resolved.

use std::path::PathBuf;

/// What surrounds the process, as far as it matters to a connection.
pub struct Env<'a> {
    /// The value of an environment variable.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// The user's home directory.
    pub home: Option<PathBuf>,
    /// Where the server's Unix socket is by default.
    pub socket_directory: PathBuf,
}

impl<'a> Env<'a> {
    /// Those of a process with that environment.
    pub fn of(environment: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self {
            environment,
            home: environment("HOME").filter(|home| !home.is_empty()).map(PathBuf::from),
            socket_directory: PathBuf::from("/var/run/postgresql"),
        }
    }

    pub(super) fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name)
    }

    /// A file in libpq's directory in the user's home, where it exists.
    pub(super) fn users_file(&self, name: &str) -> Option<PathBuf> {
        let path = self.home.as_ref()?.join(".postgresql").join(name);
        path.exists().then_some(path)
    }
}
