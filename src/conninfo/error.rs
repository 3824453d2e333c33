//! Errors of a connection string, with the origin of the invalid value.
//!
//! No message contains a value, because a mistyped string may contain its password anywhere.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The source of a parameter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The connection string itself.
    Text,
    /// The section of a service file.
    Service,
    /// This environment variable.
    Environment(&'static str),
    /// Not set: the default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("in the connection string"),
            Self::Service => f.write_str("in the service file"),
            Self::Environment(variable) => write!(f, "in {variable}"),
            Self::Default => f.write_str("by default"),
        }
    }
}

/// Why a connection string cannot be used. All of these need an operator; retrying does not help.
#[derive(Debug, thiserror::Error)]
pub enum ConnInfoError {
    /// The text is neither a URL nor `key=value` pairs.
    #[error("connection string: {0}")]
    Malformed(&'static str),
    /// libpq has no such parameter.
    #[error("unknown connection parameter {}", named(name.as_deref(), *nearest))]
    UnknownParameter {
        /// The name as written, unless it may be part of a password.
        name: Option<String>,
        /// The most similar known name.
        nearest: Option<&'static str>,
    },
    /// A value that is invalid for the parameter.
    #[error("{parameter} ({origin}) must be {expected}")]
    InvalidValue {
        /// The parameter.
        parameter: &'static str,
        /// The source of the value.
        origin: Origin,
        /// The valid values.
        expected: &'static str,
    },
    /// A value that libpq supports and walpost does not.
    #[error("{parameter} ({origin}) cannot be honoured: {reason}")]
    NotHonoured {
        /// The parameter.
        parameter: &'static str,
        /// The source of the value.
        origin: Origin,
        /// Why not, and the remedy.
        reason: &'static str,
    },
    /// Lists of hosts, addresses and ports whose lengths do not match.
    #[error("{parameter} names {given} where host names {hosts}: give one for each host")]
    ListLengths {
        /// The list with the wrong length.
        parameter: &'static str,
        /// The length of the list.
        given: usize,
        /// The number of hosts.
        hosts: usize,
    },
    /// No user name is set.
    #[error(
        "user: none is given, and neither USER nor LOGNAME names one: set source.url (--source, \
         WALPOST_SOURCE_URL, walpost.toml), as in postgres://USER@HOST/DATABASE"
    )]
    NoUser,
    /// A certificate, key or root file that is named, or required by another parameter, does not
    /// exist.
    #[error("{parameter} ({origin}): there is no file {}", path.display())]
    MissingFile {
        /// The parameter that names the file.
        parameter: &'static str,
        /// The source of the value.
        origin: Origin,
        /// The file.
        path: PathBuf,
    },
    /// `verify-ca` without a root certificate file.
    #[error(
        "sslmode ({origin}) is verify-ca, and there is no root certificate file: name one by \
         sslrootcert, put it into ~/.postgresql/root.crt, or use sslmode=verify-full, which checks \
         the server's name too and then takes the system's authorities"
    )]
    NoRoots {
        /// The source of the mode.
        origin: Origin,
    },
    /// No service file has the section.
    #[error("service: no service file defines `{0}`")]
    ServiceNotFound(String),
    /// A service file cannot be read.
    #[error("service file {}", path.display())]
    ServiceFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// An invalid line of a service file.
    #[error("service file {}, line {line}: {reason}", path.display())]
    ServiceLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Why it is invalid.
        reason: &'static str,
    },
}

fn named(name: Option<&str>, nearest: Option<&'static str>) -> String {
    match (name, nearest) {
        (Some(name), Some(nearest)) => format!("`{name}`: is `{nearest}` meant?"),
        (Some(name), None) => format!("`{name}`"),
        (None, _) => "after what may be a password: quote the password, or percent-encode \
                      it in a URL"
            .to_owned(),
    }
}
