//! The exit codes, on which scripts and supervisors rely.

use std::process::ExitCode;

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All is well.
    Ok = 0,
    /// Something failed at run time.
    Failure = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// The slot, the publication or the server is not what it was: an operator must decide. Apart
    /// from [`Exit::Config`], after which some supervisors restart: a restart would skip rows.
    Slot = 3,
    /// Halted on an event that cannot be delivered.
    Poison = 4,
    /// The configuration cannot be used (`EX_CONFIG` of sysexits).
    Config = 78,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
