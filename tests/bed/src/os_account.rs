//! The operating system account that runs a PostgreSQL server: never root.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::error::{BedError, Doing};

#[derive(Clone, Copy, Debug)]
pub(crate) enum OsAccount {
    /// The one that runs the tests.
    Own,
    /// The system's `postgres`, for tests that run as root.
    Postgres { uid: u32, gid: u32 },
}

impl OsAccount {
    pub(crate) fn of_postgres() -> Result<Self, BedError> {
        if !is_root() {
            return Ok(Self::Own);
        }
        let users = std::fs::read_to_string("/etc/passwd").doing(|| "reading the users".into())?;
        users
            .lines()
            .find_map(|line| {
                let mut fields = line.split(':');
                (fields.next()? == "postgres").then_some(())?;
                let uid = fields.nth(1)?.parse().ok()?;
                let gid = fields.next()?.parse().ok()?;
                Some(Self::Postgres { uid, gid })
            })
            .ok_or(BedError::NoPostgresUser)
    }

    /// A command that runs under this account.
    pub(crate) fn apply(self, command: &mut Command) {
        if let Self::Postgres { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
    }

    pub(crate) fn own(self, path: &Path) -> Result<(), BedError> {
        match self {
            Self::Own => Ok(()),
            Self::Postgres { uid, gid } => std::os::unix::fs::chown(path, Some(uid), Some(gid))
                .doing(|| format!("giving {} to postgres", path.display())),
        }
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
