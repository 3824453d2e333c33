//! A small disk for a data directory, in memory, so that it can be filled.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::account::is_root;
use crate::cache;
use crate::error::BedError;

/// A mounted file system. Dropped, it is gone from its place.
#[derive(Debug)]
pub(super) struct Disk(PathBuf);

impl Disk {
    /// Mounts one of that size on an empty directory, which takes root.
    pub(super) fn mount(bytes: u64, place: &Path) -> Result<Self, BedError> {
        if !is_root() {
            return Err(BedError::NotRoot("mounting a small disk"));
        }
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes},mode=0700"), "tmpfs"]).arg(place);
        cache::run(&mut mount, "mount", "mount")?;
        Ok(Self(place.to_owned()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut umount = Command::new("umount");
        // Lazily, since the server may run still; the watchdog comes behind.
        let _ = cache::run(umount.arg("--lazy").arg(&self.0), "umount", "mount");
    }
}
