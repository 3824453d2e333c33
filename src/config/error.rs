//! Configuration errors, each with its origin and what to change.
//!
//! No message repeats a value that may be a secret.

use std::io;
use std::path::PathBuf;

use super::origin::Origin;
use super::redact::logins;

/// `named_by` of a file that is read without being asked for.
pub(super) const DEFAULT: &str = "default";

/// The configuration cannot be used: exit code 78.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file, or one that a `_FILE` variable names, cannot be read.
    #[error("cannot read {} (named by {named_by}): {source}{}", path.display(), hint_for_default_file(named_by))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The flag or variable that names it, or `default`.
        named_by: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The configuration file is not TOML.
    #[error("{origin}: not valid TOML: {message}")]
    Syntax {
        /// File and line.
        origin: Origin,
        /// The error of the parser.
        message: String,
    },
    /// An unknown key.
    #[error("{origin}: unknown key `{}`{}", logins(key), meant(nearest.as_ref()))]
    UnknownKey {
        /// File and line.
        origin: Origin,
        /// The key, dotted.
        key: String,
        /// The most similar known key.
        nearest: Option<String>,
    },
    /// An unknown `WALPOST_*` variable.
    #[error("unknown environment variable {name}{}", meant(nearest.as_ref()))]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The most similar known variable.
        nearest: Option<String>,
    },
    /// A variable and its `_FILE` are both given.
    #[error("{name} and {name}_FILE are both set: unset one of them")]
    BothGiven {
        /// The variable, without `_FILE`.
        name: String,
    },
    /// A variable holds bytes that are not text.
    #[error("the value of {name} is not UTF-8")]
    NotText {
        /// The variable.
        name: String,
    },
    /// A value of the wrong type in the file.
    #[error("{origin}: `{}` must be {expected}, not {found}", logins(key))]
    WrongType {
        /// File and line.
        origin: Origin,
        /// The key, dotted.
        key: String,
        /// The expected type.
        expected: &'static str,
        /// The actual type.
        found: &'static str,
    },
    /// An invalid value.
    #[error("{origin}: `{key}`: {reason}")]
    Invalid {
        /// The source of the value.
        origin: Origin,
        /// The key, dotted.
        key: String,
        /// Why it is invalid.
        reason: String,
    },
    /// A Kafka property that would break walpost's guarantee.
    #[error("{origin}: the Kafka property `{}` cannot have this value: {reason}", logins(name))]
    RefusedProperty {
        /// The source of the value.
        origin: Origin,
        /// The property.
        name: String,
        /// What it would break, and what to do instead.
        reason: String,
    },
}

/// How to run without the file, if nobody asked for it.
fn hint_for_default_file(named_by: &str) -> &'static str {
    if named_by == DEFAULT { "; to run without it: --config /dev/null" } else { "" }
}

fn meant(nearest: Option<&String>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}
