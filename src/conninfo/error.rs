//! What can be wrong with a connection string, and where it was said.
//!
//! No text here shows a value that was given, since a mistyped string may have
//! its password anywhere.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Where a parameter's value was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// In the connection string itself.
    Text,
    /// In the section of a service file.
    Service,
    /// In this environment variable.
    Environment(&'static str),
    /// Nowhere: it is a default.
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

/// Why a connection string cannot be used. All of these are for the operator
/// to fix; none goes away by trying again.
#[derive(Debug, thiserror::Error)]
pub enum ConnInfoError {
    /// The text is neither a URL nor `key=value` pairs.
    #[error("connection string: {0}")]
    Malformed(&'static str),
    /// libpq has no such parameter.
    #[error("unknown connection parameter {}", named(name.as_deref(), *nearest))]
    UnknownParameter {
        /// The name as written, unless it may be a piece of a password.
        name: Option<String>,
        /// The known name that is most like it.
        nearest: Option<&'static str>,
    },
    /// A value that the parameter does not take.
    #[error("{parameter} ({origin}) must be {expected}")]
    InvalidValue {
        /// The parameter.
        parameter: &'static str,
        /// Where its value was given.
        origin: Origin,
        /// What it takes.
        expected: &'static str,
    },
    /// A value that libpq honours and walpost cannot.
    #[error("{parameter} ({origin}) cannot be honoured: {reason}")]
    NotHonoured {
        /// The parameter.
        parameter: &'static str,
        /// Where its value was given.
        origin: Origin,
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// Lists of hosts, addresses and ports that do not go together.
    #[error("{parameter} names {given} where host names {hosts}: give one for each host")]
    ListLengths {
        /// The list that does not fit.
        parameter: &'static str,
        /// Its length.
        given: usize,
        /// The number of hosts.
        hosts: usize,
    },
    /// No user name anywhere.
    #[error("user: none is given, and neither USER nor LOGNAME names one")]
    NoUser,
    /// A certificate, key or root file that was named, or that must go with
    /// another, is not there.
    #[error("{parameter} ({origin}): there is no file {}", path.display())]
    MissingFile {
        /// The parameter that names the file.
        parameter: &'static str,
        /// Where its value was given.
        origin: Origin,
        /// The file.
        path: PathBuf,
    },
    /// `verify-ca` without a file of roots.
    #[error(
        "sslmode ({origin}) is verify-ca, and there is no root certificate file: name one by \
         sslrootcert, put it into ~/.postgresql/root.crt, or use sslmode=verify-full, which checks \
         the server's name too and then takes the system's authorities"
    )]
    NoRoots {
        /// Where the mode was given.
        origin: Origin,
    },
    /// No service file has the section.
    #[error("service: no service file defines `{0}`")]
    ServiceNotFound(String),
    /// A service file that cannot be read.
    #[error("service file {}", path.display())]
    ServiceFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A line of a service file that makes no sense.
    #[error("service file {}, line {line}: {reason}", path.display())]
    ServiceLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
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
