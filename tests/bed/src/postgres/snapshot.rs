//! Copies and restores a stopped server's data, as a disk snapshot or a file-system backup does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Postgres;
use crate::cache;
use crate::error::{BedError, Doing};

/// A copy of a server's data.
#[derive(Debug)]
pub struct DataSnapshot(PathBuf);

impl Postgres {
    /// Copies the data of the stopped server.
    pub fn snapshot_data(&self) -> DataSnapshot {
        assert_eq!(self.pid(), None, "a running server's files do not fit together");
        let saved = self.data_dir().with_extension("saved");
        copy(&self.data_dir(), &saved).unwrap_or_else(|error| panic!("{error}"));
        DataSnapshot(saved)
    }

    /// Sets the stopped server back to what was saved.
    pub fn restore_data(&self, saved: &DataSnapshot) {
        assert_eq!(self.pid(), None, "it runs");
        copy(&saved.0, &self.data_dir()).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Makes the stopped server a clone of the saved one, at its own address.
    pub fn clone_data(&self, saved: &DataSnapshot) {
        let of = |name| self.data_dir().join(name);
        let kept = ["postgresql.conf", "pg_hba.conf"].map(of).map(|file| {
            let text =
                fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            (file, text)
        });
        self.restore_data(saved);
        for (file, text) in kept {
            fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
    }

    /// Makes the stopped server one that can be promoted: it begins a timeline then.
    pub fn make_standby(&self) {
        let file = self.data_dir().join("standby.signal");
        fs::write(&file, "").unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), BedError> {
    if to.exists() {
        fs::remove_dir_all(to).doing(|| format!("removing {}", to.display()))?;
    }
    let mut copy = Command::new("cp");
    copy.args(["-a", "--no-target-directory"]).arg(from).arg(to);
    cache::run(&mut copy, "cp", "coreutils").map(drop)
}
