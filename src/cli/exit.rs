//! The exit codes, on which scripts and supervisors rely.

use std::process::ExitCode;

use crate::source::SourceError;

/// The exit code of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success.
    Ok = 0,
    /// A failure at run time.
    Failure = 1,
    /// An invalid command line.
    Usage = 2,
    /// The slot, the publication or the server has changed: an operator must act. Distinct from
    /// [`Exit::Config`], after which some supervisors restart: a restart would skip rows.
    Slot = 3,
    /// Halted on an undeliverable event.
    Poison = 4,
    /// The configuration cannot be used (`EX_CONFIG` of sysexits).
    Config = 78,
}

impl From<&SourceError> for Exit {
    fn from(error: &SourceError) -> Self {
        match error {
            SourceError::Slot(_) | SourceError::Changed(_) => Self::Slot,
            SourceError::Access(_) | SourceError::Setup(_) => Self::Config,
            SourceError::Undecodable(_)
            | SourceError::Encoding(_)
            | SourceError::Unprintable(_) => Self::Poison,
            SourceError::Lost(_) | SourceError::ServerError(_) | SourceError::InUse { .. } => {
                Self::Failure
            }
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
