//! The environment in which a connection string is resolved.

use std::path::PathBuf;

/// The parts of the process's environment that affect a connection.
pub struct Env<'a> {
    /// The value of an environment variable.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// The user's home directory.
    pub home: Option<PathBuf>,
    /// The default directory of the server's Unix socket.
    pub socket_directory: PathBuf,
}

impl<'a> Env<'a> {
    /// The settings of a process with these environment variables.
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

    /// A file in libpq's directory in the user's home, if it exists.
    pub(super) fn users_file(&self, name: &str) -> Option<PathBuf> {
        let path = self.home.as_ref()?.join(".postgresql").join(name);
        path.exists().then_some(path)
    }
}
