//! A disk small enough to be filled: a tmpfs, which only root can mount.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache;
use crate::error::BedError;
use crate::os_account::is_root;

/// Mounted on a directory that a cleanup's watchdog unmounts. Unmounted on drop.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    pub(crate) fn mount(at: &Path, bytes: u64) -> Result<Self, BedError> {
        if !is_root() {
            return Err(BedError::NotRoot { what: "mount a small disk" });
        }
        cache::make_open(at)?;
        mount(&["-t", "tmpfs", "-o", &format!("size={bytes},mode=0700"), "tmpfs"], at)?;
        Ok(Self { at: at.to_owned() })
    }

    pub(crate) fn resize(&self, bytes: u64) -> Result<(), BedError> {
        mount(&["-o", &format!("remount,size={bytes}")], &self.at)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, since who uses it ends after this; the watchdog tries again.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

fn mount(arguments: &[&str], at: &Path) -> Result<(), BedError> {
    cache::run(Command::new("mount").args(arguments).arg(at), "mount", "mount").map(drop)
}
