//! Where a value was given: part of `walpost config` and of every error.

use std::fmt;
use std::path::PathBuf;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A flag of the command line.
    Flag(&'static str),
    /// An environment variable.
    Variable(String),
    /// A file that an environment variable names.
    VariableFile {
        /// The variable, with its `_FILE`.
        name: String,
        /// The file.
        path: PathBuf,
    },
    /// A line of the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// No layer gives it: the default, or nothing.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Variable(name) => f.write_str(name),
            Self::VariableFile { name, path } => write!(f, "{name} ({})", path.display()),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}
